//! Stock kube-controller-manager and kube-scheduler beside the world's API.

use anyhow::Result;
use tombolo_testkit::{JSON, KubeControllers, components};

use super::World;

impl World {
    /// Starts (again) the components that do not run with the world anyway, so that workloads become pods and pods are
    /// bound.
    ///
    /// # Errors
    /// When the binaries are missing or cannot be started.
    pub fn start_workload_controllers(&mut self) -> Result<()> {
        if let Some(plane) = &mut self.plane {
            return plane.start_scheduler();
        }
        let binaries = components()?;
        let kube_controllers = KubeControllers {
            kubeconfig: self.kubeconfig(),
            keys: self.cloud_dir().join("pki"),
            folder: self.folder.path().to_owned(),
            content_type: JSON,
            // The embedded server signs the requests that it approves.
            signs: false,
            elects: true,
        };
        self.kube_controllers.clear();
        self.kube_controllers.push(kube_controllers.start_controllers(&binaries)?);
        self.kube_controllers.push(kube_controllers.start_scheduler(&binaries)?);
        Ok(())
    }
}
