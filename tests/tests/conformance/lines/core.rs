//! Objects of the core group that are rejected, or accepted with a warning, with one wrong field at a time; and fields
//! that cannot be changed.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::JSON;
use super::definitions::{self, Case};
use crate::line::Line;

/// One JSON document per line: see [`Written`].
const REFUSED: &str = include_str!("core.jsonl");
const WARNED: &str = include_str!("core_warnings.jsonl");
/// Requests in order, as for definitions.
const UPDATES: &str = include_str!("core_updates.jsonl");

/// Resources without a namespace.
const OF_CLUSTER: [&str; 3] = ["persistentvolumes", "nodes", "namespaces"];

/// A line of the file: changes to a small valid object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// The resource.
    #[serde(rename = "in")]
    resource: String,
    /// Members of the metadata.
    #[serde(default)]
    metadata: Map<String, Value>,
    /// Members of the spec; null removes one.
    #[serde(default)]
    spec: Map<String, Value>,
    /// Members of the only container.
    #[serde(default)]
    container: Map<String, Value>,
    /// The whole object, instead of the small one.
    #[serde(default)]
    body: Option<Value>,
    /// Why the texts of the answers differ.
    differs: Option<String>,
    /// If code, reason or fields differ too: those of the real and of the embedded server.
    verdicts: Option<[String; 2]>,
}

/// All cases. Only the updates store anything.
pub(crate) fn cases() -> impl Iterator<Item = Case> {
    let new = [REFUSED, WARNED].into_iter().flat_map(str::lines).map(case);
    new.chain(UPDATES.lines().map(definitions::case))
}

fn case(text: &str) -> Case {
    let written: Written = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let resource = &written.resource;
    let namespace = if OF_CLUSTER.contains(&resource.as_str()) { "" } else { "namespaces/default/" };
    let path = format!("/api/v1/{namespace}{resource}?dryRun=All&fieldManager=m");
    let object = object(&written).to_string();
    let line = Line::new(&("POST", &path, JSON, &object)).named(text.to_owned());
    Case { line, until: None, differs: written.differs, verdicts: written.verdicts }
}

fn object(written: &Written) -> Value {
    let mut object = match &written.body {
        Some(body) => body.clone(),
        None => {
            let mut spec = small(&written.resource);
            for (name, value) in &written.spec {
                spec[name] = value.clone();
            }
            for (name, value) in &written.container {
                spec["containers"][0][name] = value.clone();
            }
            if let Value::Object(spec) = &mut spec {
                spec.retain(|_, value| !value.is_null());
            }
            match written.resource.as_str() {
                "podtemplates" => json!({"template": {"spec": spec}}),
                _ => json!({"spec": spec}),
            }
        }
    };
    for (name, value) in &written.metadata {
        object["metadata"][name] = value.clone();
    }
    if object["metadata"]["name"].is_null() {
        object["metadata"]["name"] = "line".into();
    }
    object
}

/// The spec of a small valid object.
fn small(resource: &str) -> Value {
    match resource {
        "pods" | "podtemplates" => json!({"containers": [{"name": "c", "image": "i"}]}),
        "services" => json!({"ports": [{"port": 80}]}),
        "persistentvolumes" => json!({
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"},
        }),
        "persistentvolumeclaims" => json!({
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }),
        _ => json!({}),
    }
}
