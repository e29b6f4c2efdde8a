//! The arguments of the generator, and its requests to the server.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The known arguments, for error messages.
const KNOWN: &str = "known: --server --token --kubectl --sources --out --descriptions --tags --check";

/// Where the facts come from and where they are written.
pub(super) struct FactsOptions {
    server: String,
    token: String,
    kubectl: String,
    kubectl_args: Vec<String>,
    pub(super) sources: PathBuf,
    pub(super) out: PathBuf,
    pub(super) descriptions: PathBuf,
    pub(super) tags: PathBuf,
    /// Only compare the files with the facts.
    pub(super) check: bool,
}

impl FactsOptions {
    pub(super) fn parse(args: &[String]) -> Result<Self> {
        let home = std::env::var("HOME").unwrap_or_default();
        let mut options = Self {
            server: String::new(),
            token: String::new(),
            kubectl: "kubectl".to_owned(),
            kubectl_args: Vec::new(),
            sources: PathBuf::from(home).join("go/pkg/mod/k8s.io"),
            out: PathBuf::from("apiserver/core/data/builtin.txt"),
            descriptions: PathBuf::from("apiserver/control/data/descriptions.gz"),
            tags: PathBuf::from("apiserver/catalog/data/tags.txt"),
            check: false,
        };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            if name == "--check" {
                options.check = true;
                continue;
            }
            let value = args.next().with_context(|| format!("{name} needs a value"))?.clone();
            match name.as_str() {
                "--server" => {
                    let own = [format!("--server={value}"), "--insecure-skip-tls-verify=true".into()];
                    options.kubectl_args.extend(own);
                    options.server = value;
                }
                "--token" => {
                    options.kubectl_args.push(format!("--token={value}"));
                    options.token = value;
                }
                "--kubectl" => options.kubectl = value,
                "--sources" => options.sources = value.into(),
                "--out" => options.out = value.into(),
                "--descriptions" => options.descriptions = value.into(),
                "--tags" => options.tags = value.into(),
                _ => bail!("unknown argument {name}; {KNOWN}"),
            }
        }
        if options.server.is_empty() {
            bail!("--server is missing: facts are read from a running server; {KNOWN}");
        }
        Ok(options)
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
            .args(&self.kubectl_args)
            .args(["get", "--raw", path])
            .output()
            .with_context(|| format!("starting {}", self.kubectl))?;
        if !output.status.success() {
            bail!("kubectl get --raw {path}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("{path} is not JSON"))
    }
}
