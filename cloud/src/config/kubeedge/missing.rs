//! Modules of KubeEdge that a file may enable but that do not exist here.

use std::fmt;

use super::file::Modules;

/// A module that a file enables, explicitly or by default, but that does not exist here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingModule {
    /// Its name under `modules`.
    pub name: &'static str,
    /// What does not work without it.
    pub loss: &'static str,
}

/// All missing modules. `docs/migrating-from-kubeedge.md` shows this table.
pub(super) const MISSING: [MissingModule; 4] = [
    missing(
        "deviceController",
        "Devices and DeviceModels are not managed, and edges receive no devices from the cloud",
    ),
    missing("taskManager", "node upgrades, image pre-pulls and configuration updates are not carried out"),
    missing("cloudStream", "kubectl logs, exec and attach do not reach pods on edges"),
    missing("router", "Rules have no effect: no message is routed between cloud and edges"),
];

const fn missing(name: &'static str, loss: &'static str) -> MissingModule {
    MissingModule { name, loss }
}

impl fmt::Display for MissingModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.loss)
    }
}

/// The missing modules that are enabled. As in KubeEdge, an absent key has KubeEdge's default.
pub(super) fn of(modules: &Modules) -> Vec<MissingModule> {
    let is_enabled = |name: &str| match name {
        "deviceController" => modules.device_controller.enable,
        "taskManager" => modules.task_manager.enable,
        "cloudStream" => modules.cloud_stream.enable,
        "router" => modules.router.enable,
        _ => false,
    };
    MISSING.into_iter().filter(|module| is_enabled(module.name)).collect()
}
