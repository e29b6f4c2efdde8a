//! The four watches of cloudcore, started in the order of their dependencies.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch as channel};
use tokio::task::AbortHandle;

use crate::config::WatchEvents;
use crate::edgecontroller::{INPUTS_MAX, Input, Kind};
use crate::hub::{Hub, NO_LEDGERS};
use crate::kube::{Kube, ObjectEvent, WatchError, WatchSpec, watch};
use crate::metrics::Label;

/// Running watches; they end when this is dropped.
#[derive(Default)]
pub(crate) struct Watches(Vec<AbortHandle>);

impl Watches {
    /// Ends the watches; none of them emits an event after this.
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

/// Starts the watches. Pods are read once the edge nodes are known, ConfigMaps and Secrets once the references of the
/// pods are known. So the first lists replace many single reads, and no needed object is missed. `events` bounds the
/// pending events of each watch.
pub(crate) fn start(kube: &Kube, hub: &Arc<Hub>, events: WatchEvents) -> Watches {
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
        let waiting = match kind {
            Kind::Node => None,
            Kind::Pod => events.pod,
            Kind::ConfigMap => events.config_map,
            Kind::Secret => events.secret,
        };
        let work = follow(kube.clone(), Arc::clone(hub), WatchSetup { kind, after, listed, waiting });
        hub.tasks.spawn_isolated(format!("watch of {}s", kind.name()), work)
    };
    Watches(plan.into_iter().map(spawn).collect())
}

struct WatchSetup {
    kind: Kind,
    /// Becomes true when this watch may start.
    after: channel::Receiver<bool>,
    /// Set to true by this watch's first complete list.
    listed: channel::Sender<bool>,
    /// Maximum number of events of this watch that wait for the controller, in addition to the bound for all watches.
    /// `None` means no bound of its own.
    waiting: Option<NonZeroU32>,
}

async fn follow(kube: Kube, hub: Arc<Hub>, mut setup: WatchSetup) {
    let kind = setup.kind;
    // An error means that the earlier watch has ended, and with it the whole set.
    if setup.after.wait_for(|ready| *ready).await.is_err() {
        return;
    }
    let mut spec = WatchSpec::all(kind.resource());
    if kind == Kind::Pod {
        spec = spec.fields("spec.nodeName!=");
    }
    if kind == Kind::ConfigMap {
        // The ledgers of KubeEdge edges are not needed here, and there is one for each edge.
        spec.label_selector = NO_LEDGERS.to_owned();
    }
    let into = |event: ObjectEvent| {
        if matches!(event, ObjectEvent::RelistEnd) {
            setup.listed.send_replace(true);
        }
        Input::Watched(kind, event, None)
    };
    let failed = |error: &WatchError| {
        hub.down.observed_versions().suspect();
        hub.metrics.watch_failures.get_or_create(&Label { kind: kind.name() }).inc();
        tracing::warn!(kind = kind.name(), %error, "watch failed; trying again");
    };
    let Some(waiting) = setup.waiting else {
        return watch(kube, spec, hub.inputs.clone(), into, failed).await;
    };
    let permits = usize::try_from(waiting.get()).unwrap_or(usize::MAX).min(INPUTS_MAX);
    let (events, next) = mpsc::channel(1);
    tokio::join!(watch(kube, spec, events, into, failed), forward(next, permits, &hub.inputs));
}

/// Forwards events, with at most `permits` that the controller has not taken yet.
async fn forward(mut next: mpsc::Receiver<Input>, permits: usize, inputs: &mpsc::Sender<Input>) {
    let permits = Arc::new(Semaphore::new(permits));
    while let Some(input) = next.recv().await {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Input::Watched(kind, event, _) = input else { continue };
        // The controller ends only with the process.
        if inputs.send(Input::Watched(kind, event, Some(permit))).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn queued_events_of_a_watch_are_bounded() {
        let (events, next) = mpsc::channel(1);
        let (inputs, mut queue) = mpsc::channel(INPUTS_MAX);
        let forwarding = tokio::spawn(async move { forward(next, 2, &inputs).await });
        let event = || Input::Watched(Kind::Pod, ObjectEvent::RelistEnd, None);
        let telling = tokio::spawn(async move {
            for _ in 0..8 {
                events.send(event()).await.expect("somebody listens");
            }
        });
        for taken in 0..8 {
            let input = queue.recv().await.expect("an event");
            // All tasks are blocked once both permits are taken or all events have arrived.
            while queue.len() < 1.min(7 - taken) {
                tokio::task::yield_now().await;
            }
            assert!(queue.len() <= 1, "{} wait beside the one that is being processed", queue.len());
            drop(input);
        }
        telling.await.expect("all told");
        assert!(queue.recv().now_or_never().is_none_or(|rest| rest.is_none()));
        forwarding.await.expect("the watch has ended");
    }
}
