//! The swarm's objects in the cluster: Nodes, one pod on each, and the ConfigMap that all of them use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tombolo_cloud::bootstrap::NewToken;
use tombolo_proto::Message;
use tombolo_proto::message::{
    Content, Group, MessageId, ObjectPath, Operation, ResourcePath, ResourceType, Route, Source,
};

use super::SwarmOptions;
use crate::{cluster, token};

/// Namespace of the swarm's objects.
pub(super) const NAMESPACE: &str = "tombolo-swarm";
/// Name of the ConfigMap that every pod of the swarm uses.
pub(super) const CONFIG_MAP: &str = "shared";

/// Size of the ConfigMap besides its data: kind, name, UID and creation time.
const ENVELOPE_LEN: usize = 218;

/// Concurrent API requests while objects are created and deleted.
const CONCURRENCY: usize = 16;
const READY_DEADLINE: Duration = Duration::from_secs(30);

/// The prepared cluster.
pub(super) struct Cluster {
    client: Client,
    nodes: usize,
    version: u64,
}

/// Name of the swarm's node with this number.
pub(super) fn node_name(number: usize) -> String {
    format!("swarm-{number:05}")
}

impl Cluster {
    /// Creates the missing objects.
    pub(super) async fn prepare(options: &SwarmOptions) -> Result<Self> {
        let config = cluster::config(&options.kubeconfig).await?;
        let mut cluster = Self { client: Client::try_from(config)?, nodes: options.nodes, version: 0 };
        eprintln!("swarm: creating {} nodes, each with a pod", options.nodes);
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        accept_existing(namespaces.create(&PostParams::default(), &namespace).await)?;
        cluster.update(super::OBJECT_LEN).await?;
        stream::iter(0..options.nodes)
            .map(|number| cluster.create_node(number))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(cluster)
    }

    async fn create_node(&self, number: usize) -> Result<()> {
        let name = node_name(number);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"node-role.kubernetes.io/edge": "", "tombolo.example/swarm": "1"}},
        }))?;
        accept_existing(nodes.create(&PostParams::default(), &node).await)?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": name,
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "hollow", "image": "registry.example/hollow:1",
                    "envFrom": [{"configMapRef": {"name": CONFIG_MAP}}],
                }],
            },
        }))?;
        let deadline = Instant::now() + READY_DEADLINE;
        loop {
            match accept_existing(pods.create(&PostParams::default(), &pod).await) {
                // A new namespace has no ServiceAccount for a moment, and pods are refused until then.
                Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(200)).await,
                outcome => return outcome,
            }
        }
    }

    /// Writes a new version of the ConfigMap, about `length` bytes as nodes receive it; returns when the write is
    /// answered.
    pub(super) async fn update(&mut self, length: usize) -> Result<Instant> {
        self.version += 1;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let version = format!("{}-{}", std::process::id(), self.version);
        let padding = "x".repeat(length.saturating_sub(ENVELOPE_LEN + version.len()));
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP},
            "data": {"version": version, "padding": padding},
        });
        maps.patch(CONFIG_MAP, &PatchParams::apply("tombolo-swarm").force(), &Patch::Apply(object)).await?;
        Ok(Instant::now())
    }

    /// The request that nodes send: the ConfigMap that their pod uses.
    pub(super) fn question(&self) -> Result<Arc<Message>> {
        let path = ResourcePath::from(ObjectPath::new(NAMESPACE, ResourceType::ConfigMap, CONFIG_MAP));
        let route = Route::new(Source::Edged, Group::Meta, Operation::Query, path);
        let id = MessageId::from_random_bytes(rand::random());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        Ok(Arc::new(Message::new(id, i64::try_from(now.as_millis())?, route, Content::null())))
    }

    /// A join token for the whole swarm, whose Nodes already exist.
    pub(super) async fn join_token(&self) -> Result<String> {
        let uses = u32::try_from(self.nodes).unwrap_or(u32::MAX);
        let token = NewToken { names: Vec::new(), uses, life: token::AGENTS_TOKEN_LIFE, replace: true };
        token::make(self.client.clone(), cluster::NAMESPACE, &token).await
    }

    /// Deletes everything that was created.
    pub(super) async fn clean_up(&self) -> Result<()> {
        eprintln!("swarm: deleting the nodes and pods");
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let removal = |number: usize| {
            let (nodes, pods, at_once) = (&nodes, &pods, &at_once);
            async move {
                accept_missing(pods.delete(&node_name(number), at_once).await)?;
                accept_missing(nodes.delete(&node_name(number), at_once).await)
            }
        };
        stream::iter(0..self.nodes)
            .map(removal)
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        accept_missing(namespaces.delete(NAMESPACE, &DeleteParams::default()).await)
    }
}

fn accept_existing<T>(outcome: kube::Result<T>) -> Result<()> {
    accept(outcome, 409)
}

fn accept_missing<T>(outcome: kube::Result<T>) -> Result<()> {
    accept(outcome, 404)
}

fn accept<T>(outcome: kube::Result<T>, code: u16) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        other => Ok(other.map(drop)?),
    }
}
