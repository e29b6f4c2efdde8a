//! Metrics of the wrapper.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics.
#[derive(Debug, Default)]
pub struct WrapperMetrics {
    pub(super) objects: Gauge,
    pub(super) closed_services: Gauge,
    pub(super) left_out: Gauge,
    pub(super) unreadable: Counter,
}

impl WrapperMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Arc<Self> {
        let metrics = Self::default();
        let edge = registry.sub_registry_with_prefix("tombolo_edge");
        edge.register("wrapper_objects", "Objects that the wrapper shows", metrics.objects.clone());
        edge.register(
            "wrapper_closed_services",
            "Services of grids that have no endpoints here because their topologyKeys are invalid",
            metrics.closed_services.clone(),
        );
        edge.register(
            "wrapper_left_out_namespaces",
            "Namespaces that are left out because all namespaces together do not fit",
            metrics.left_out.clone(),
        );
        edge.register(
            "wrapper_unreadable",
            "Objects that were not shown because they are invalid",
            metrics.unreadable.clone(),
        );
        Arc::new(metrics)
    }
}
