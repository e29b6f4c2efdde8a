//! What the server itself sets when an object of any kind is written: which fields an endpoint may write, and
//! generations.

use jiff::Timestamp;
use serde_json::Value;

use super::KindInfo;
use super::rules::{Fields, Generation};
use crate::value::{at, object_at, put_below, restrict};

/// Prepares a new object for storage.
pub(super) fn create(kind: &KindInfo, object: &mut Value, now: Timestamp) {
    let Value::Object(map) = object else { return };
    let metadata = object_at(map, "metadata");
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(key);
    }
    match kind.rules().generation {
        Generation::Never => {}
        Generation::SpecFromZero => drop(metadata.remove("generation")),
        _ => drop(metadata.insert("generation".into(), 1.into())),
    }
    if kind.has_subresource("status") && !kind.rules().keeps_status {
        map.remove("status");
        if let Some(status) = kind.strategy.initial_status(kind, map, now) {
            map.insert("status".into(), status);
        }
    }
    kind.strategy.prepare_create(kind, object);
    kind.canonical(object);
}

/// Prepares an update for storage.
pub(super) fn update(kind: &KindInfo, new: &mut Value, old: &Value, subresource: &str, now: Timestamp) {
    match kind.rules().endpoint(subresource).map(|endpoint| &endpoint.written) {
        Some(Fields::But(kept)) => kept.iter().for_each(|path| path.copy(old, new)),
        Some(Fields::Only(written)) => {
            let wanted = new.clone();
            restrict(new, old);
            written.iter().for_each(|path| path.copy(&wanted, new));
        }
        Some(Fields::All) | None => {}
    }
    kind.strategy.prepare_update(kind, new, old, subresource, now);
    keep_metadata(new, old);
    if !matches!(subresource, "status" | "approval" | "finalize") {
        generation(kind, new, old);
    }
    kind.canonical(new);
}

/// Keeps the system fields of the metadata, which no client writes.
fn keep_metadata(new: &mut Value, old: &Value) {
    let (Some(map), Some(before)) = (new.as_object_mut(), old["metadata"].as_object()) else { return };
    let metadata = object_at(map, "metadata");
    for key in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let absent = metadata.get(key).is_none_or(Value::is_null);
        if let Some(value) = before.get(key).filter(|_| absent) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    match before.get("generation") {
        Some(generation) => metadata.insert("generation".into(), generation.clone()),
        None => metadata.remove("generation"),
    };
}

fn generation(kind: &KindInfo, new: &mut Value, old: &Value) {
    if matches!(kind.rules().generation, Generation::Never | Generation::Fixed) {
        return;
    }
    if !wanted_differs(kind, new, old) {
        return;
    }
    let next = at(old, &["metadata", "generation"]).as_i64().unwrap_or(0).saturating_add(1);
    put_below(new, "metadata", "generation", &next.into());
}

/// Whether the desired state changed: everything except metadata and the status. A custom kind without a status
/// subresource counts its status.
fn wanted_differs(kind: &KindInfo, new: &Value, old: &Value) -> bool {
    let counted = match kind.rules().generation {
        Generation::SpecAndAnnotations => Some("annotations"),
        Generation::SpecAndLabels => Some("labels"),
        _ => None,
    };
    let marked = counted.is_some_and(|part| at(new, &["metadata", part]) != at(old, &["metadata", part]));
    let own_status = kind.has_subresource("status");
    let skipped = |key: &str| {
        matches!(key, "metadata" | "apiVersion" | "kind") || (key == "status" && (own_status || !kind.custom))
    };
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    let differs = |(key, value): (&String, &Value)| !skipped(key) && old.get(key) != Some(value);
    marked || new.iter().any(differs) || old.keys().any(|key| !skipped(key) && !new.contains_key(key))
}
