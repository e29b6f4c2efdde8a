//! Reports to the cloud. While no kubelet reports ([`crate::kubelet`]), the agent reports the Node object, its lease
//! and status, and the state of delivered pods (`docs/edge-node.md` lists exactly what). It always sends the reports
//! that wait in the outbox.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tombolo_apicore::history::ChangeStream;
use tombolo_apicore::store::{Store as ServedStore, StoreError};
use tombolo_proto::ids::NodeId;
use tombolo_proto::object::{ObjectKey, Resource};
use tombolo_runtime::Tasks;
use tombolo_runtime::time::sleep_until;
use tracing::debug;

use crate::config::NodeConfig;
use crate::hub::HubHandle;
use crate::kubelet::{Kubelet, is_kubelets};
use crate::metrics::Metrics;
use crate::store::Store;

mod node;
mod outbox;
mod pods;
mod status;

/// Timeout of the answer to one report.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What the reporting tasks share.
pub(crate) struct Upstream {
    pub(crate) node: NodeId,
    pub(crate) settings: NodeConfig,
    pub(crate) simulate_pods: bool,
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    pub(crate) store: Store,
    pub(crate) hub: HubHandle,
    pub(crate) kubelet: Kubelet,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) seed: u64,
    /// The cloud answered a status of the Node object with 404: it must be created again.
    pub(crate) node_gone: Notify,
}

impl Upstream {
    /// Starts the tasks. They run until `stop` is cancelled. Unsent reports stay in the outbox.
    pub(crate) fn spawn(self, tasks: &Tasks, stop: &CancellationToken) {
        let shared = Arc::new(self);
        let until = |work: BoxFuture<'static, ()>| {
            let stop = stop.clone();
            async move {
                stop.run_until_cancelled(work).await;
            }
        };
        tasks.spawn("outbox", until(Box::pin(outbox::run(Arc::clone(&shared)))));
        if shared.settings.register {
            tasks.spawn("node", until(Box::pin(node::run(Arc::clone(&shared)))));
            tasks.spawn("pods", until(Box::pin(pods::run(shared))));
        }
    }
}

impl Upstream {
    /// Waits until the agent should report for the node.
    async fn own_turn(&self) {
        self.wait_for_turn(true).await;
    }

    /// Waits until a kubelet reports for the node.
    async fn kubelets_turn(&self) {
        self.wait_for_turn(false).await;
        debug!(node = %self.node, "a kubelet reports for this node; the agent stops its own reports");
    }

    async fn wait_for_turn(&self, own: bool) {
        let (mut writes, mut commits) = (self.kubelet.writes(), self.store.commits());
        loop {
            writes.borrow_and_update();
            commits.borrow_and_update();
            let changes = self.store.watch(&nodes(), self.store.revision());
            if self.is_own_turn() == own {
                return;
            }
            tokio::select! {
                // None of these channels closes before the agent stops.
                Ok(()) = writes.changed() => {}
                () = changed(changes, &mut commits) => {}
                () = sleep_until(self.kubelet.gone_at()) => {}
            }
        }
    }

    /// Whether the agent reports for the node. It does not after the kubelet is gone: the node must become NotReady,
    /// because nothing runs its pods (unless the agent simulates them).
    fn is_own_turn(&self) -> bool {
        self.kubelet.gone_at().is_none()
            && !self.held_node().is_some_and(|node| self.is_left_to_kubelet(&node))
    }

    /// Whether only a kubelet, present or gone, should report for this node.
    fn is_left_to_kubelet(&self, node: &Value) -> bool {
        !self.simulate_pods && is_kubelets(node)
    }

    fn node_key(&self) -> ObjectKey {
        ObjectKey::new(nodes(), "", self.node.as_str())
    }

    /// The Node object, if the store has it.
    fn held_node(&self) -> Option<Value> {
        let held = self.store.visible(&self.node_key()).ok().flatten();
        held.and_then(|node| serde_json::from_slice(&node.body()).ok())
    }
}

/// Whether another attempt may get another answer than this code: credentials are renewed, and a busy or failing server
/// recovers.
fn is_temporary(code: u16) -> bool {
    matches!(code, 401 | 408 | 429 | 500..=599)
}

fn nodes() -> Resource {
    Resource::new("", "v1", "nodes")
}

/// Waits for a change of the watched resource; if it cannot be watched yet, for any commit.
async fn changed(changes: Result<ChangeStream, StoreError>, commits: &mut watch::Receiver<u64>) {
    match changes {
        Ok(mut changes) => drop(changes.next().await),
        Err(_) => drop(commits.changed().await),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::advance;
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::{ContentHash, ObjectVersion, SharedObject};

    use super::*;
    use crate::kubelet::GONE_AFTER;
    use crate::store::{Delivery, FaultyDisk, LogBounds, Sealer};

    pub(super) fn upstream(simulate_pods: bool) -> Upstream {
        let opened =
            Store::open_on(Box::new(FaultyDisk::new(1)), Sealer::new(&[7; 32]), LogBounds::default());
        Upstream {
            node: NodeId::parse("edge-a").unwrap(),
            settings: NodeConfig::default(),
            simulate_pods,
            address: watch::channel(None).1,
            store: opened.unwrap().store,
            hub: HubHandle::new().0,
            kubelet: Kubelet::default(),
            metrics: Arc::default(),
            seed: 1,
            node_gone: Notify::new(),
        }
    }

    /// Stores a Node object as a kubelet makes it.
    pub(super) async fn adopt(upstream: &Upstream) {
        let node = json!({
            "metadata": {"name": "edge-a", "uid": "n"}, "status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}},
        });
        let key = ObjectKey::new(Resource::new("", "v1", "nodes"), "", "edge-a");
        let revision = tombolo_proto::ids::CloudRevision(5);
        let version = ObjectVersion { uid: Uid::parse("n").unwrap(), revision, hash: ContentHash(0) };
        let object = Arc::new(SharedObject::new(key, version, node.to_string().into(), Vec::new()));
        let change = tombolo_proto::frame::Change::Upsert(object);
        let subscription = tombolo_proto::ids::SubscriptionId::NODE;
        let outcome = upstream.store.apply(vec![Delivery { subscription, change }]).await.unwrap();
        assert!(outcome.iter().all(Result::is_ok));
    }

    #[tokio::test(start_paused = true)]
    async fn agent_pauses_reports_for_a_kubelet_and_resumes_only_in_a_simulation() {
        for (simulate, adopted, speaks) in
            [(false, false, true), (false, true, false), (true, true, true), (true, false, true)]
        {
            let upstream = upstream(simulate);
            upstream.own_turn().await;
            upstream.kubelet.wrote();
            upstream.kubelets_turn().await;
            assert!(!upstream.is_own_turn());
            if adopted {
                adopt(&upstream).await;
            }
            upstream.kubelet.wrote();
            advance(GONE_AFTER).await;
            assert_eq!(upstream.is_own_turn(), speaks, "simulates: {simulate}, a kubelet's node: {adopted}");
            if speaks {
                upstream.own_turn().await;
            }
        }
    }
}
