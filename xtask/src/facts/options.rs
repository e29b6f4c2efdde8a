//! The arguments of the generator, and its requests to the server.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

/// Where the facts come from and where they are written. The columns are written beside `--out`, the objects beside
/// `--descriptions`.
#[derive(Args)]
pub(crate) struct FactsOptions {
    /// URL of the API server. It must have a Deployment.
    #[arg(long)]
    server: String,

    /// Bearer token for the server.
    #[arg(long, default_value = "")]
    token: String,

    /// The kubectl program.
    #[arg(long, default_value = "kubectl")]
    kubectl: String,

    /// The `k8s.io` folder of a Go module cache; by default that of this user.
    #[arg(long)]
    sources: Option<PathBuf>,

    /// File of the kinds and types.
    #[arg(long, default_value = "apiserver/core/data/builtin.txt")]
    pub(super) out: PathBuf,

    /// File of the descriptions.
    #[arg(long, default_value = "apiserver/control/data/descriptions.gz")]
    pub(super) descriptions: PathBuf,

    /// File of the tags of declarative validation.
    #[arg(long, default_value = "apiserver/catalog/data/tags.txt")]
    pub(super) tags: PathBuf,

    /// Only compare the files with the facts.
    #[arg(long)]
    pub(super) check: bool,
}

impl FactsOptions {
    /// The folder with the Go modules of Kubernetes.
    pub(super) fn sources(&self) -> PathBuf {
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
        self.sources.clone().unwrap_or_else(|| home().join("go/pkg/mod/k8s.io"))
    }

    /// A list as a Table. kubectl requests Tables only to print them, so this uses curl.
    pub(super) fn get_table(&self, path: &str) -> Result<Value> {
        let output = Command::new("curl")
            .args([
                "--silent",
                "--insecure",
                "--fail",
                "--header",
                &format!("Authorization: Bearer {}", self.token),
            ])
            .args(["--header", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"])
            .arg(format!("{}{path}", self.server))
            .output()
            .context("starting curl")?;
        if !output.status.success() {
            bail!("curl {path}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("{path} is not JSON"))
    }

    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let output = Command::new(&self.kubectl)
            .arg(format!("--server={}", self.server))
            .arg("--insecure-skip-tls-verify=true")
            .args((!self.token.is_empty()).then(|| format!("--token={}", self.token)))
            .args(["get", "--raw", path])
            .output()
            .with_context(|| format!("starting {}", self.kubectl))?;
        if !output.status.success() {
            bail!("kubectl get --raw {path}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("{path} is not JSON"))
    }
}
