//! Metrics of the controllers of the application grid.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tombolo_grid::name::ChildKind;

use crate::metrics::Label;

/// Handles of the metrics. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    leading: Gauge,
    passes: Family<Label, Counter>,
    failed: Family<Label, Counter>,
    seconds: Histogram,
    /// Writes to the API.
    pub(super) writes: Counter,
}

/// Reports that this process leads, until dropped.
pub(super) struct Leading(Gauge);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

impl Metrics {
    /// Makes the metrics and registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            leading: Gauge::default(),
            passes: Family::default(),
            failed: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            writes: Counter::default(),
        };
        let own = registry.sub_registry_with_prefix("tombolo_cloud");
        own.register(
            "grid_leading",
            "Whether this process runs the grid controllers",
            metrics.leading.clone(),
        );
        own.register("grid_passes", "Reconcile passes over grids, by kind", metrics.passes.clone());
        own.register("grid_failed_passes", "Reconcile passes that failed, by kind", metrics.failed.clone());
        own.register("grid_pass_seconds", "Seconds per reconcile pass over a grid", metrics.seconds.clone());
        own.register("grid_writes", "Writes to the API by the grid controllers", metrics.writes.clone());
        metrics
    }

    pub(super) fn lead(&self) -> Leading {
        self.leading.set(1);
        Leading(self.leading.clone())
    }

    pub(super) fn passed(&self, kind: ChildKind, time: Duration, is_good: bool) {
        let label = Label { kind: kind.grid_kind() };
        self.passes.get_or_create(&label).inc();
        if !is_good {
            self.failed.get_or_create(&label).inc();
        }
        self.seconds.observe(time.as_secs_f64());
    }
}
