//! LimitRanger: the LimitRanges of a namespace give defaults to containers that set no requests or limits, and bound
//! what they may set.

use std::cmp::Ordering;

use serde_json::{Value, json};
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::schema::Quantity;
use tombolo_apicore::status::ApiError;

use super::refuse;
use crate::objects::{Objects, core, items, member, text};
use crate::quota::{Amounts, together};

/// Annotation that tells users what was set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Completes the containers of a new pod.
pub(super) fn complete(objects: &Objects, request: &mut AdmissionRequest<'_>) {
    if !is_judged(request) || request.attributes.resource != "pods" {
        return;
    }
    let ranges = objects.list(&core("limitranges"), Some(request.namespace));
    let Some(pod) = request.object.as_deref_mut() else { return };
    for range in ranges {
        give(&range.value, pod);
    }
}

/// Refuses a pod or a claim that exceeds the limits of the namespace.
///
/// # Errors
/// 403 with all violations.
pub(super) fn admit(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let Some(object) = request.object.as_deref().filter(|_| is_judged(request)) else { return Ok(()) };
    for range in objects.list(&core("limitranges"), Some(request.namespace)) {
        let mut wrong = Vec::new();
        for limit in items(&range.value, "/spec/limits") {
            judge(limit, &request.attributes.resource, object, &mut wrong);
        }
        match wrong.as_slice() {
            [] => {}
            [only] => return Err(refuse(request.attributes, request.name, only)),
            // As Go joins errors: a repeated text appears once.
            several => {
                let mut said: Vec<&str> = Vec::new();
                for text in several.iter().map(String::as_str) {
                    if !said.contains(&text) {
                        said.push(text);
                    }
                }
                let all = said.join(", ");
                let why = if said.len() == 1 { all } else { format!("[{all}]") };
                return Err(refuse(request.attributes, request.name, why));
            }
        }
    }
    Ok(())
}

/// Whether limits apply: to pods when they are created or resized, to claims on every write, and not to deletions.
fn is_judged(request: &AdmissionRequest<'_>) -> bool {
    let asked = request.attributes;
    let leaving = request.old.is_some_and(|old| old.pointer("/metadata/deletionTimestamp").is_some());
    let judged = match (asked.group.as_str(), asked.resource.as_str(), asked.subresource.as_str()) {
        ("", "pods", "") => request.operation == Operation::Create,
        ("", "pods", "resize") => request.operation == Operation::Update,
        ("", "persistentvolumeclaims", "") => request.operation != Operation::Delete,
        _ => false,
    };
    judged && !leaving
}

/// Sets the defaults of a range that a container does not set itself.
fn give(range: &Value, pod: &mut Value) {
    let (mut requests, mut limits) = (Amounts::default(), Amounts::default());
    for limit in items(range, "/spec/limits").iter().filter(|limit| text(limit, "/type") == "Container") {
        let set = |into: &mut Amounts, from: &Amounts| {
            from.names().for_each(|name| into.set(name, from.get(name).unwrap_or(Quantity::ZERO)));
        };
        set(&mut requests, &Amounts::read(limit.get("defaultRequest")));
        set(&mut limits, &Amounts::read(limit.get("default")));
    }
    let mut said = Vec::new();
    for (list, title) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = text(container, "/name").to_owned();
            for (kind, word, defaults) in [("requests", "request", &requests), ("limits", "limit", &limits)] {
                let set = fill(container, kind, defaults);
                if !set.is_empty() {
                    said.push(format!("{} {word} for {title} {name}", set.join(", ")));
                }
            }
        }
    }
    if !said.is_empty() {
        let metadata = pod.as_object_mut().map(|pod| pod.entry("metadata").or_insert_with(|| json!({})));
        if let Some(metadata) = metadata {
            let text = format!("LimitRanger plugin set: {}", said.join("; "));
            member(metadata, "annotations").insert(ANNOTATION.to_owned(), text.into());
        }
    }
}

/// Adds the defaults that a container's list lacks. Returns the names that were added, in order.
fn fill(container: &mut Value, kind: &str, defaults: &Amounts) -> Vec<String> {
    let own = Amounts::read(container.pointer(&format!("/resources/{kind}")));
    let missing = defaults.only(|name| own.get(name).is_none());
    if missing.is_empty() {
        return Vec::new();
    }
    let resources = member(container, "resources");
    let list = resources.entry(kind).or_insert_with(|| json!({}));
    if let (Some(list), Value::Object(added)) = (list.as_object_mut(), missing.to_value()) {
        list.extend(added);
    }
    missing.names().map(str::to_owned).collect()
}

/// Checks an object against one limit of a range.
fn judge(limit: &Value, resource: &str, object: &Value, wrong: &mut Vec<String>) {
    match (text(limit, "/type"), resource) {
        ("Container", "pods") => {
            let containers = items(object, "/spec/containers").iter();
            for container in containers.chain(items(object, "/spec/initContainers")) {
                let list = |kind: &str| Amounts::read(container.pointer(&format!("/resources/{kind}")));
                compare(limit, &list("requests"), &list("limits"), wrong);
            }
        }
        ("Pod", "pods") => compare(limit, &together(object, "requests"), &together(object, "limits"), wrong),
        ("PersistentVolumeClaim", "persistentvolumeclaims") => {
            let asked = Amounts::read(object.pointer("/spec/resources/requests"));
            for (name, least) in bounds(limit, "min") {
                wrong.extend(below(limit, &name, least, &asked, &Amounts::default()));
            }
            for (name, most) in bounds(limit, "max") {
                wrong.extend(above_most(limit, &name, most, &asked));
            }
        }
        _ => {}
    }
}

