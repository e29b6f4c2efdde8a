//! Whether a kube-controller-manager works on these objects: controllers of this server that do the same stand aside
//! as long as it does, and take up their work from the beginning when it has gone.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::sync::watch;
use tombolo_proto::object::Resource;

use super::Context;
use crate::objects::{Objects, text, v1};

/// Namespace of the leases of stock components.
const NAMESPACE: &str = "kube-system";

/// Names of the leases that components with leader election hold (Kubernetes default).
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub(super) const SCHEDULER: &str = "kube-scheduler";

/// Life of a lease that does not say one, in seconds (kube-controller-manager's default).
const LEASE_SECONDS: i64 = 15;

/// How often the lease is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whether the stock controllers are at work, told to all who stand aside for them.
#[derive(Debug)]
pub(crate) struct Stock {
    at_work: watch::Sender<bool>,
    /// They are started beside this server and elect no leader.
    always: bool,
}

impl Stock {
    /// `always` says that they are there whatever the lease says; without it, the lease is looked at once.
    pub(crate) fn new(objects: &Objects, always: bool) -> Self {
        let at_work = always || holds_lease(objects, CONTROLLER_MANAGER);
        Self { at_work: watch::Sender::new(at_work), always }
    }

    /// Runs a controller whenever the stock ones are not at work. Its work may be cut off between any two writes.
    pub(super) async fn without<F: Future<Output = ()>>(&self, mut run: impl FnMut() -> F) {
        let mut at_work = self.at_work.subscribe();
        loop {
            // The sender lives as long as this call: waiting cannot fail.
            let _ = at_work.wait_for(|at_work| !at_work).await;
            tokio::select! {
                () = run() => return,
                _ = at_work.wait_for(|at_work| *at_work) => {}
            }
        }
    }

    /// Whether the stock controllers are at work now.
    pub(crate) fn is_at_work(&self) -> bool {
        *self.at_work.borrow()
    }

    /// Whether they were said to be there from the beginning; kube-scheduler is then there as well.
    pub(super) fn is_always(&self) -> bool {
        self.always
    }
}

/// Follows the lease until the server stops.
pub(super) async fn run(context: &Context) {
    if context.stock.always {
        return std::future::pending().await;
    }
    let mut round = tokio::time::interval(INTERVAL);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        let now = holds_lease(&context.objects, CONTROLLER_MANAGER);
        let changed = context.stock.at_work.send_if_modified(|known| std::mem::replace(known, now) != now);
        if changed && now {
            tracing::info!("kube-controller-manager is at work: controllers that do the same stand aside");
        } else if changed {
            tracing::info!("kube-controller-manager has gone: this server's own controllers work again");
        }
    }
}

fn leases() -> Resource {
    v1("coordination.k8s.io", "leases")
}

/// Whether the component with a lease of this name holds it now.
pub(super) fn holds_lease(objects: &Objects, name: &str) -> bool {
    let lease = objects.get(leases(), NAMESPACE, name);
    lease.is_some_and(|lease| is_held(&lease.value, Timestamp::now()))
}

/// Whether somebody holds a lease that has not run out. A lease of the future was written by another clock, and is held.
fn is_held(lease: &Value, now: Timestamp) -> bool {
    let seconds =
        lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_i64).unwrap_or(LEASE_SECONDS);
    let Ok(renewed) = text(lease, "/spec/renewTime").parse::<Timestamp>() else { return false };
    let until = renewed.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    !text(lease, "/spec/holderIdentity").is_empty() && now < until
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    #[test]
    fn a_lease_is_held_until_it_has_run_out() {
        let now: Timestamp = "2026-01-01T00:00:20Z".parse().unwrap();
        let lease = |holder: &str, renewed: &str, seconds: Value| {
            is_held(
                &json!({"spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": seconds}}),
                now,
            )
        };
        assert!(lease("a", "2026-01-01T00:00:06.000000Z", json!(15)));
        assert!(!lease("a", "2026-01-01T00:00:04.000000Z", json!(15)));
        assert!(!lease("", "2026-01-01T00:00:19Z", json!(15)), "released");
        assert!(lease("a", "2026-01-01T00:00:06Z", Value::Null));
        assert!(lease("a", "2026-01-01T01:00:00Z", json!(15)));
        assert!(lease("a", "2026-01-01T00:00:19Z", json!(i64::MAX)));
        assert!(!lease("a", "soon", json!(15)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_stands_aside_and_begins_again() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let stock = Stock::new(&objects, true);
        let starts = Cell::new(0);
        let running = Cell::new(false);
        let controller = stock.without(|| async {
            starts.set(starts.get() + 1);
            running.set(true);
            until_dropped(&running).await;
        });
        tokio::pin!(controller);
        let turns = async || {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        };
        let mut step = async |at_work: bool| {
            stock.at_work.send_replace(at_work);
            tokio::select! { biased; () = &mut controller => unreachable!("it never ends"), () = turns() => {} }
        };
        step(true).await;
        assert_eq!((starts.get(), running.get()), (0, false));
        step(false).await;
        assert_eq!((starts.get(), running.get()), (1, true));
        step(true).await;
        assert_eq!((starts.get(), running.get()), (1, false));
        step(false).await;
        assert_eq!((starts.get(), running.get()), (2, true));
    }

    /// Never ends, and says when it is dropped.
    async fn until_dropped(running: &Cell<bool>) {
        struct Guard<'a>(&'a Cell<bool>);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        let _guard = Guard(running);
        std::future::pending::<()>().await;
    }
}
