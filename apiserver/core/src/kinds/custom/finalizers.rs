//! Warnings about the finalizers of custom resources.

use serde_json::Value;

use crate::names;
use crate::value::items;

/// Finalizers of Kubernetes itself.
const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

/// Warns of new finalizers of a custom resource whose names may clash with those of others.
pub(crate) fn check(object: &Value, old: Option<&Value>, warnings: &mut Vec<String>) {
    let known = old.map(|old| items(old, &["metadata", "finalizers"])).unwrap_or_default();
    let mut added: Vec<&str> = items(object, &["metadata", "finalizers"])
        .iter()
        .filter(|finalizer| !known.contains(finalizer))
        .filter_map(Value::as_str)
        .collect();
    added.sort_unstable();
    added.dedup();
    for name in added {
        let mut warn = |why: &str| warnings.push(format!("metadata.finalizers: {name:?}: {why}"));
        names::qualified_name(name).iter().for_each(|why| warn(why));
        if name.contains('/') || STANDARD_FINALIZERS.contains(&name) {
            continue;
        }
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        warn(&format!(
            "prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        ));
    }
}
