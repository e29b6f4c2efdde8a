//! How many calls are under way to the API server at a time, by what they are for.
//!
//! A fleet that comes back asks for everything in the same second. What keeps nodes alive must not wait behind it: each
//! class of calls has places of its own, and none of them can take another one's.

use http::Method;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, SemaphorePermit};
use tombolo_apiserve::query::path::{Target, target};

use super::ApiCall;
use crate::metrics::Label;

/// Leases, and what nodes write of themselves and of their pods.
const REPORTS_MAX: usize = 128;

/// Reviews of rights, tokens, reads of single objects, and all other writes.
const READS_MAX: usize = 96;

/// Lists, events, and the large documents about the API. Twice what one node may have under way, so that one alone
/// cannot take all places.
const BULK_MAX: usize = 32;

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Report,
    Read,
    Bulk,
}

impl Class {
    const ALL: [Self; 3] = [Self::Report, Self::Read, Self::Bulk];

    pub(super) fn of(call: &ApiCall) -> Self {
        let reads = call.method == Method::GET;
        match target(call.path()) {
            Target::Resource(path) if path.resource == "leases" => Self::Report,
            Target::Resource(path) if path.resource == "events" => Self::Bulk,
            Target::Resource(path) if reads && path.name.is_none() => Self::Bulk,
            Target::Resource(path) => {
                let own = path.group.is_empty() && matches!(&*path.resource, "nodes" | "pods");
                if own && !reads { Self::Report } else { Self::Read }
            }
            Target::Other if call.path().starts_with("/openapi") => Self::Bulk,
            Target::Other | Target::Incomplete => Self::Read,
        }
    }

    fn label(self) -> Label {
        let kind = match self {
            Self::Report => "report",
            Self::Read => "read",
            Self::Bulk => "bulk",
        };
        Label { kind }
    }
}

/// The places of one cloudcore.
#[derive(Debug)]
pub(super) struct Gate {
    lanes: [Lane; 3],
    calls: Family<Label, Counter>,
    running: Family<Label, Gauge>,
    waiting: Family<Label, Gauge>,
}

#[derive(Debug)]
struct Lane {
    places: Semaphore,
    calls: Counter,
    running: Gauge,
    waiting: Gauge,
}

/// A place that a call has until it is answered or given up.
pub(super) struct Place<'a> {
    _running: Counted<'a>,
    _permit: Option<SemaphorePermit<'a>>,
}

/// One more in a gauge, for as long as this lives.
struct Counted<'a>(&'a Gauge);

impl<'a> Counted<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Default for Gate {
    fn default() -> Self {
        let (calls, running, waiting) = <(Family<_, Counter>, Family<_, Gauge>, Family<_, Gauge>)>::default();
        let lane = |class: Class, places| {
            let label = class.label();
            Lane {
                places: Semaphore::new(places),
                calls: calls.get_or_create(&label).clone(),
                running: running.get_or_create(&label).clone(),
                waiting: waiting.get_or_create(&label).clone(),
            }
        };
        let [report, read, bulk] = Class::ALL;
        let lanes = [lane(report, REPORTS_MAX), lane(read, READS_MAX), lane(bulk, BULK_MAX)];
        Self { lanes, calls, running, waiting }
    }
}

impl Gate {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "api_calls",
            "Calls made to the API server, by what they are for",
            self.calls.clone(),
        );
        let text = "Calls to the API server that are under way";
        registry.register("api_calls_running", text, self.running.clone());
        let text = "Calls to the API server that wait for a place";
        registry.register("api_calls_waiting", text, self.waiting.clone());
    }

    /// Waits for a place. Fair within a class: who waits longest is next.
    pub(super) async fn enter(&self, class: Class) -> Place<'_> {
        let lane = match class {
            Class::Report => &self.lanes[0],
            Class::Read => &self.lanes[1],
            Class::Bulk => &self.lanes[2],
        };
        let waiting = Counted::new(&lane.waiting);
        // The semaphore is never closed.
        let permit = lane.places.acquire().await.ok();
        drop(waiting);
        lane.calls.inc();
        Place { _running: Counted::new(&lane.running), _permit: permit }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn calls_are_told_apart_by_what_they_are_for() {
        let class = |method: Method, path: &str| Class::of(&ApiCall { method, ..ApiCall::get(path) });
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        for (method, path, expected) in [
            (Method::PATCH, leases, Class::Report),
            (Method::GET, leases, Class::Report),
            (Method::PATCH, "/api/v1/nodes/n/status", Class::Report),
            (Method::POST, "/api/v1/nodes?fieldManager=kubelet", Class::Report),
            (Method::DELETE, "/api/v1/namespaces/d/pods/p", Class::Report),
            (Method::GET, "/api/v1/namespaces/d/pods/p", Class::Read),
            (Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews", Class::Read),
            (Method::POST, "/api/v1/namespaces/d/serviceaccounts/a/token", Class::Read),
            (Method::GET, "/api/v1", Class::Read),
            (Method::GET, "/api/v1/namespaces/d/pods?limit=5", Class::Bulk),
            (Method::POST, "/api/v1/namespaces/d/events", Class::Bulk),
            (Method::GET, "/openapi/v3/api/v1?hash=x", Class::Bulk),
        ] {
            assert_eq!(class(method.clone(), path), expected, "{method} {path}");
        }
    }

    #[test]
    fn no_class_takes_the_places_of_another_one() {
        let gate = Gate::default();
        let enter = |class| gate.enter(class).now_or_never();
        let bulk: Vec<_> = (0..BULK_MAX).map(|_| enter(Class::Bulk).expect("a place")).collect();
        assert!(enter(Class::Bulk).is_none(), "one more waits");
        let _report = enter(Class::Report).expect("reports do not wait for lists");
        assert!(enter(Class::Read).is_some() && gate.lanes[0].running.get() == 1);
        assert_eq!(
            (gate.lanes[2].running.get(), gate.lanes[2].waiting.get()),
            (i64::try_from(BULK_MAX).unwrap(), 0)
        );
        drop(bulk);
        assert!(enter(Class::Bulk).is_some(), "the places are free again");
    }
}
