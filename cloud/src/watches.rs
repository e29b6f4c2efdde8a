//! The four watches of cloudcore, started in the order in which they need each other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch as channel;
use tokio::task::AbortHandle;

use crate::edgecontroller::{Input, Kind};
use crate::hub::Hub;
use crate::kube::{Kube, ObjectEvent, WatchSpec, watch};
use crate::metrics::Label;

/// Running watches; they end when this is dropped.
pub(crate) struct Watches(Vec<AbortHandle>);

impl Watches {
    /// Ends the watches; none of them tells anything after this.
    pub(crate) async fn stop(self) {
        for task in &self.0 {
            task.abort();
        }
        while !self.0.iter().all(AbortHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// Starts the watches. Pods are read once the edge nodes are known, ConfigMaps and Secrets once the references of
/// their pods are: so the first lists answer what would otherwise be single reads, and nothing that is needed passes
/// by unseen.
pub(crate) fn start(kube: &Kube, hub: &Arc<Hub>) -> Watches {
    let (nodes_listed, nodes) = channel::channel(false);
    let (pods_listed, pods) = channel::channel(false);
    let (done, _) = channel::channel(false);
    let (none, start) = channel::channel(true);
    drop(none);
    let plan = [
        (Kind::Node, start, nodes_listed),
        (Kind::Pod, nodes, pods_listed),
        (Kind::ConfigMap, pods.clone(), done.clone()),
        (Kind::Secret, pods, done),
    ];
    let spawn = |(kind, after, listed): (Kind, channel::Receiver<bool>, channel::Sender<bool>)| {
        let work = follow(kube.clone(), Arc::clone(hub), Order { kind, after, listed });
        hub.tasks.spawn_isolated(format!("watch of {}s", kind.name()), work)
    };
    Watches(plan.into_iter().map(spawn).collect())
}

struct Order {
    kind: Kind,
    /// Becomes true when this watch may start.
    after: channel::Receiver<bool>,
    /// Made true by this watch's first complete list.
    listed: channel::Sender<bool>,
}

async fn follow(kube: Kube, hub: Arc<Hub>, mut order: Order) {
    let kind = order.kind;
    // An error means that the earlier watch is gone, and with it the whole set.
    if order.after.wait_for(|ready| *ready).await.is_err() {
        return;
    }
    let mut spec = WatchSpec::all(kind.resource());
    spec.kind = kind.name().to_owned();
    if kind == Kind::Pod {
        spec = spec.fields("spec.nodeName!=");
    }
    let into = |event: ObjectEvent| {
        if matches!(event, ObjectEvent::RelistEnd) {
            order.listed.send_replace(true);
        }
        Input::Watched(kind, event)
    };
    let failed = |error: &kube::runtime::watcher::Error| {
        hub.down.sightings().suspect();
        hub.metrics.watch_failures.get_or_create(&Label { kind: kind.name() }).inc();
        tracing::warn!(kind = kind.name(), %error, "watch failed; trying again");
    };
    watch(kube.client().clone(), spec, hub.inputs.clone(), into, failed).await;
}
