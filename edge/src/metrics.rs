//! Metrics of one agent.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics of the agent.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Attempts to connect to the cloud.
    pub(crate) dials: Counter,
    /// Sessions that the cloud has accepted.
    pub(crate) sessions: Counter,
    /// Whether the agent is connected to the cloud.
    pub(crate) online: Gauge,
    /// Deliveries received.
    pub(crate) deliveries: Counter,
    /// Objects that local clients see.
    pub(crate) objects: Gauge,
    /// Pods hidden until the objects they refer to arrive.
    pub(crate) pods_hidden: Gauge,
    /// Reports that wait for the cloud.
    pub(crate) reports_waiting: Gauge,
    /// Reports that the cloud has answered.
    pub(crate) reports_settled: Counter,
    /// Reports dropped because the cloud permanently refuses them.
    pub(crate) reports_dropped: Counter,
}

impl Metrics {
    /// Creates and registers all metrics.
    #[must_use]
    pub(crate) fn register(registry: &mut Registry) -> Arc<Self> {
        let metrics = Self::default();
        let edge = registry.sub_registry_with_prefix("tombolo_edge");
        edge.register("dials", "Attempts to connect to the cloud", metrics.dials.clone());
        edge.register("sessions", "Sessions that the cloud has accepted", metrics.sessions.clone());
        edge.register("online", "Whether the agent is connected to the cloud", metrics.online.clone());
        edge.register("deliveries", "Deliveries received", metrics.deliveries.clone());
        edge.register("objects", "Objects that local clients see", metrics.objects.clone());
        edge.register(
            "pods_hidden",
            "Pods hidden until the objects they refer to arrive",
            metrics.pods_hidden.clone(),
        );
        edge.register("reports_waiting", "Reports that wait for the cloud", metrics.reports_waiting.clone());
        edge.register(
            "reports_settled",
            "Reports that the cloud has answered",
            metrics.reports_settled.clone(),
        );
        edge.register(
            "reports_dropped",
            "Reports dropped because the cloud permanently refuses them",
            metrics.reports_dropped.clone(),
        );
        Arc::new(metrics)
    }
}
