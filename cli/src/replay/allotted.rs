//! Objects of the recorded cluster, with the fields that the run's cluster decides itself.

use serde_json::Value;

/// The object with the fields that the run's cluster assigns: those of Jobs and Services, and of Pods what admission
/// plugins added.
pub(super) fn allotted_as(present: &Value, object: Value) -> Value {
    match object["kind"].as_str() {
        Some("Pod") if present.is_object() => changed_as(present, object),
        Some("Job") if object["spec"]["manualSelector"] != true => selected_as(present, object),
        Some("Service") if object["spec"]["clusterIP"] != "None" => placed_as(present, object),
        _ => object,
    }
}

/// A Pod with the spec of `present`, except for the mutable fields: no server accepts other changes.
fn changed_as(present: &Value, mut object: Value) -> Value {
    let wanted = object["spec"].take();
    let mut spec = present["spec"].clone();
    for name in ["activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates"] {
        if !wanted[name].is_null() || name == "schedulingGates" {
            spec[name] = wanted[name].clone();
        }
    }
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let others = wanted[list].as_array().into_iter().flatten();
            let same = others.into_iter().find(|other| other["name"] == container["name"]);
            if let Some(image) = same.map(|same| &same["image"]).filter(|image| image.is_string()) {
                container["image"] = image.clone();
            }
        }
    }
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let added = wanted["tolerations"].as_array().into_iter().flatten();
    tolerations.extend(added.filter(|one| !tolerations.contains(one)).cloned().collect::<Vec<_>>());
    spec["tolerations"] = tolerations.into();
    object["spec"] = spec;
    object
}

/// A Job with the selector of `present`, which the run's cluster generates from the Job's uid.
fn selected_as(present: &Value, mut object: Value) -> Value {
    const MADE: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
    object["spec"]["selector"] = present["spec"]["selector"].clone();
    let own = &present["spec"]["template"]["metadata"]["labels"];
    if let Some(labels) = object["spec"]["template"]["metadata"]["labels"].as_object_mut() {
        for name in MADE {
            match own.get(name) {
                Some(label) => drop(labels.insert(name.to_owned(), label.clone())),
                None => drop(labels.remove(name)),
            }
        }
    }
    object
}

/// A Service with the addresses and ports of `present`. If it does not exist yet the fields are empty, so that the
/// cluster chooses: the recorded ones are not in its ranges.
fn placed_as(present: &Value, mut object: Value) -> Value {
    let spec = &present["spec"];
    for name in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        object["spec"][name] = spec[name].clone();
    }
    let ports = object["spec"]["ports"].as_array_mut().into_iter().flatten();
    for (index, port) in ports.enumerate() {
        port["nodePort"] = spec["ports"][index]["nodePort"].clone();
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Fields that the run cluster's plugins added to a pod stay, because no API server lets them be removed.
    #[test]
    fn only_mutable_pod_fields_are_replayed() {
        let container = |name: &str, image: &str| json!({"name": name, "image": image});
        let mounted = json!({"name": "a", "image": "a:1", "volumeMounts": [{"name": "token"}]});
        let present = json!({"spec": {"containers": [mounted], "tolerations": [{"key": "run"}], "volumes": [{"name": "token"}]}});
        let wanted = json!({"kind": "Pod", "metadata": {"labels": {"x": "y"}},
            "spec": {"containers": [container("a", "a:2")], "tolerations": [{"key": "new"}], "activeDeadlineSeconds": 5}});
        let changed = allotted_as(&present, wanted.clone());
        assert_eq!(changed["metadata"], wanted["metadata"]);
        let spec = &changed["spec"];
        assert_eq!(spec["containers"][0]["image"], "a:2");
        assert_eq!(spec["containers"][0]["volumeMounts"], mounted["volumeMounts"]);
        assert_eq!(
            (&spec["volumes"], &spec["activeDeadlineSeconds"]),
            (&present["spec"]["volumes"], &json!(5))
        );
        assert_eq!(spec["tolerations"], json!([{"key": "run"}, {"key": "new"}]));
        assert_eq!(allotted_as(&Value::Null, wanted.clone()), wanted, "a new one is as it was recorded");
    }
}
