//! `xtask facts`: writes the tables of facts that the crates of `apiserver` read. `core` has the types of the built-in
//! kinds and the columns of the Table form, `control` the OpenAPI descriptions of the types and the objects that every
//! cluster has, and `catalog` the tags of declarative validation. With `--check`, it compares the files instead.
//!
//! The facts come from a running kube-apiserver (discovery, `/openapi/v3` and lists, fetched with kubectl) and from the
//! published Go modules `k8s.io/api`, `k8s.io/apimachinery`, `k8s.io/apiextensions-apiserver` and
//! `k8s.io/kube-aggregator`. Only the modules say whether a field is a pointer or is omitted when it is zero.

mod bootstrap;
mod columns;
mod descriptions;
mod file;
mod gosource;
mod options;
mod render;
mod tags;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use self::file::FactsFile;
use self::gosource::GoSources;
pub(crate) use self::options::FactsOptions;

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

/// What one group-version serves.
struct GroupVersion {
    name: String,
    resources: Vec<Value>,
    kinds: BTreeMap<String, String>,
}

/// Runs the generator.
///
/// # Errors
/// The server does not answer, the table's form cannot express a type, or `--check` finds a difference.
pub(crate) fn run(options: &FactsOptions) -> Result<()> {
    let files = generate(options)?;
    if options.check { file::check(&files) } else { files.iter().try_for_each(FactsFile::write) }
}

fn generate(options: &FactsOptions) -> Result<Vec<FactsFile>> {
    let (sources, (served, types)) = (options.sources(), read_server(options)?);
    let builtin = render::table(&served, &types, &GoSources::read(&sources)?)?;
    let described = descriptions::table(&types, &builtin)?;
    let columns = columns::table(&served, |path| options.get_table(path))?;
    let objects = |paths: &[&str]| bootstrap::table(paths, |path| options.get(path));
    let beside = |name: &str| options.descriptions.with_file_name(name);
    Ok(vec![
        FactsFile::new(options.out.clone(), builtin),
        FactsFile::new(options.out.with_file_name("columns.txt"), columns),
        FactsFile::new(options.descriptions.clone(), described),
        FactsFile::new(beside("bootstrap-rbac.jsonl"), objects(&bootstrap::RBAC)?),
        FactsFile::new(beside("bootstrap-flows.jsonl"), objects(&bootstrap::FLOWS)?),
        FactsFile::new(options.tags.clone(), tags::table(&sources, GROUP_VERSIONS)?),
    ])
}

/// What the group-versions serve, and the schemas of all their types by full name.
fn read_server(options: &FactsOptions) -> Result<(Vec<GroupVersion>, BTreeMap<String, Value>)> {
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
    Ok((served, types))
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
