//! `xtask facts`: writes the tables of facts about built-in kinds that `apiserver/core` reads: their types, and, in
//! `columns.txt` beside that file, the columns of the Table form. The OpenAPI descriptions of the types go into a file
//! of `cloud`, because only its embedded server shows them.
//!
//! The table comes from a running kube-apiserver (discovery and `/openapi/v3`, fetched with kubectl) and from the
//! published Go modules `k8s.io/api`, `k8s.io/apimachinery`, `k8s.io/apiextensions-apiserver` and
//! `k8s.io/kube-aggregator`. Only the modules say whether a field is a pointer or is omitted when it is zero.

mod columns;
mod descriptions;
mod gosource;
mod render;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::gosource::GoSources;

/// Group-versions whose kinds are in the table, as the discovery paths name them.
const GROUP_VERSIONS: &[&str] = &[
    "v1",
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apiregistration.k8s.io/v1",
    "apps/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "autoscaling/v1",
    "autoscaling/v2",
    "batch/v1",
    "certificates.k8s.io/v1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "networking.k8s.io/v1",
    "node.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "resource.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1",
];

/// The known arguments, for error messages.
const KNOWN: &str = "known: --server --token --kubectl --sources --out --descriptions";

/// What one group-version serves.
struct GroupVersion {
    name: String,
    resources: Vec<Value>,
    kinds: BTreeMap<String, String>,
}

/// Where the facts come from and where they are written.
struct FactsOptions {
    server: String,
    token: String,
    kubectl: String,
    kubectl_args: Vec<String>,
    sources: PathBuf,
    out: PathBuf,
    descriptions: PathBuf,
}

/// Runs the generator.
///
/// Arguments: `--server URL`, `--token T`, `--kubectl PATH`, `--sources DIR` (the `k8s.io` folder of a Go module
/// cache), `--out FILE`, `--descriptions FILE`. All except the server have a default. The server must have a
/// Deployment.
///
/// # Errors
/// An argument is unknown, the server does not answer, or the table's form cannot express a type.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = FactsOptions::parse(args)?;
    let sources = GoSources::read(&options.sources)?;
    let mut served = Vec::new();
    let mut types: BTreeMap<String, Value> = BTreeMap::new();
    for name in GROUP_VERSIONS {
        let path = if *name == "v1" { "api/v1".to_owned() } else { format!("apis/{name}") };
        let discovery = options.get(&format!("/{path}"))?;
        let openapi = options.get(&format!("/openapi/v3/{path}"))?;
        let schemas = openapi["components"]["schemas"].as_object().context("openapi without schemas")?;
        let kinds = kinds_of(schemas, name);
        types.extend(schemas.iter().map(|(name, schema)| (name.clone(), schema.clone())));
        let resources = discovery["resources"].as_array().filter(|served| !served.is_empty());
        let resources = resources.with_context(|| format!("{name} serves no resources"))?.clone();
        served.push(GroupVersion { name: (*name).to_owned(), resources, kinds });
    }
    let text = render::table(&served, &types, &sources)?;
    std::fs::write(&options.out, &text).with_context(|| format!("writing {}", options.out.display()))?;
    println!("{}: {} bytes, {} types", options.out.display(), text.len(), types.len());
    let described = descriptions::compressed(&types, &text)?;
    std::fs::write(&options.descriptions, &described)
        .with_context(|| format!("writing {}", options.descriptions.display()))?;
    println!("{}: {} bytes", options.descriptions.display(), described.len());
    let columns = columns::table(&served, |path| options.get_table(path))?;
    let out = options.out.with_file_name("columns.txt");
    std::fs::write(&out, &columns).with_context(|| format!("writing {}", out.display()))?;
    println!("{}: {} bytes", out.display(), columns.len());
    Ok(())
}

/// Which schema describes each kind of one group-version.
fn kinds_of(schemas: &serde_json::Map<String, Value>, group_version: &str) -> BTreeMap<String, String> {
    let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
    let mut kinds = BTreeMap::new();
    for (name, schema) in schemas {
        for gvk in schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            if gvk["group"] == group && gvk["version"] == version {
                let kind = gvk["kind"].as_str().unwrap_or_default();
                if name.ends_with(&format!(".{kind}")) && !name.contains(".meta.v1.") {
                    kinds.insert(kind.to_owned(), name.clone());
                }
            }
        }
    }
    kinds
}

impl FactsOptions {
    fn parse(args: &[String]) -> Result<Self> {
        let home = std::env::var("HOME").unwrap_or_default();
        let mut options = Self {
            server: String::new(),
            token: String::new(),
            kubectl: "kubectl".to_owned(),
            kubectl_args: Vec::new(),
            sources: PathBuf::from(home).join("go/pkg/mod/k8s.io"),
            out: PathBuf::from("apiserver/core/data/builtin.txt"),
            descriptions: PathBuf::from("apiserver/control/data/descriptions.gz"),
        };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = args.next().with_context(|| format!("{name} needs a value"))?.clone();
            match name.as_str() {
                "--server" => options.server.clone_from(&value),
                "--token" => options.token.clone_from(&value),
                _ => {}
            }
            match name.as_str() {
                "--server" => options
                    .kubectl_args
                    .extend([format!("--server={value}"), "--insecure-skip-tls-verify=true".into()]),
                "--token" => options.kubectl_args.push(format!("--token={value}")),
                "--kubectl" => options.kubectl = value,
                "--sources" => options.sources = value.into(),
                "--out" => options.out = value.into(),
                "--descriptions" => options.descriptions = value.into(),
                _ => bail!("unknown argument {name}; {KNOWN}"),
            }
        }
        if options.server.is_empty() {
            bail!("--server is missing: facts are read from a running server; {KNOWN}");
        }
        Ok(options)
    }

    /// A list as a Table. kubectl requests Tables only to print them, so this uses curl.
    fn get_table(&self, path: &str) -> Result<Value> {
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

    fn get(&self, path: &str) -> Result<Value> {
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
