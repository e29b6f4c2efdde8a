//! Names of types in the documents.

use serde_json::{Value, json};

use super::descriptions::Descriptions;
use super::dialect::Dialect;
use crate::kinds::KindInfo;

/// The type of every object's metadata.
pub(super) const METADATA: &str = "meta.v1.ObjectMeta";

pub(super) const INT_OR_STRING: &str = "util.intstr.IntOrString";

pub(super) const QUANTITY: &str = "api.resource.Quantity";

/// The name of a kind's schema: `example.com/v1 Thing` becomes `com.example.v1.Thing`, and built-in kinds have the
/// names of their Go types.
pub(super) fn schema_name(kind: &KindInfo) -> String {
    if let Some(own) = kind.schema().cursor().node().name.as_deref().filter(|_| !kind.custom) {
        return full_name(own);
    }
    let mut parts: Vec<&str> = kind.resource.group.split('.').collect();
    parts.reverse();
    format!("{}.{}.{}", parts.join("."), kind.resource.version, kind.kind)
}

/// The `metadata` property of an object.
pub(super) fn metadata(dialect: Dialect, descriptions: &Descriptions) -> Value {
    let mut schema = dialect.property(&full_name(METADATA));
    schema["description"] = descriptions.of_object("metadata").into();
    schema
}

/// The OpenAPI name of a type, which the table of facts shortens.
pub(super) fn full_name(short: &str) -> String {
    match short.split_once('.') {
        _ if short == INT_OR_STRING => format!("io.k8s.apimachinery.pkg.{short}"),
        _ if short == QUANTITY => format!("io.k8s.apimachinery.pkg.{short}"),
        Some(("meta", _)) => format!("io.k8s.apimachinery.pkg.apis.{short}"),
        Some(("apiextensions", _)) => format!("io.k8s.apiextensions-apiserver.pkg.apis.{short}"),
        Some(("apiregistration", _)) => format!("io.k8s.kube-aggregator.pkg.apis.{short}"),
        _ => format!("io.k8s.api.{short}"),
    }
}

/// The `x-kubernetes-group-version-kind` of one kind.
pub(super) fn group_version_kind(kind: &KindInfo) -> Value {
    json!({"group": &*kind.resource.group, "version": &*kind.resource.version, "kind": &*kind.kind})
}
