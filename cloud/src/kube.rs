//! The Kubernetes API as cloudcore uses it: calls under three kinds of identity, and watches as plain events.
//!
//! All calls go through `kube::Client`, which is a tower service, so tests can put a scripted service in its place.

mod api_call;
mod call;
mod call_limits;
mod client;
mod coalesced;
mod edge_nodes;
mod endless;
mod group_rights;
mod identity;
mod impersonate;
mod object;
mod paging;
mod pool;
mod protections;
mod published;
mod registering;
mod reviews;
mod room;
mod tree;
mod waiting;
mod watch;

pub use api_call::{ApiCall, CallError};
pub use call::{Answer, Caller};
pub use call_limits::ListTurn;
pub(crate) use call_limits::ListTurns;
pub use client::without_proxy_of_environment;
pub(crate) use coalesced::{Common, Got, Wanted};
pub use edge_nodes::EDGE_NODES;
pub(crate) use edge_nodes::edge_node;
pub(crate) use group_rights::VERBS;
pub use impersonate::{Impersonation, ImpersonationForm};
pub(crate) use object::MIRROR;
pub use object::{ObjectError, RawObject};
pub(crate) use paging::query_value;
pub use protections::Protections;
pub(crate) use published::{ISSUER_PATHS, is_document};
pub(crate) use reviews::{Right, Unanswered, may_follow};
pub(crate) use room::{GivesWay, LARGE_ANSWER, Room};
pub use tombolo_proto::api_path::path_of;
pub(crate) use tree::{LARGE_TREE_BYTES_MAX, TreeError, exceeds, is_large, is_object, read_tree};
pub use waiting::Waiting;
pub(crate) use watch::watch_events;
pub use watch::{ObjectEvent, WatchError, WatchSpec, watch};

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use call_limits::Gate;
use group_rights::GroupRights;
use kube::Client;
use published::Published;
use tombolo_proto::message::is_passing;
use tombolo_proto::{NodeId, Resource};

/// The clients of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    /// A client without credentials. Calls on behalf of a local client of an edge carry that client's token, and a
    /// client certificate of cloudcore on the same connection would take precedence over it.
    bare: Option<Client>,
    impersonation: Arc<Impersonation>,
    gate: Arc<Gate>,
    published: Arc<Published>,
    /// The permit for long lines of cloudcore's own watches.
    own_lines: waiting::Turns,
    group_rights: Arc<GroupRights>,
}

impl Kube {
    /// Clients for a cluster.
    ///
    /// # Errors
    /// The configuration holds invalid certificates or addresses.
    pub fn from_config(config: kube::Config) -> Result<Self, kube::Error> {
        Self::following(config, None)
    }

    /// The same, with the configuration of a kubeconfig file. When its client certificate is renewed, new connections
    /// present the new one within [`identity::LOOK_INTERVAL`].
    ///
    /// # Errors
    /// As [`Self::from_config`].
    pub fn following(config: kube::Config, kubeconfig: Option<&Path>) -> Result<Self, kube::Error> {
        let mut bare = config.clone();
        bare.auth_info = kube::config::AuthInfo::default();
        let bare = client::client(bare)?;
        let own = client::following(config, kubeconfig.map(Path::to_owned))?;
        Ok(Self { bare: Some(bare), ..Self::from(own) })
    }

    /// Clients for a simulated API server: cloudcore's own, and one without credentials.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn simulated(own: Client, bare: Client) -> Self {
        Self { bare: Some(bare), ..Self::from(own) }
    }

    /// cloudcore's own client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until a node may list what it follows, with cloudcore's rights. See [`Caller::OwnInTurn`].
    pub(crate) async fn list_turn(&self, node: &NodeId) -> ListTurn {
        self.gate.list_turn(node).await
    }

    /// Number of nodes that have turns to make calls, or wait for one.
    #[cfg(test)]
    pub(crate) fn nodes_with_turns(&self) -> usize {
        self.gate.nodes()
    }

    /// Registers the call metrics.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.gate.register(registry);
        self.published.register(registry);
        self.group_rights.register(registry);
    }

    /// The form of impersonation for nodes, as far as it is known.
    #[must_use]
    pub fn impersonation(&self) -> &Impersonation {
        &self.impersonation
    }
}

impl From<Client> for Kube {
    /// There is no second client, so calls with the token of an edge's local client fail.
    fn from(client: Client) -> Self {
        let (impersonation, gate, published, group_rights) = Default::default();
        let own_lines = waiting::turns();
        Self { client, bare: None, impersonation, gate, published, own_lines, group_rights }
    }
}

/// The resources that cloudcore sends to nodes by itself.
pub mod resources {
    use std::sync::LazyLock;

    use super::Resource;

    /// Created once: clones of a resource share its texts.
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

/// Whether a status code rejects the request itself. Any other error code is a temporary or local problem (cloudcore's
/// own credentials, or a slow, busy or failing server). It means nothing for the request, which can be retried.
#[must_use]
pub(crate) fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 408 | 429)
}

/// Whether a retry of a failed call may soon succeed, because the API server is busy or unreachable. If the server does
/// not match the configuration, or does not know cloudcore's credentials, a retry cannot help.
pub(crate) fn is_passing_failure(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => is_passing(status.code),
        kube::Error::Service(_) | kube::Error::HyperError(_) => !is_refused_by_tls(error),
        _ => false,
    }
}

fn is_refused_by_tls(error: &kube::Error) -> bool {
    let of_tls = |error: &(dyn Error + 'static)| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        error.is::<rustls::Error>() || inner.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
    };
    let mut next = error.source();
    while let Some(error) = next {
        if of_tls(error) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Whether a text from a peer is safe as a single segment of an API path.
#[must_use]
pub fn is_path_segment(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= tombolo_proto::ids::NAME_LEN_MAX
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':'))
}

/// Whether a text can be a bearer token, that is, a single word in an `Authorization` header. A server that receives
/// anything else reads a different token than the one intended, or treats the caller as anonymous.
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
    fn segments_cannot_escape_their_path() {
        for good in ["kube-root-ca.crt", "a", "web-0.x", "system:x"] {
            assert!(is_path_segment(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a?x", "a%2fb", "a b", "ä", &"x".repeat(254)] {
            assert!(!is_path_segment(bad), "{bad}");
        }
    }
}
