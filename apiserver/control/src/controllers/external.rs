//! Whether a kube-controller-manager works on these objects. Controllers of this server that do the same work pause
//! while it runs, and start again from the beginning when it is gone.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::sync::watch;
use tombolo_proto::object::Resource;

use super::Context;
use crate::objects::{Objects, text, v1};

/// Namespace of the leases of external components.
const NAMESPACE: &str = "kube-system";

/// Names of the leases that components with leader election hold (Kubernetes default).
const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub(super) const SCHEDULER: &str = "kube-scheduler";

/// Default duration of a lease, in seconds (kube-controller-manager's default).
const LEASE_SECONDS: i64 = 15;

/// How often the lease is checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whether external controllers (those of a kube-controller-manager) run. This server's controllers that pause for them
/// are notified.
#[derive(Debug)]
pub(crate) struct ExternalControllers {
    at_work: watch::Sender<bool>,
    /// Whether they always run: they are started beside this server and use no leader election.
    always: bool,
}

impl ExternalControllers {
    /// With `always`, they count as running whatever the lease says. Otherwise the lease is checked now.
    pub(crate) fn new(objects: &Objects, always: bool) -> Self {
        let at_work = always || holds_lease(objects, CONTROLLER_MANAGER);
        Self { at_work: watch::Sender::new(at_work), always }
    }

    /// Runs a controller while the external controllers do not run. Its work may be interrupted between any two writes.
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

    /// Whether the external controllers run now.
    pub(crate) fn is_at_work(&self) -> bool {
        *self.at_work.borrow()
    }

    /// Whether they always run. kube-scheduler then runs as well.
    pub(super) fn is_always(&self) -> bool {
        self.always
    }
}

/// Follows the lease until the server stops.
pub(super) async fn run(context: &Context) {
    if context.external.always {
        return std::future::pending().await;
    }
    let mut round = tokio::time::interval(INTERVAL);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        let now = holds_lease(&context.objects, CONTROLLER_MANAGER);
        let changed = context.external.at_work.send_if_modified(|known| std::mem::replace(known, now) != now);
        if changed && now {
            tracing::info!("kube-controller-manager is running; controllers that do the same work pause");
        } else if changed {
            tracing::info!("kube-controller-manager is gone; this server's own controllers resume");
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

/// Whether a lease has a holder and has not expired. A renewal time in the future comes from another clock; such a
/// lease is held.
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
    async fn controller_pauses_for_an_external_one_and_resumes() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let external = ExternalControllers::new(&objects, true);
        let starts = Cell::new(0);
        let running = Cell::new(false);
        let controller = external.without(|| async {
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
            external.at_work.send_replace(at_work);
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

    /// Never ends, and records when it is dropped.
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
