//! The Kubernetes API as cloudcore uses it: calls under three identities, and watches as plain events.
//!
//! Everything goes through `kube::Client`, which is a tower service: tests put a scripted service in its place.

mod call;
mod client;
mod edge_nodes;
mod endless;
mod gate;
mod impersonate;
mod object;
mod paging;
mod protections;
mod published;
mod registering;
mod reviews;
mod room;
mod waiting;
mod watch;

pub use call::{Answer, ApiCall, CallError, Caller};
pub use edge_nodes::EDGE_NODES;
pub(crate) use edge_nodes::edge_node;
pub use impersonate::{Impersonation, ImpersonationForm};
pub(crate) use object::has_too_many_values;
pub use object::{ObjectError, RawObject};
pub(crate) use paging::query_value;
pub use protections::Protections;
pub(crate) use published::{ISSUER_PATHS, is_document};
pub(crate) use reviews::{Right, Unanswered};
pub(crate) use room::{LARGE_ANSWER, Room};
pub use waiting::Waiting;
pub(crate) use watch::watch_events;
pub use watch::{ObjectEvent, WatchError, WatchSpec, watch};

use std::sync::Arc;

use gate::Gate;
use kube::Client;
use published::Published;
use tombolo_proto::Resource;

/// The clients of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    /// Carries no credentials: calls on behalf of a local client of an edge bring their own token, and a client
    /// certificate of cloudcore on the same connection would outrank it.
    bare: Option<Client>,
    impersonation: Arc<Impersonation>,
    gate: Arc<Gate>,
    published: Arc<Published>,
    /// The turn of long lines of cloudcore's own watches.
    own_lines: waiting::Turns,
}

impl Kube {
    /// Clients for a cluster.
    ///
    /// # Errors
    /// The configuration holds unusable certificates or addresses.
    pub fn from_config(config: kube::Config) -> Result<Self, kube::Error> {
        let mut bare = config.clone();
        bare.auth_info = kube::config::AuthInfo::default();
        let bare = client::client(bare)?;
        Ok(Self { bare: Some(bare), ..Self::from(client::client(config)?) })
    }

    /// cloudcore's own client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Has the calls counted in this registry.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.gate.register(registry);
        self.published.register(registry);
    }

    /// How nodes are impersonated, as far as it is known.
    #[must_use]
    pub fn impersonation(&self) -> &Impersonation {
        &self.impersonation
    }
}

impl From<Client> for Kube {
    /// Without a second client, calls with the token of an edge's local client are refused.
    fn from(client: Client) -> Self {
        let (impersonation, gate, published) = Default::default();
        Self { client, bare: None, impersonation, gate, published, own_lines: waiting::turns() }
    }
}

/// The resources that cloudcore pushes to nodes by itself.
pub mod resources {
    use std::sync::LazyLock;

    use super::Resource;

    /// Made once: a copy of a resource shares its texts.
    static CORE: LazyLock<[Resource; 4]> = LazyLock::new(|| {
        ["nodes", "pods", "configmaps", "secrets"].map(|name| Resource::new("", "v1", name))
    });

    /// `v1/nodes`.
    #[must_use]
    pub fn nodes() -> Resource {
        CORE[0].clone()
    }

    /// `v1/pods`.
    #[must_use]
    pub fn pods() -> Resource {
        CORE[1].clone()
    }

    /// `v1/configmaps`.
    #[must_use]
    pub fn configmaps() -> Resource {
        CORE[2].clone()
    }

    /// `v1/secrets`.
    #[must_use]
    pub fn secrets() -> Resource {
        CORE[3].clone()
    }
}

/// Path of a collection, or of one object when `name` is not empty; `namespace` is empty for cluster scope and for
/// all namespaces.
#[must_use]
pub fn path_of(resource: &Resource, namespace: &str, name: &str) -> String {
    let mut path = match &*resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    if !namespace.is_empty() {
        path.push_str("/namespaces/");
        push_segment(&mut path, namespace);
    }
    path.push('/');
    path.push_str(&resource.name);
    if !name.is_empty() {
        path.push('/');
        push_segment(&mut path, name);
    }
    path
}

/// An API server stores names that stand in no URL as they are, and a name must never become another path.
fn push_segment(path: &mut String, text: &str) {
    use std::fmt::Write as _;
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' | b':' | b'@' => path.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => path.push(char::from(byte)),
            // Writing into a String does not fail.
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
}

/// Whether a status code refuses what was asked for. Anything else that is no success is trouble (cloudcore's own credentials,
/// a server that is slow or busy or has failed): nothing follows from it, and the question can be asked again.
#[must_use]
pub(crate) fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 408 | 429)
}

/// Whether a text from a peer is safe as one segment of an API path.
#[must_use]
pub fn is_path_segment(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= tombolo_proto::ids::NAME_LEN_MAX
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':'))
}

/// Whether a text can be a bearer token: what an `Authorization` header carries as one word. A server that is shown
/// anything else reads another token than the one that was meant, or takes the caller for nobody.
#[must_use]
pub fn is_bearer_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) mod double;

    use super::*;

    #[test]
    fn tokens_are_one_word() {
        assert!(is_bearer_token("eyJhbGciOiJSUzI1NiJ9.e30.a-_b~+/="));
        for bad in ["", " ", "a b", "a\n", "a\tb", "ä", "a,b"] {
            assert!(!is_bearer_token(bad), "{bad:?}");
        }
    }

    #[test]
    fn paths_follow_the_api_conventions() {
        let leases = Resource::new("coordination.k8s.io", "v1", "leases");
        assert_eq!(path_of(&resources::nodes(), "", "n"), "/api/v1/nodes/n");
        assert_eq!(path_of(&resources::pods(), "", ""), "/api/v1/pods");
        let lease = path_of(&leases, "kube-node-lease", "n");
        assert_eq!(lease, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n");
    }

    #[test]
    fn segments_cannot_leave_their_place() {
        for good in ["kube-root-ca.crt", "a", "web-0.x", "system:x"] {
            assert!(is_path_segment(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a?x", "a%2fb", "a b", "ä", &"x".repeat(254)] {
            assert!(!is_path_segment(bad), "{bad}");
        }
    }
}
