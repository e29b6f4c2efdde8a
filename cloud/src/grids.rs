//! The controllers of the application grid: one workload per unit of nodes, and Services whose traffic stays inside
//! each unit (docs/reference/superedge.md#controllers).
//!
//! Pure functions in `tombolo_grid::reconcile` decide what to do; this module watches, writes, and reports.

pub mod api;
mod cache;
mod children;
mod controller;
mod definitions;
mod leader;
mod live;
mod metrics;
mod reconcile;
mod units;

use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tombolo_runtime::Drain;

use self::api::{DeploymentGrid, ServiceGrid, StatefulSetGrid};
use self::leader::Candidate;
pub use self::leader::LEASE;
pub use self::metrics::Metrics;

/// Field manager of everything that the controllers apply.
pub const MANAGER: &str = "tombolo-grid";

/// Settings of the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridSettings {
    /// Whether the controllers run in this process.
    pub enabled: bool,
    /// Whether the definitions are installed and maintained. Otherwise missing ones are only logged.
    pub install_definitions: bool,
    /// How long a unit's workload is kept after the unit has lost its last node.
    pub unit_grace: Duration,
}

impl Default for GridSettings {
    fn default() -> Self {
        Self { enabled: true, install_definitions: true, unit_grace: Duration::ZERO }
    }
}

/// Runs the controllers until the drain starts, whenever this process holds the Lease in the given namespace.
pub async fn run(
    client: Client,
    settings: GridSettings,
    (namespace, identity): (String, String),
    metrics: Metrics,
    drain: Drain,
) {
    let candidate = Candidate::new(client.clone(), &namespace, &identity);
    let work = || {
        let (client, metrics, identity) = (client.clone(), metrics.clone(), identity.clone());
        async move {
            let _leading = metrics.lead();
            let (ready, served) = watch::channel(false);
            let control = async {
                let mut served = served;
                // The sender lives as long as this future.
                let _ = served.wait_for(|served| *served).await;
                tokio::join!(
                    controller::run::<DeploymentGrid>(&client, settings, &identity, &metrics),
                    controller::run::<StatefulSetGrid>(&client, settings, &identity, &metrics),
                    controller::run::<ServiceGrid>(&client, settings, &identity, &metrics),
                );
            };
            tokio::join!(definitions::keep(&client, settings.install_definitions, &ready), control);
        }
    };
    leader::lead(candidate, drain, work).await;
}
