//! Priority and DefaultTolerationSeconds: pods get the priority of their class and tolerate node failures for a while.

use serde_json::{Map, Value, json};
use tombolo_apicore::admission::AdmissionRequest;
use tombolo_apicore::status::ApiError;

use super::refuse;
use crate::objects::{Objects, items, member, text, v1};

/// How long a pod stays on a node that is not ready or not reachable, in seconds (kube-apiserver's default).
const TOLERATION_SECONDS: i64 = 300;

/// Taints that every pod tolerates for a while.
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Completes a new pod.
///
/// # Errors
/// 403 when the pod has another priority than its class, or names a class that does not exist.
pub(super) fn admit_new(objects: &Objects, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
    let (asked, name) = (request.attributes, request.name);
    let Some(pod) = request.object.as_deref_mut() else { return Ok(()) };
    let class =
        class_of(objects, text(pod, "/spec/priorityClassName")).map_err(|why| refuse(asked, name, why))?;
    let spec = member(pod, "spec");
    if let Some(given) = spec.get("priority").and_then(Value::as_i64).filter(|given| *given != class.value) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
            class.value
        );
        return Err(refuse(asked, name, why));
    }
    if let Some(given) =
        spec.get("preemptionPolicy").and_then(Value::as_str).filter(|given| *given != class.policy)
    {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
            class.policy
        );
        return Err(refuse(asked, name, why));
    }
    spec.insert("priority".into(), json!(class.value));
    spec.insert("preemptionPolicy".into(), json!(class.policy));
    if !class.name.is_empty() {
        spec.insert("priorityClassName".into(), json!(class.name));
    }
    tolerate(spec);
    Ok(())
}

/// Keeps these fields when a client that does not know them leaves them out.
pub(super) fn admit_changed(request: &mut AdmissionRequest<'_>) {
    let Some(pod) = request.object.as_deref_mut() else { return };
    let spec = member(pod, "spec");
    for field in ["priority", "preemptionPolicy"] {
        let old = request.old.and_then(|old| old.pointer(&format!("/spec/{field}")));
        if let (None, Some(old)) = (spec.get(field), old) {
            spec.insert(field.into(), old.clone());
        }
    }
    tolerate(spec);
}

/// Refuses a second default class.
///
/// # Errors
/// 403 when another class is the default.
pub(super) fn admit_class(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let is_default = |class: &Value| class.get("globalDefault") == Some(&json!(true));
    let Some(class) = request.object.as_deref().filter(|class| is_default(class)) else { return Ok(()) };
    let name = text(class, "/metadata/name");
    let mut classes = objects.list(&v1("scheduling.k8s.io", "priorityclasses"), None);
    match classes.find(|other| is_default(&other.value) && other.key.name() != name) {
        None => Ok(()),
        Some(other) => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.key.name()
            );
            Err(refuse(request.attributes, name, why))
        }
    }
}

struct Class {
    name: String,
    value: i64,
    policy: String,
}

impl Class {
    fn read(class: &Value) -> Self {
        let policy = text(class, "/preemptionPolicy");
        Self {
            name: text(class, "/metadata/name").to_owned(),
            value: class.get("value").and_then(Value::as_i64).unwrap_or_default(),
            policy: if policy.is_empty() { "PreemptLowerPriority" } else { policy }.to_owned(),
        }
    }
}

/// The named class; without a name the default class; without a default, priority 0.
fn class_of(objects: &Objects, name: &str) -> Result<Class, String> {
    let resource = v1("scheduling.k8s.io", "priorityclasses");
    if !name.is_empty() {
        let class = objects.get(resource, "", name).map(|class| Class::read(&class.value));
        return class.ok_or_else(|| format!("no PriorityClass with name {name} was found"));
    }
    let classes = objects.list(&resource, None);
    let defaults = classes.filter(|class| class.value.get("globalDefault") == Some(&json!(true)));
    let default = defaults.map(|class| Class::read(&class.value)).min_by_key(|class| class.value);
    Ok(default.unwrap_or_else(|| Class::read(&Value::Null)))
}

fn tolerate(spec: &mut Map<String, Value>) {
    let present = Value::Object(Map::from_iter([(
        "tolerations".to_owned(),
        spec.get("tolerations").cloned().unwrap_or_default(),
    )]));
    let tolerated = |taint: &str| {
        items(&present, "/tolerations").iter().any(|toleration| {
            let (key, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
            (key.is_empty() || key == taint) && (effect.is_empty() || effect == "NoExecute")
        })
    };
    for taint in TAINTS.into_iter().filter(|taint| !tolerated(taint)) {
        let toleration = json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS});
        match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
            Some(tolerations) => tolerations.push(toleration),
            None => drop(spec.insert("tolerations".into(), json!([toleration]))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tolerations_are_added_once() {
        let mut pod =
            json!({"spec": {"tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]}});
        for _ in 0..2 {
            tolerate(member(&mut pod, "spec"));
        }
        let tolerations = items(&pod, "/spec/tolerations");
        assert_eq!(tolerations.len(), 2);
        assert_eq!(tolerations[1]["key"], "node.kubernetes.io/unreachable");
        let mut all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        tolerate(member(&mut all, "spec"));
        assert_eq!(items(&all, "/spec/tolerations").len(), 1);
    }
}
