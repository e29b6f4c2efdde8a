//! What the agent itself tells the cloud when no kubelet does: the Node object, its lease and status, the state of
//! delivered pods (`docs/edge-node.md` says exactly what is claimed), and the sending of everything that waits in
//! the outbox.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tombolo_proto::ids::NodeId;
use tombolo_runtime::Tasks;

use crate::config::NodeConfig;
use crate::hub::HubHandle;
use crate::metrics::Metrics;
use crate::store::Store;

mod node;
mod outbox;
mod pods;
mod status;

/// Time for one report to be answered.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Media type of Kubernetes' own patches.
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// What the reporting tasks share.
pub(crate) struct Upstream {
    pub(crate) node: NodeId,
    pub(crate) settings: NodeConfig,
    pub(crate) simulate_pods: bool,
    pub(crate) address: Option<IpAddr>,
    pub(crate) store: Store,
    pub(crate) hub: HubHandle,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) seed: u64,
}

impl Upstream {
    /// Starts the tasks. They run until `stop` is cancelled: what they have not sent waits in the outbox.
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

/// A time as Kubernetes writes it, to the second.
pub(crate) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time as Kubernetes writes it, to the microsecond.
fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
