//! The embedded API server of a world without a control plane.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use tombolo_testkit::{Child, wait_for_value};

use super::{Api, DEADLINE, World, allocate_as_deployed, binary, limitable};

impl World {
    /// Starts the embedded API server, and waits until it answers.
    pub(super) async fn run_server(&self) -> Result<Child> {
        let address = format!("127.0.0.1:{}", self.ports.embedded);
        let mut command = limitable(&binary("tombolo")?);
        allocate_as_deployed(&mut command).arg("apiserver").args(["--listen", &address]).arg("--data-dir");
        let mut server = Child::spawn("apiserver", self.folder.path(), command.arg(self.cloud_dir()))?;
        let kubeconfig = self.kubeconfig();
        let _connected = wait_for_value("the embedded API server", DEADLINE, || {
            let ended = server.check_running();
            let (kubeconfig, address) = (kubeconfig.clone(), address.clone());
            async move {
                // Waiting longer would not help.
                assert!(ended.is_ok(), "{ended:?}");
                fs::metadata(kubeconfig).map_err(|error| error.to_string())?;
                tokio::net::TcpStream::connect(address).await.map_err(|error| error.to_string())
            }
        })
        .await;
        Ok(server)
    }

    /// Process id of the embedded API server, while it runs.
    #[must_use]
    pub fn server_id(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// The kubeconfig that cloudcore uses.
    pub(super) fn cloud_kubeconfig(&self) -> PathBuf {
        match self.api {
            Api::Embedded => self.kubeconfig(),
            Api::Real | Api::RealLegacy => self.folder.path().join("cloudcore.kubeconfig"),
        }
    }
}
