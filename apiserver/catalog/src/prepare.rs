//! Fields that the server writes into objects of built-in kinds: the strategies of kube-apiserver.

mod claim;
mod pod;
mod service;
mod status;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tombolo_apicore::kinds::{KindInfo, definition};
use tombolo_apicore::value::{at, object, object_at, text};

pub(crate) use self::status::initial;
use crate::defaults::TEMPLATE_GENERATION;

/// Completes a new object.
pub(crate) fn create(kind: &KindInfo, object: &mut Value) {
    let Value::Object(map) = object else { return };
    match kind.group_kind() {
        ("", "Namespace") => namespace(map),
        ("", "Pod") => pod::select_own_labels(map),
        ("", "Service") => service::create(map),
        ("batch", "Job") => job_selector(map),
        ("apps", "DaemonSet") => template_generation(map, 1),
        ("apps", "StatefulSet") => drop_unavailable(map),
        ("discovery.k8s.io", "EndpointSlice") => drop_topology(map),
        ("coordination.k8s.io", "Lease") => drop_election(map, &Value::Null),
        // Controllers remove these finalizers when the object is no longer in use.
        ("", "PersistentVolume") => add_finalizer(map, "kubernetes.io/pv-protection"),
        ("", "PersistentVolumeClaim") => {
            add_finalizer(map, "kubernetes.io/pvc-protection");
            claim::settle_sources(map, None);
        }
        ("storage.k8s.io", "VolumeAttributesClass") => add_finalizer(map, "kubernetes.io/vac-protection"),
        _ => {}
    }
    pod::drop_disabled(kind.group_kind(), object);
}

/// The content of a namespace is deleted before the namespace itself.
fn namespace(map: &mut Map<String, Value>) {
    let finalizers = object_at(map, "spec").entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(list) = finalizers
        && !list.contains(&json!("kubernetes"))
    {
        list.push(json!("kubernetes"));
    }
}

/// A job selects its pods by its own uid unless `manualSelector` is set. Existing labels stay: validation refuses those
/// that contradict (batch/job/strategy.go, generateSelector).
fn job_selector(map: &mut Map<String, Value>) {
    let own = |key: &str| map.get("metadata").map_or_else(String::new, |own| text(own, &[key]).to_owned());
    let (uid, name) = (own("uid"), own("name"));
    if map.get("spec").is_some_and(|spec| spec["manualSelector"] == true) {
        return;
    }
    let own = map.get("metadata").map_or(Value::Null, |own| own["labels"].clone());
    let spec = object_at(map, "spec");
    let labels = object_at(object_at(object_at(spec, "template"), "metadata"), "labels");
    // In Go, labels defaulted from the template share a map with it: labels added there are also added to the job.
    // Labels that the client set on both look the same here, and are treated alike.
    let shared = own.as_object().is_none_or(|own| own.is_empty() || own == labels);
    for (label, value) in [("controller-uid", &uid), ("job-name", &name)] {
        labels.entry(label).or_insert_with(|| value.clone().into());
        labels.entry(format!("batch.kubernetes.io/{label}")).or_insert_with(|| value.clone().into());
    }
    let labels = labels.clone();
    let selector = object_at(object_at(spec, "selector"), "matchLabels");
    selector.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| uid.into());
    if shared {
        *object_at(object_at(map, "metadata"), "labels") = labels;
    }
}

/// Maximum of unavailable pods of a StatefulSet. kube-apiserver keeps the field only if its feature gate is on, or if
/// it was set before.
const UNAVAILABLE: [&str; 4] = ["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];

fn drop_unavailable(map: &mut Map<String, Value>) {
    let [outer, strategy, rolling, field] = UNAVAILABLE;
    let parameters =
        map.get_mut(outer).and_then(|spec| spec.get_mut(strategy)?.get_mut(rolling)?.as_object_mut());
    if let Some(rolling) = parameters {
        rolling.remove(field);
    }
}

/// The topology of endpoints belongs to an older API version: it is kept in stored objects, and not written anew.
fn drop_topology(map: &mut Map<String, Value>) {
    let endpoints = map.get_mut("endpoints").and_then(Value::as_array_mut);
    for endpoint in endpoints.into_iter().flatten().filter_map(Value::as_object_mut) {
        endpoint.remove("deprecatedTopology");
    }
}

/// Fields of coordinated leader election. kube-apiserver keeps them only if the feature gate is on, or if they were set
/// before.
fn drop_election(map: &mut Map<String, Value>, old: &Value) {
    let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in ["strategy", "preferredHolder"] {
        if old[field].is_null() {
            spec.remove(field);
        }
    }
}

fn template_generation(map: &mut Map<String, Value>, number: i64) {
    let annotations = object_at(object_at(map, "metadata"), "annotations");
    annotations.insert(TEMPLATE_GENERATION.into(), number.to_string().into());
}

fn add_finalizer(map: &mut Map<String, Value>, name: &str) {
    let list = object_at(map, "metadata").entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(list) = list
        && !list.contains(&json!(name))
    {
        list.push(name.into());
    }
}

/// Completes an update.
pub(crate) fn update(kind: &KindInfo, new: &mut Value, old: &Value, subresource: &str, now: Timestamp) {
    match (subresource, kind.group_kind()) {
        ("", ("", "Service")) => service::update(new, old),
        ("", ("discovery.k8s.io", "EndpointSlice")) if new["endpoints"] != old["endpoints"] => {
            drop_topology(object(new));
        }
        ("", ("coordination.k8s.io", "Lease")) => drop_election(object(new), &old["spec"]),
        ("", ("apps", "StatefulSet")) if at(old, &UNAVAILABLE).is_null() => drop_unavailable(object(new)),
        ("", ("apps", "DaemonSet")) => {
            let number = text(old, &["metadata", "annotations", TEMPLATE_GENERATION]).parse().unwrap_or(0);
            let changed = i64::from(new["spec"]["template"] != old["spec"]["template"]);
            template_generation(object(new), i64::saturating_add(number, changed));
        }
        ("resize", _) => pod::resize_only(new, old),
        ("", ("", "PersistentVolumeClaim")) => claim::settle_sources(object(new), Some(old)),
        ("", ("apiextensions.k8s.io", _)) => definition::note_storage_version(new),
        ("status" | "approval", group_kind) => status::settle(group_kind, subresource, new, old, now),
        _ => {}
    }
    if !matches!(subresource, "status" | "scale") {
        pod::drop_disabled(kind.group_kind(), new);
    }
}

/// Grace period of a deletion in seconds, if the request sets none.
pub(crate) fn default_grace(kind: &KindInfo, object: &Value) -> i64 {
    if kind.group_kind() != ("", "Pod") {
        return 0;
    }
    let finished = matches!(text(object, &["status", "phase"]), "Succeeded" | "Failed");
    match text(object, &["spec", "nodeName"]) {
        "" => 0,
        _ if finished => 0,
        _ => at(object, &["spec", "terminationGracePeriodSeconds"]).as_i64().unwrap_or(30),
    }
}
