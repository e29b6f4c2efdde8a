//! OpenAPI documents, generated from the same types that decode and merge objects: version 3 per group and version, and
//! version 2 as one document ([`v2`]).
//!
//! kubectl reads them for the support of server-side field validation, for the merge keys of client-side apply, and for
//! `explain`. Built-in types have few descriptions; custom ones have those of their definition.

mod descriptions;
mod dialect;
mod operations;
mod published;
mod schemas;
#[cfg(test)]
mod tests;
mod type_names;
pub(crate) mod v2;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use self::dialect::Dialect;
pub use crate::kinds::foreign::{ForeignDocuments, SelectableFields, selectable_fields};
use crate::kinds::{KindInfo, Kinds};
use crate::version;

/// The index under `/openapi/v3`: the path of each document, with a hash of its content.
#[must_use]
pub fn index(kinds: &Kinds) -> Value {
    let mut paths = Map::new();
    for (group, version) in group_versions(kinds) {
        let path = path(&group, &version);
        let hash = hash(kinds, &group, &version).unwrap_or_default();
        paths.insert(path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}));
    }
    json!({"paths": paths})
}

/// The document of one group and version as JSON; `None` when the server does not serve it. It is generated on each
/// call: clients cache it under its hash.
#[must_use]
pub fn document(kinds: &Kinds, group: &str, version: &str) -> Option<Arc<[u8]>> {
    let served: Vec<&Arc<KindInfo>> = kinds
        .iter()
        .filter(|kind| &*kind.resource.group == group && &*kind.resource.version == version)
        .collect();
    if served.is_empty() {
        return None;
    }
    if served.iter().all(|kind| kind.custom)
        && let Some(foreign) = kinds.foreign_document(group, version)
    {
        return Some(foreign);
    }
    let mut paths = Map::new();
    for kind in &served {
        operations::add(kind, Dialect::V3, &mut paths);
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": {"schemas": schemas::schemas(kinds, served, Dialect::V3)},
    });
    Some(document.to_string().into_bytes().into())
}

/// The hash of a document, as the index shows it; `None` when the group and version are not served.
#[must_use]
pub fn hash(kinds: &Kinds, group: &str, version: &str) -> Option<String> {
    kinds.document_hash(group, version, || {
        let document = document(kinds, group, version).unwrap_or_default();
        hex_upper(&Sha256::digest(&document))
    })
}

/// The `info` section of the documents.
fn info() -> Value {
    // Like kube-apiserver, without the patch release.
    let (major, minor) = version::numbers();
    json!({"title": "Kubernetes", "version": format!("v{major}.{minor}.0")})
}

fn hex_upper(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

fn group_versions(kinds: &Kinds) -> BTreeSet<(Arc<str>, Arc<str>)> {
    kinds.iter().map(|kind| (kind.resource.group.clone(), kind.resource.version.clone())).collect()
}

/// `api/v1` or `apis/group/version`.
fn path(group: &str, version: &str) -> String {
    match group {
        "" => format!("api/{version}"),
        group => format!("apis/{group}/{version}"),
    }
}