fn bounds(limit: &Value, list: &str) -> Vec<(String, Quantity)> {
    let bounds = Amounts::read(limit.get(list));
    bounds.names().filter_map(|name| Some((name.to_owned(), bounds.get(name)?))).collect()
}

fn compare(limit: &Value, requests: &Amounts, limits: &Amounts, wrong: &mut Vec<String>) {
    for (name, least) in bounds(limit, "min") {
        wrong.extend(below(limit, &name, least, requests, limits));
    }
    for (name, most) in bounds(limit, "max") {
        wrong.extend(above(limit, &name, most, requests, limits));
    }
    for (name, ratio) in bounds(limit, "maxLimitRequestRatio") {
        wrong.extend(stretched(limit, &name, ratio, requests, limits));
    }
}

fn below(limit: &Value, name: &str, least: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let rule = format!("minimum {name} usage per {} is {least}", text(limit, "/type"));
    match (requests.get(name), limits.get(name)) {
        (None, _) => Some(format!("{rule}.  No request is specified")),
        (Some(request), _) if request < least => Some(format!("{rule}, but request is {request}")),
        (_, Some(allowed)) if allowed < least => Some(format!("{rule}, but limit is {allowed}")),
        _ => None,
    }
}

fn above(limit: &Value, name: &str, most: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let rule = format!("maximum {name} usage per {} is {most}", text(limit, "/type"));
    match (requests.get(name), limits.get(name)) {
        (_, None) => Some(format!("{rule}.  No limit is specified")),
        (_, Some(allowed)) if allowed > most => Some(format!("{rule}, but limit is {allowed}")),
        (Some(request), _) if request > most => Some(format!("{rule}, but request is {request}")),
        _ => None,
    }
}

/// As [`above`], for claims, which have only requests.
fn above_most(limit: &Value, name: &str, most: Quantity, requests: &Amounts) -> Option<String> {
    let rule = format!("maximum {name} usage per {} is {most}", text(limit, "/type"));
    match requests.get(name) {
        None => Some(format!("{rule}.  No request is specified")),
        Some(request) if request > most => Some(format!("{rule}, but request is {request}")),
        Some(_) => None,
    }
}

fn stretched(
    limit: &Value,
    name: &str,
    most: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let rule = format!("{name} max limit to request ratio per {} is {most}", text(limit, "/type"));
    let given = |amounts: &Amounts| amounts.get(name).filter(|own| own.sign() != Ordering::Equal);
    let Some(request) = given(requests) else {
        return Some(format!("{rule}, but no request is specified or request is 0"));
    };
    let Some(allowed) = given(limits) else {
        return Some(format!("{rule}, but no limit is specified or limit is 0"));
    };
    let ratio = allowed.ratio(request);
    let most = most.ratio(Quantity::whole(1));
    (ratio > most).then(|| format!("{rule}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range() -> Value {
        json!({"spec": {"limits": [
            {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m", "memory": "1Mi"},
             "max": {"cpu": "1"}, "min": {"cpu": "50m"}, "maxLimitRequestRatio": {"cpu": "6"}},
            {"type": "Pod", "max": {"cpu": "1"}},
            {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]}})
    }

    fn judged(resource: &str, object: &Value) -> Vec<String> {
        let (range, mut wrong) = (range(), Vec::new());
        for limit in items(&range, "/spec/limits") {
            judge(limit, resource, object, &mut wrong);
        }
        wrong
    }

    #[test]
    fn containers_get_limit_range_defaults() {
        let mut pod =
            json!({"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "200m"}}}]}});
        give(&range(), &mut pod);
        let resources = json!({"requests": {"cpu": "200m", "memory": "1Mi"}, "limits": {"cpu": "500m"}});
        assert_eq!(pod["spec"]["containers"][0]["resources"], resources);
        let said = "LimitRanger plugin set: memory request for container a; cpu limit for container a";
        assert_eq!(pod["metadata"]["annotations"][ANNOTATION], said);
        assert!(judged("pods", &pod).is_empty());
    }

    #[test]
    fn limit_range_violations_are_named() {
        let container = |request: &str, limit: &str| json!({"name": "a", "resources": {"requests": {"cpu": request}, "limits": {"cpu": limit}}});
        let pod = |containers: Value| json!({"spec": {"containers": containers}});
        let cases = [
            (
                pod(json!([container("10m", "50m")])),
                "minimum cpu usage per Container is 50m, but request is 10m",
            ),
            (
                pod(json!([container("100m", "700m")])),
                "cpu max limit to request ratio per Container is 6, but provided ratio is 7.000000",
            ),
            (
                pod(json!([container("600m", "600m"), container("600m", "600m")])),
                "maximum cpu usage per Pod is 1, but limit is 1200m",
            ),
        ];
        for (pod, expected) in cases {
            assert_eq!(judged("pods", &pod), [expected]);
        }
        let claim = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let small = "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi";
        assert_eq!(judged("persistentvolumeclaims", &claim("1Mi")), [small]);
        let large = "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi";
        assert_eq!(judged("persistentvolumeclaims", &claim("3Gi")), [large]);
        assert!(judged("persistentvolumeclaims", &claim("2Gi")).is_empty());
    }
}
