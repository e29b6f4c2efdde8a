//! `/metrics` and `/metrics/slis` of the API port: number and duration of requests by kind, with the names of
//! kube-apiserver's metrics.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, header};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Metrics;
use tombolo_apicore::api::Activity;
use tombolo_apicore::api::builder::{Builder, Check, Route};
use tombolo_apicore::auth::{Attributes, Observation, Observer};
use tombolo_apicore::body::{self, Body};
use tombolo_apicore::memory::Held;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::status::ApiError;
use tombolo_proto::object::Resource;

use super::flows::Flows;
use super::objects::Objects;

const PATH: &str = "/metrics";

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of series of one metric: definitions with new names come and go. Further requests are counted without
/// their resource.
const SERIES_MAX: usize = 5000;

/// Upper ends of the histogram's buckets, in seconds (a coarser choice of kube-apiserver's).
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    #[prometheus(flatten)]
    request: Labels,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PriorityLevelLabels {
    priority_level: String,
}

/// Counts requests and serves the metrics.
pub(super) struct RequestMetrics {
    registry: Registry,
    metrics: Metrics,
    requests: Family<ResponseLabels, Counter>,
    durations: Family<Labels, Histogram>,
    stored: Gauge,
    seats: Family<PriorityLevelLabels, Gauge>,
    activity: Vec<(Gauge, Shown)>,
    look: OnceLock<Box<dyn Fn() -> Activity + Send + Sync>>,
    objects: Objects,
    flows: Flows,
    checks: Vec<Arc<dyn Check>>,
    series: AtomicUsize,
}

impl RequestMetrics {
    /// Uses this registry for resources and these checks for health.
    pub(super) fn new(
        registry: Registry,
        objects: Objects,
        flows: Flows,
        checks: Vec<Arc<dyn Check>>,
    ) -> Self {
        let mut metrics = Metrics::default();
        let requests = Family::default();
        metrics.register("apiserver_request", "Requests that were answered", requests.clone());
        let durations: Family<Labels, Histogram> = Family::new_with_constructor(|| Histogram::new(BUCKETS));
        let help = "Time from the head of a request to that of its response; for a watch, until it starts";
        metrics.register("apiserver_request_duration_seconds", help, durations.clone());
        let stored = Gauge::default();
        metrics.register("apiserver_storage_objects", "Objects in the store", stored.clone());
        let seats = Family::default();
        let help =
            "Nominal number of concurrent requests of a priority level by its shares; it is not enforced";
        metrics.register("apiserver_flowcontrol_nominal_limit_seats", help, seats.clone());
        let activity = activity(&mut metrics);
        let (series, look) = (AtomicUsize::new(0), OnceLock::new());
        Self {
            registry,
            metrics,
            requests,
            durations,
            stored,
            seats,
            activity,
            look,
            objects,
            flows,
            checks,
            series,
        }
    }

    /// Adds the request counters and the metrics paths to a server.
    pub(super) fn add(self: &Arc<Self>, builder: Builder) -> Builder {
        // This is called only once.
        let _ = self.look.set(Box::new(builder.activity()));
        builder.observer(Arc::clone(self) as _).route(PATH, Arc::clone(self) as _)
    }

    /// The labels of a request. Resource names that are not served get no label.
    fn labels(&self, asked: &Attributes) -> Labels {
        let resource = Resource::new(&asked.group, &asked.version, &asked.resource);
        let catalog = self.registry.catalog();
        let kind = catalog.kinds.get(&resource).filter(|_| asked.is_resource);
        let room = self.series.load(Ordering::Relaxed) < SERIES_MAX;
        let known = kind.filter(|_| room);
        let named = |text: &str| if known.is_some() { text.to_owned() } else { String::new() };
        let subresource = known.is_some_and(|kind| kind.has_subresource(&asked.subresource));
        Labels {
            verb: verb(asked),
            group: named(&asked.group),
            version: named(&asked.version),
            resource: named(&asked.resource),
            subresource: if subresource { asked.subresource.clone() } else { String::new() },
            scope: scope(asked),
            component: "apiserver",
        }
    }

