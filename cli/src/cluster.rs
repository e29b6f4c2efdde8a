//! Access to a cluster, its join token and its edge nodes, shared by several commands.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde::Deserialize as _;
use serde_json::Value;
use tombolo_cloud::Kube;
pub(crate) use tombolo_cloud::bootstrap::NAMESPACE;
use tombolo_cloud::kube::{Caller, RawObject, without_proxy_of_environment};

/// Name of the Secret with KubeEdge's shared join token (docs/reference/kubeedge.md#certificates-and-keys).
const TOKEN_SECRET: &str = "tokensecret";

/// Label of edge nodes (KubeEdge's).
const EDGE_LABEL: &str = "node-role.kubernetes.io/edge";

/// Namespace of node leases (Kubernetes convention).
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Client configuration for the cluster of a kubeconfig file.
pub(crate) async fn config(kubeconfig: &Path) -> Result<kube::Config> {
    let parsed = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("cannot read the kubeconfig {}", kubeconfig.display()))?;
    let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    Ok(without_proxy_of_environment(config))
}

/// KubeEdge's shared join token, if cloudcore keeps one.
pub(crate) async fn shared_token(client: Client, namespace: &str) -> Result<Option<String>> {
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let Some(secret) = secrets.get_opt(TOKEN_SECRET).await.context("cannot read the join token")? else {
        return Ok(None);
    };
    let data = secret.data.and_then(|mut data| data.remove("tokendata"));
    let token = data.with_context(|| format!("secret {namespace}/{TOKEN_SECRET} has no key tokendata"))?;
    String::from_utf8(token.0).map(Some).context("the join token is not UTF-8 text")
}

/// An edge node as shown to operators.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EdgeNode {
    /// Its name.
    pub(crate) name: String,
    /// Status of its condition `Ready`: `True`, `False` or `Unknown`.
    pub(crate) ready: String,
    /// Time of the last lease renewal; `never` without a lease.
    pub(crate) heard: String,
    /// Why its Node or its lease cannot be read.
    pub(crate) problem: Option<String>,
}

/// The edge nodes of a cluster. An unreadable object is reported with its node and does not fail the list.
pub(crate) async fn edge_nodes(client: Client) -> Result<Vec<EdgeNode>> {
    let (kube, mut listing) = (Kube::from(client), Listing::default());
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases");
    list(&kube, &path, |lease| listing.add_lease(&lease)).await.context("cannot list leases")?;
    let path = format!("/api/v1/nodes?labelSelector={EDGE_LABEL}");
    list(&kube, &path, |node| listing.add_node(&node)).await.context("cannot list nodes")?;
    Ok(listing.nodes)
}

/// Nodes and leases as they arrive from the lists, leases first.
#[derive(Default)]
struct Listing {
    heard: BTreeMap<String, Result<String>>,
    nodes: Vec<EdgeNode>,
}

impl Listing {
    fn add_lease(&mut self, lease: &RawObject) {
        self.heard.insert(name_of(lease), heard_of(lease));
    }

    fn add_node(&mut self, node: &RawObject) {
        let name = name_of(node);
        let (ready, problem) = value_or(ready_of(node), "Unknown");
        let lease = self.heard.remove(&name).unwrap_or_else(|| Ok("never".to_owned()));
        let (heard, of_lease) = value_or(lease, "unknown");
        self.nodes.push(EdgeNode { name, ready, heard, problem: problem.or(of_lease) });
    }
}

/// Passes every object of a list to `each`, unreadable ones included.
pub(crate) async fn list(kube: &Kube, path: &str, each: impl FnMut(RawObject)) -> Result<()> {
    match kube.list(Caller::Own, path, each).await? {
        None => Ok(()),
        Some(answer) => Err(anyhow!(answer.message())),
    }
}

fn name_of(object: &RawObject) -> String {
    object.value()["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The value read from an object, or the fallback to show and the reason.
fn value_or(said: Result<String>, otherwise: &str) -> (String, Option<String>) {
    match said {
        Ok(said) => (said, None),
        Err(error) => (otherwise.to_owned(), Some(format!("{error:#}"))),
    }
}

fn ready_of(node: &RawObject) -> Result<String> {
    let unknown = || "Unknown".to_owned();
    let conditions = match &node.whole()?["status"]["conditions"] {
        Value::Null => return Ok(unknown()),
        conditions => conditions.as_array().context("its status.conditions is not a list")?,
    };
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    Ok(ready.and_then(|ready| ready["status"].as_str()).map_or_else(unknown, str::to_owned))
}

fn heard_of(lease: &RawObject) -> Result<String> {
    match &lease.whole().context("its lease")?["spec"]["renewTime"] {
        Value::Null => Ok("never".to_owned()),
        time => {
            let time =
                MicroTime::deserialize(time).context("its lease: spec.renewTime is not a timestamp")?;
            Ok(time.0.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, rest: &str) -> RawObject {
        let metadata = format!(r#"{{"name":"{name}","uid":"u","resourceVersion":"4"}}"#);
        serde_json::from_str(&format!(r#"{{"metadata":{metadata},{rest}}}"#)).expect("an object")
    }

    #[test]
    fn unreadable_node_is_listed_with_the_reason() {
        let deep = format!(r#""status":{}0{}"#, r#"{"a":"#.repeat(9000), "}".repeat(9000));
        let many = format!(r#""status":{{"images":[{}0]}}"#, r#""","#.repeat(500_000));
        let ready =
            |status: &str| format!(r#""status":{{"conditions":[{{"type":"Ready","status":"{status}"}}]}}"#);
        let nodes = [
            object("deep", &deep),
            object("good", &ready("True")),
            object("many", &many),
            object("odd", r#""spec":7,"status":{"conditions":"x"}"#),
            object("odd-lease", &ready("True")),
            object("odd-spec", &format!(r#""spec":{{"podCIDRs":{{}}}},{}"#, ready("False"))),
        ];
        let leases = [
            object("good", r#""spec":{"renewTime":"2026-01-01T00:00:00.000001Z"}"#),
            object("odd-lease", r#""spec":{"renewTime":7}"#),
        ];
        let mut listing = Listing::default();
        leases.iter().for_each(|lease| listing.add_lease(lease));
        nodes.iter().for_each(|node| listing.add_node(node));
        let listed = listing.nodes;
        let shown = |name: &str| listed.iter().find(|node| node.name == name).expect("shown");
        let seen = |name: &str| {
            (shown(name).ready.as_str(), shown(name).heard.as_str(), shown(name).problem.as_deref())
        };
        assert_eq!(seen("good"), ("True", "2026-01-01T00:00:00.000001Z", None));
        assert_eq!(seen("odd-spec"), ("False", "never", None));
        for (name, ready, heard, says) in [
            ("deep", "Unknown", "never", "cannot be read"),
            ("many", "Unknown", "never", "cannot be read"),
            ("odd", "Unknown", "never", "status.conditions"),
            ("odd-lease", "True", "unknown", "spec.renewTime"),
        ] {
            let (was_ready, was_heard, problem) = seen(name);
            assert_eq!((was_ready, was_heard), (ready, heard), "{name}");
            assert!(problem.is_some_and(|problem| problem.contains(says)), "{name}: {problem:?}");
        }
    }
}
