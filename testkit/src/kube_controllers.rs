//! kube-controller-manager and kube-scheduler, started beside any API server.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use crate::components::Components;
use crate::process::{Child, free_port};

/// Content type that stock components use by default.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Content type of servers that support only JSON.
pub const JSON: &str = "application/json";

/// An API server, described for the components that are started beside it.
#[derive(Debug, Clone)]
pub struct KubeControllers {
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Folder with `ca.crt` and `sa.key`, and with `ca.key` when [`Self::signs`] is set.
    pub keys: PathBuf,
    /// Folder for logs, settings and certificates.
    pub folder: PathBuf,
    /// Content type of requests to the API server: [`PROTOBUF`] or [`JSON`].
    pub content_type: &'static str,
    /// Whether kube-controller-manager signs certificates; false where the API server signs them itself.
    pub signs: bool,
    /// Whether kube-controller-manager elects a leader. The embedded server detects it by its Lease.
    pub elects: bool,
}

impl KubeControllers {
    /// Starts kube-controller-manager.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_controllers(&self, binaries: &Components) -> Result<Child> {
        let key = |name: &str| self.keys.join(name).display().to_string();
        let mut command = Command::new(binaries.binary("kube-controller-manager"));
        command.args([
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--kube-api-content-type={}", self.content_type),
            format!("--service-account-private-key-file={}", key("sa.key")),
            format!("--root-ca-file={}", key("ca.crt")),
            "--use-service-account-credentials".to_owned(),
            format!("--leader-elect={}", self.elects),
            // This controller would write to every Node at a moment that no test can wait for.
            "--controllers=*,-ttl-controller".to_owned(),
            format!("--secure-port={}", free_port()?),
            format!("--cert-dir={}", self.folder.join("controller-certificates").display()),
            "--bind-address=127.0.0.1".to_owned(),
        ]);
        if self.signs {
            command.arg(format!("--cluster-signing-cert-file={}", key("ca.crt")));
            command.arg(format!("--cluster-signing-key-file={}", key("ca.key")));
        }
        Child::spawn("kube-controller-manager", &self.folder, &mut command)
    }

    /// Starts kube-scheduler.
    ///
    /// # Errors
    /// Its settings cannot be written or it cannot be started.
    pub fn start_scheduler(&self, binaries: &Components) -> Result<Child> {
        // The content type can only be set in a file.
        let settings = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": self.kubeconfig, "contentType": self.content_type},
            "leaderElection": {"leaderElect": false},
        });
        let file = self.folder.join("kube-scheduler.json");
        fs::write(&file, settings.to_string()).with_context(|| format!("write {}", file.display()))?;
        let mut command = Command::new(binaries.binary("kube-scheduler"));
        command.args([
            format!("--config={}", file.display()),
            format!("--secure-port={}", free_port()?),
            format!("--cert-dir={}", self.folder.join("scheduler-certificates").display()),
            "--bind-address=127.0.0.1".to_owned(),
        ]);
        Child::spawn("kube-scheduler", &self.folder, &mut command)
    }
}
