//! Which fields of a Job may change. Fields that never change are in the table of immutable fields.

use serde_json::Value;

use super::super::IMMUTABLE;
use super::super::field::{Errors, Field};
use super::is_indexed;
use tombolo_apicore::value::{int, items};

/// Checks what an update changes.
pub(in super::super) fn check(new: &Value, old: &Value, errors: &mut Errors) {
    let spec = Field::root("spec", &new["spec"]);
    completions(&spec, &old["spec"], errors);
    template(&spec, old, errors);
}

/// Completions of an indexed Job may only change together with the parallelism; those of other Jobs are immutable.
fn completions(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
    let completions = spec.child("completions");
    if *completions.value() == old["completions"] {
        return;
    }
    if !is_indexed(spec) {
        errors.push(completions.invalid(IMMUTABLE));
    } else if completions.is_set() && completions.int() != spec.child("parallelism").int() {
        errors.push(completions.invalid("can only be modified in tandem with spec.parallelism"));
    }
}

/// While a Job is suspended and has no running pods, its scheduling directives and resources may change.
fn template(spec: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
    let template = spec.child("template");
    let mut before = old["spec"]["template"].clone();
    let suspended = old["spec"]["suspend"] == true;
    if suspended && is_idle(&old["status"]) {
        take_directives(&mut before, template.value());
        let pod = template.child("spec");
        take_resources(&mut before["spec"], pod.value());
        if *pod.value() != before["spec"] {
            errors.push(pod.invalid(IMMUTABLE));
        }
    } else if *template.value() != before {
        errors.push(template.invalid(IMMUTABLE));
    }
}

fn is_idle(status: &Value) -> bool {
    let is_suspended = |condition: &Value| condition["type"] == "Suspended" && condition["status"] == "True";
    let rests = status["startTime"].is_null() || items(status, &["conditions"]).iter().any(is_suspended);
    rests && int(status, &["active"]) == 0
}

/// Copies the scheduling directives.
fn take_directives(before: &mut Value, now: &Value) {
    for path in [&["metadata", "labels"][..], &["metadata", "annotations"]] {
        put(before, path, &now[path[0]][path[1]]);
    }
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        put(before, &["spec", field], &now["spec"][field]);
    }
    put(before, &["spec", "affinity", "nodeAffinity"], &now["spec"]["affinity"]["nodeAffinity"]);
    // An affinity without other content is added or removed with the node affinity.
    let rest = |spec: &Value| spec["affinity"].as_object().is_none_or(serde_json::Map::is_empty);
    if rest(&before["spec"]) {
        let now = &now["spec"]["affinity"];
        let kept = if now.as_object().is_some_and(serde_json::Map::is_empty) { now } else { &Value::Null };
        put(before, &["spec", "affinity"], kept);
    }
}

/// Copies the resources of containers with the same names.
fn take_resources(before: &mut Value, now: &Value) {
    for list in ["containers", "initContainers"] {
        let now = items(now, &[list]);
        let Some(before) = before.get_mut(list).and_then(Value::as_array_mut) else { continue };
        if before.len() != now.len() {
            continue;
        }
        for (before, now) in before.iter_mut().zip(now).filter(|(before, now)| before["name"] == now["name"])
        {
            put(before, &["resources"], &now["resources"]);
        }
    }
}

/// Sets a field, or removes it if the value is null.
fn put(target: &mut Value, path: &[&str], value: &Value) {
    let Some((name, outer)) = path.split_last() else { return };
    let mut part = target;
    for key in outer {
        if value.is_null() && part[*key].is_null() {
            return;
        }
        part = &mut part[*key];
    }
    match (value, part) {
        (Value::Null, Value::Object(map)) => drop(map.remove(*name)),
        (Value::Null, _) => {}
        (value, part) => part[*name] = value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changed(suspend: bool, status: &Value, pod: &Value) -> Vec<String> {
        let job =
            |template: &Value| json!({"spec": {"suspend": suspend, "template": template}, "status": status});
        let old = job(&json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}));
        let mut errors = Vec::new();
        check(&job(pod), &old, &mut errors);
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn suspended_job_template_accepts_directives_and_resources() {
        let directed = json!({"metadata": {"labels": {"a": "b"}}, "spec": {
            "nodeSelector": {"a": "b"},
            "affinity": {"nodeAffinity": {}},
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}],
        }});
        let other = json!({"spec": {"containers": [{"name": "c", "image": "other"}]}});
        let no: [&str; 0] = [];
        assert_eq!(changed(true, &json!({}), &directed), no);
        assert_eq!(changed(true, &json!({}), &other), ["spec.template.spec"]);
        assert_eq!(changed(true, &json!({"active": 1}), &directed), ["spec.template"]);
        assert_eq!(changed(false, &json!({}), &directed), ["spec.template"]);
    }
}
