//! The two fields of a claim that name the source of its volume's data (pkg/api/persistentvolumeclaim/util.go).

use serde_json::{Map, Value};

use tombolo_apicore::value::text;

/// Copies each field from the other. A source that only the newer field may name is removed from the older one, unless
/// the claim had a source before.
pub(super) fn settle_sources(claim: &mut Map<String, Value>, old: Option<&Value>) {
    let Some(Value::Object(spec)) = claim.get_mut("spec") else { return };
    let set = |value: Option<&Value>| value.is_some_and(|value| !value.is_null());
    let had = old
        .is_some_and(|old| !old["spec"]["dataSource"].is_null() || !old["spec"]["dataSourceRef"].is_null());
    let elsewhere = spec.get("dataSourceRef").is_some_and(|source| !text(source, &["namespace"]).is_empty());
    let ref_used = old.is_some_and(|old| !old["spec"]["dataSourceRef"].is_null());
    if elsewhere && !ref_used {
        // Sources in other namespaces are a feature that is not enabled.
        spec.remove("dataSourceRef");
    }
    if !had && !set(spec.get("dataSourceRef")) && !spec.get("dataSource").is_some_and(is_plain) {
        spec.remove("dataSource");
    }
    let (one, other) = (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned());
    match (set(one.as_ref()), set(other.as_ref())) {
        (true, false) => drop(spec.insert("dataSourceRef".into(), one.unwrap_or_default())),
        (false, true) if !elsewhere => drop(spec.insert("dataSource".into(), other.unwrap_or_default())),
        _ => {}
    }
}

/// Whether every provisioner supports the source.
fn is_plain(source: &Value) -> bool {
    let (kind, group) = (text(source, &["kind"]), text(source, &["apiGroup"]));
    matches!((kind, group), ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io"))
}
