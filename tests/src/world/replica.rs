//! A second cloudcore on the same cluster.

use anyhow::{Result, ensure};
use tombolo_testkit::Child;

use super::{CloudPorts, World};

/// The second cloudcore. Its ports and data outlive its process.
#[derive(Debug)]
pub(super) struct Replica {
    ports: CloudPorts,
    process: Option<Child>,
}

impl World {
    /// Starts the second cloudcore (again) and waits until it is ready. Returns its WebSocket port.
    ///
    /// # Errors
    /// When the world has an embedded API, which only its own cloudcore serves; or see [`World::start_cloud`].
    pub async fn start_replica(&mut self) -> Result<u16> {
        ensure!(self.plane.is_some(), "replicas need a cluster");
        let ports = self.replica.as_ref().map_or_else(CloudPorts::free, |replica| Ok(replica.ports))?;
        let data = self.folder.path().join("cloud-2");
        let process = Some(self.run_cloud("cloudcore-2", ports, &data).await?);
        self.replica = Some(Replica { ports, process });
        Ok(ports.websocket)
    }

    /// Kills the second cloudcore: SIGKILL, nothing is drained.
    pub fn kill_replica(&mut self) {
        if let Some(replica) = &mut self.replica {
            replica.process = None;
        }
    }
}