    fn text(&self) -> String {
        self.stored.set(i64::try_from(self.objects.store().object_count()).unwrap_or(i64::MAX));
        let activity = self.look.get().map(|look| look()).unwrap_or_default();
        let store = self.objects.store();
        let used = StoreUse { size: store.size(), held: store.held() };
        for (gauge, shown) in &self.activity {
            gauge.set(i64::try_from(shown(&activity, &used)).unwrap_or(i64::MAX));
        }
        // Removed levels must not keep their series.
        self.seats.clear();
        for (priority_level, seats) in self.flows.nominal_seats().into_iter().take(SERIES_MAX) {
            self.seats.get_or_create(&PriorityLevelLabels { priority_level }).set(seats);
        }
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.metrics);
        text
    }

    /// The current result of each health check.
    fn slis(&self) -> String {
        let mut text = String::from("# HELP kubernetes_healthcheck Whether a health check passes.\n");
        text.push_str("# TYPE kubernetes_healthcheck gauge\n");
        for check in &self.checks {
            let (name, holds) = (check.name(), u8::from(check.check().is_ok()));
            let kinds: &[&str] =
                if check.is_vital() { &["healthz", "livez", "readyz"] } else { &["healthz", "readyz"] };
            for kind in kinds {
                // Writing into a string cannot fail.
                let _ = writeln!(text, "kubernetes_healthcheck{{name=\"{name}\",type=\"{kind}\"}} {holds}");
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

/// Memory and size of the store.
struct StoreUse {
    /// The result of [`MemoryStore::size`](tombolo_apicore::memory::MemoryStore::size).
    size: (u64, u64),
    held: Held,
}

/// Computes one number from the server's activity and the use of its store.
type Shown = fn(&Activity, &StoreUse) -> u64;

/// Metrics about limits and their current use.
const ACTIVITY: [(&str, &str, Shown); 13] = [
    ("apiserver_storage_size_bytes", "Bytes of objects in the store", |_, used| used.size.0),
    ("apiserver_storage_size_limit_bytes", "Maximum bytes of objects in the store", |_, used| used.size.1),
    (
        "apiserver_storage_resident_bytes",
        "Bytes of memory of the bodies of objects, most of them compressed",
        |_, used| used.held.objects,
    ),
    (
        "apiserver_watch_history_resident_bytes",
        "Bytes of memory of older versions of objects, kept for watches and lists",
        |_, used| used.held.history,
    ),
    ("apiserver_current_inflight_requests", "Requests that are being answered", |now, _| now.requests as u64),
    ("apiserver_current_watches", "Watches", |now, _| now.watches as u64),
    ("apiserver_current_answers_bytes", "Bytes of answers that are being sent", |now, _| {
        now.answers_len as u64
    }),
    ("apiserver_current_bodies_bytes", "Bytes of bodies that were received", |now, _| now.bodies_len as u64),
    ("apiserver_current_connections", "Connections", |now, _| now.connections as u64),
    ("apiserver_current_unproven_connections", "Connections without authentication", |now, _| {
        now.unproven as u64
    }),
    (
        "apiserver_connections_made_room",
        "Unauthenticated connections that were closed to make room for others",
        |now, _| now.ended,
    ),
    (
        "apiserver_connections_refused",
        "Connections that were refused because the sender had too many",
        |now, _| now.crowded,
    ),
    (
        "apiserver_shares_refused",
        "Requests that were refused because a limit of their sender, or of all together, was reached",
        |now, _| now.refused,
    ),
];

fn activity(metrics: &mut Metrics) -> Vec<(Gauge, Shown)> {
    let gauge = |(name, help, shown): (&str, &str, Shown)| {
        let gauge = Gauge::default();
        metrics.register(name, help, gauge.clone());
        (gauge, shown)
    };
    ACTIVITY.map(gauge).into()
}

fn verb(asked: &Attributes) -> &'static str {
    match asked.verb.as_str() {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        _ => "other",
    }
}

fn scope(asked: &Attributes) -> &'static str {
    match asked {
        Attributes { is_resource: false, .. } => "",
        Attributes { name, .. } if !name.is_empty() => "resource",
        Attributes { namespace, .. } if !namespace.is_empty() => "namespace",
        _ => "cluster",
    }
}

impl Observer for RequestMetrics {
    fn observe(&self, observation: &Observation<'_>) {
        let request = self.labels(observation.attributes);
        let answer = ResponseLabels { request: request.clone(), code: observation.code };
        let requests = self.requests.get_or_create(&answer);
        if requests.inc() == 0 {
            self.series.fetch_add(1, Ordering::Relaxed);
        }
        drop(requests);
        self.durations.get_or_create(&request).observe(observation.duration.as_secs_f64());
    }
}

impl Route for RequestMetrics {
    fn call<'a>(
        &'a self,
        request: Request<Bytes>,
        _: &'a Attributes,
    ) -> BoxFuture<'a, Result<Response<Body>, ApiError>> {
        let text = match (request.method(), request.uri().path().trim_end_matches('/')) {
            (&Method::GET | &Method::HEAD, PATH) => Ok(self.text()),
            (&Method::GET | &Method::HEAD, "/metrics/slis") => Ok(self.slis()),
            (&Method::GET | &Method::HEAD, _) => Err(ApiError::no_such_path()),
            _ => Err(ApiError::method_not_allowed()),
        };
        let response = text.map(|text| {
            let mut response = Response::new(body::full(Bytes::from(text)));
            let media_type = header::HeaderValue::from_static(MEDIA_TYPE);
            response.headers_mut().insert(header::CONTENT_TYPE, media_type);
            response
        });
        Box::pin(std::future::ready(response))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    fn asked(resource: &str, name: &str) -> Attributes {
        Attributes {
            verb: "get".into(),
            version: "v1".into(),
            resource: resource.into(),
            name: name.into(),
            namespace: "shop".into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    #[test]
    fn request_metrics_have_only_known_labels() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let metrics = RequestMetrics::new(
            Registry::new(tombolo_catalog::kinds()),
            objects,
            Flows::default(),
            Vec::new(),
        );
        let duration = Duration::from_millis(3);
        for (resource, code) in [("pods", 200), ("pods", 200), ("made-up", 404), ("made-up-2", 404)] {
            let attributes = asked(resource, "a");
            metrics.observe(&Observation { attributes: &attributes, code, duration });
        }
        let text = metrics.text();
        let line = "apiserver_request_total{verb=\"GET\",group=\"\",version=\"v1\",resource=\"pods\",subresource=\"\",\
                    scope=\"resource\",component=\"apiserver\",code=\"200\"} 2";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("made-up"), "{text}");
        assert!(text.contains("code=\"404\"} 2") && text.contains("le=\"0.005\""), "{text}");
        assert_eq!(metrics.series.load(Ordering::Relaxed), 2);
    }
}
