//! cloudcore without listeners and certificates, for programs that simulate the whole system: everything behind the
//! admission of a connection is the product's own.
//!
//! Not here are the join port, certificates in force ([`crate::bootstrap`]) and the recorder.

use std::sync::Arc;

use tombolo_link::server::Arrival;
use tombolo_runtime::{Drain, Readiness, TaskError, Tasks};

use crate::app::{AppError, Guards, control_edges, control_grids, follow_cluster, hub};
use crate::attestation::Attester;
use crate::config::Config;
use crate::epoch::{Attestations, EpochKeeper};
use crate::grids;
use crate::hub::{ClusterLedgers, Hub};
use crate::kube::Kube;
use crate::objectsync;
use crate::startup_retry::Patience;

/// Secret that all simulated replicas share.
const SECRET: &[u8] = b"simulated";

/// A running cloudcore. Its tasks belong to the caller's [`TaskHost`](tombolo_runtime::TaskHost), and end with it.
pub struct SimulatedCloud {
    hub: Arc<Hub>,
    /// Bytes that all sessions together may take.
    session_bytes: usize,
    readiness: Readiness,
}

/// Memory that a cloudcore keeps for nodes, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetUse {
    /// Name of the budget.
    pub budget: &'static str,
    /// Bytes in use.
    pub used: usize,
    /// Bytes allowed.
    pub limit: usize,
}

impl SimulatedCloud {
    /// Starts a cloudcore as soon as its API server answers.
    ///
    /// # Errors
    /// [`AppError`] when the API server refuses what cloudcore needs.
    pub async fn start(config: Config, kube: Kube) -> Result<Self, AppError> {
        let mut patience = Patience::default();
        let established = || EpochKeeper::establish(kube.clone(), &config.namespace, &config.data_dir);
        let epoch = patience.wait_for(established).await?;
        let ledgers = ClusterLedgers::new(kube.clone(), &config.namespace);
        let of = epoch.epoch();
        patience.wait_for(|| objectsync::import(&kube, &ledgers, &config.namespace, &of)).await?;
        let (tasks, drain, readiness) = (Tasks::new(), Drain::never(), Readiness::new());
        let attester = Attester::new(SECRET).expect("the cryptography of this machine works");
        let attestations = Attestations::new(attester, epoch.epoch().cluster, epoch.progress());
        let of = (epoch.epoch(), attestations);
        let (hub, inputs, mut registry) = hub(&config, &kube, |upstream| upstream, of, &tasks, None);
        let metrics = grids::Metrics::register(&mut registry);
        control_edges(&hub, inputs, &kube, &config, Guards::new(&readiness));
        follow_cluster(&hub, epoch, &kube, &config, &drain);
        drop(control_grids(&tasks, &kube, &config, metrics, &drain));
        Ok(Self { hub, session_bytes: config.budgets.session_bytes, readiness })
    }

    /// Whether this replica has read the cluster and accepts connections, as a load balancer would ask.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    /// Takes over a connection.
    pub fn accept(&self, arrival: Arrival) {
        match arrival {
            Arrival::Tombolo(accepted) => self.hub.accept(accepted),
            Arrival::KubeEdge(accepted) => self.hub.accept_kubeedge(accepted),
        }
    }

    /// Completes when an essential task has failed, which ends the process of a real cloudcore.
    pub async fn failed(&self) -> TaskError {
        self.hub.tasks.failed().await
    }

    /// Budgets and their use.
    #[must_use]
    pub fn usage(&self) -> Vec<BudgetUse> {
        let (all, requests) = self.hub.registry.highest();
        let of = |budget, used, limit| BudgetUse { budget, used, limit };
        vec![
            of("sessions", self.hub.session_bytes.used(), self.session_bytes),
            of("node", all, crate::hub::NODE_BYTES_MAX),
            of("requests of a node", requests, crate::hub::NODE_REQUEST_BYTES_MAX),
        ]
    }
}

impl std::fmt::Debug for SimulatedCloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedCloud").field("ready", &self.is_ready()).finish_non_exhaustive()
    }
}
