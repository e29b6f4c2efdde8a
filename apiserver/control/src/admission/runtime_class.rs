//! RuntimeClass: fields that a pod gets from its RuntimeClass.

use serde_json::{Map, Value, json};
use tombolo_apicore::admission::AdmissionRequest;
use tombolo_apicore::status::ApiError;

use super::refuse;
use crate::objects::{Objects, list_member, member, v1};
use crate::quota::Amounts;

/// Gives a new pod the overhead, node selector and tolerations of its class.
///
/// # Errors
/// 403 when the class does not exist or the pod contradicts it.
pub(super) fn complete(objects: &Objects, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
    let (asked, name) = (request.attributes, request.name);
    let Some(pod) = request.object.as_deref_mut() else { return Ok(()) };
    give(objects, pod).map_err(|why| refuse(asked, name, why))
}

fn give(objects: &Objects, pod: &mut Value) -> Result<(), String> {
    let said = Amounts::read(pod.pointer("/spec/overhead"));
    let Some(class) = pod.pointer("/spec/runtimeClassName").and_then(Value::as_str) else {
        return without_class(&said);
    };
    let Some(class) = objects.get(v1("node.k8s.io", "runtimeclasses"), "", class) else {
        return Err(format!("pod rejected: RuntimeClass {class:?} not found"));
    };
    match class.value.pointer("/overhead/podFixed") {
        Some(overhead) if !said.is_empty() && Amounts::read(Some(overhead)) != said => {
            return Err(
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned()
            );
        }
        Some(overhead) => {
            member(pod, "spec").insert("overhead".into(), overhead.clone());
        }
        None => without_class(&said)?,
    }
    let scheduling = class.value.get("scheduling");
    if let Some(wanted) = scheduling.and_then(|scheduling| scheduling.get("nodeSelector")?.as_object()) {
        select(pod, wanted)?;
    }
    if let Some(wanted) = scheduling.and_then(|scheduling| scheduling.get("tolerations")?.as_array()) {
        let tolerations = list_member(member(pod, "spec"), "tolerations");
        for toleration in wanted {
            if !tolerations.contains(toleration) {
                tolerations.push(toleration.clone());
            }
        }
    }
    Ok(())
}

fn without_class(said: &Amounts) -> Result<(), String> {
    match said.is_empty() {
        true => Ok(()),
        false => {
            Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
                .to_owned())
        }
    }
}

/// Adds a node selector to the pod's own.
fn select(pod: &mut Value, wanted: &Map<String, Value>) -> Result<(), String> {
    let spec = member(pod, "spec");
    let own = spec.entry("nodeSelector").or_insert_with(|| json!({}));
    let Some(own) = own.as_object_mut() else { return Ok(()) };
    for (key, value) in wanted {
        if let Some(other) = own.get(key).filter(|other| *other != value) {
            let (value, other) = (value.as_str().unwrap_or_default(), other.as_str().unwrap_or_default());
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {other}"
            ));
        }
        own.insert(key.clone(), value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;
    use crate::objects::text;

    async fn objects() -> Objects {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let class = json!({
            "metadata": {"name": "kata"}, "handler": "kata", "overhead": {"podFixed": {"cpu": "10m"}},
            "scheduling": {"nodeSelector": {"kata": "yes"}, "tolerations": [{"key": "kata"}]}});
        objects.create(v1("node.k8s.io", "runtimeclasses"), class).await.unwrap();
        objects
    }

    #[tokio::test]
    async fn pod_gets_overhead_and_scheduling_of_its_runtime_class() {
        let objects = objects().await;
        let mut pod = json!({"spec": {"runtimeClassName": "kata", "nodeSelector": {"zone": "a"}}});
        give(&objects, &mut pod).unwrap();
        assert_eq!(text(&pod, "/spec/overhead/cpu"), "10m");
        assert_eq!(pod["spec"]["nodeSelector"], json!({"kata": "yes", "zone": "a"}));
        assert_eq!(pod["spec"]["tolerations"], json!([{"key": "kata"}]));
        let again = pod.clone();
        give(&objects, &mut pod).unwrap();
        assert_eq!(pod, again);
    }

    #[tokio::test]
    async fn pod_that_contradicts_its_runtime_class_is_refused() {
        let objects = objects().await;
        let cases = [
            (json!({"runtimeClassName": "none"}), "not found"),
            (json!({"runtimeClassName": "kata", "overhead": {"cpu": "1"}}), "doesn't match"),
            (json!({"overhead": {"cpu": "1"}}), "without corresponding"),
            (json!({"runtimeClassName": "kata", "nodeSelector": {"kata": "no"}}), "conflict"),
        ];
        for (spec, expected) in cases {
            let refusal = give(&objects, &mut json!({"spec": spec})).unwrap_err();
            assert!(refusal.contains(expected), "{refusal}");
        }
    }
}
