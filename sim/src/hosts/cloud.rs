//! A replica of cloudcore.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_cloud::simulation::SimulatedCloud;
use tombolo_cloud::{Config, Kube};

use super::cluster::{Cluster, bare_client_of, client_of};
use super::process::{Process, Processes, WallClock};
use crate::network::Network;
use crate::observation::Seen;

/// User of every cloudcore.
const CLOUD_USER: &str = "system:serviceaccount:kubeedge:cloudcore";

/// User of requests that carry no token.
const NOBODY: &str = "system:anonymous";

/// A program that ends by itself is started again after this time.
pub(super) const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The host of a replica. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct CloudHost {
    pub(super) replica: u32,
    pub(super) clock: WallClock,
    running: Arc<Mutex<Option<Process>>>,
    /// Folder of its files, which survive it.
    folder: PathBuf,
}

impl CloudHost {
    pub(super) fn new(replica: u32, folder: PathBuf) -> Self {
        Self { replica, clock: WallClock::default(), running: Arc::default(), folder }
    }

    /// Starts the program. It is started again when it ends by itself.
    pub(super) fn start(&self, processes: &Processes, cluster: &Cluster, network: &Network) {
        let process = processes.start(&self.clock);
        *self.running.lock() = Some(process.clone());
        let config = Config { data_dir: self.folder.clone(), ..Config::default() };
        let own = cluster.api.client_as(&client_of(self.replica), CLOUD_USER);
        let bare = cluster.api.client_as(&bare_client_of(self.replica), NOBODY);
        let (kube, network, replica) = (Kube::simulated(own, bare), network.clone(), self.replica);
        let journal = processes.journal.clone();
        process.host.spawn(async move {
            let cloud = loop {
                match SimulatedCloud::start(config.clone(), kube.clone()).await {
                    Ok(cloud) => break cloud,
                    Err(error) => journal.note(&format!("replica-{replica}  ends by itself: {error}")),
                }
                tokio::time::sleep(RESTART_PAUSE).await;
            };
            let mut arrivals = network.listen(replica);
            loop {
                tokio::select! {
                    biased;
                    error = cloud.failed() => {
                        journal.defect(&format!("replica-{replica}: {error}"));
                        return;
                    }
                    Some(arrival) = arrivals.recv() => cloud.accept(arrival),
                }
            }
        });
    }

    /// The running program.
    pub(super) fn process(&self) -> Option<Process> {
        self.running.lock().clone()
    }

    /// Kills the program, if it runs.
    pub(super) fn kill(&self, processes: &Processes) -> Option<Process> {
        let process = self.running.lock().take()?;
        process.host.kill();
        processes.journal.see(Seen::ReplicaDown { replica: self.replica });
        Some(process)
    }
}
