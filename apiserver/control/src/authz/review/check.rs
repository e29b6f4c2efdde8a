//! Validation of access reviews (Kubernetes `pkg/apis/authorization/validation`).

use serde_json::{Map, Value, json};
use tombolo_apicore::names;
use tombolo_apicore::selector::field::FieldSelector;
use tombolo_apicore::selector::label::LabelSelector;
use tombolo_apicore::status::{ApiError, Cause};

use super::Review;
use crate::objects::{items, text};

/// Which fields of `metadata` a review may have: none, or the namespace of its path.
pub(super) enum Scope<'a> {
    Cluster,
    /// The scope of a local review.
    Namespace(&'a str),
}

/// Refuses an invalid access review.
///
/// # Errors
/// 422 with all errors.
pub(super) fn access(kind: Review, review: &Value, scope: &Scope<'_>) -> Result<(), ApiError> {
    let mut causes = Vec::new();
    let resource = part(review, "resourceAttributes");
    let path = part(review, "nonResourceAttributes");
    match (resource, path) {
        (Some(_), Some(path)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            causes.push(invalid("spec.nonResourceAttributes", &shown(path), why));
        }
        (None, None) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.push(invalid("spec.resourceAttributes", "null", why));
        }
        _ => {}
    }
    if kind == Review::Subject
        && text(review, "/spec/user").is_empty()
        && items(review, "/spec/groups").is_empty()
    {
        causes.push(invalid("spec.user", "\"\"", "at least one of user or group must be specified"));
    }
    if let Some(resource) = resource {
        selector(resource, "fieldSelector", &mut causes);
        selector(resource, "labelSelector", &mut causes);
    }
    metadata(review, scope, &mut causes);
    if let Scope::Namespace(namespace) = scope {
        let asked = resource.map(|resource| text(resource, "/namespace"));
        if let Some(asked) = asked.filter(|asked| asked != namespace) {
            let field = "spec.resourceAttributes.namespace";
            causes.push(invalid(field, &format!("{asked:?}"), "must match metadata.namespace"));
        }
        if let Some(path) = path {
            let why = "disallowed on this kind of request";
            causes.push(invalid("spec.nonResourceAttributes", &shown(path), why));
        }
    }
    if causes.is_empty() {
        return Ok(());
    }
    // kube-apiserver's error has no kind.
    Err(ApiError::invalid("authorization.k8s.io", "", "", causes))
}

/// Why selectors of a review were ignored; empty when none was.
pub(super) fn ignored(review: &Value) -> String {
    let raw = |name: &str| text(review, &format!("/spec/resourceAttributes/{name}/rawSelector"));
    let broken = [
        ("fieldSelector", FieldSelector::parse(raw("fieldSelector")).is_err()),
        ("labelSelector", LabelSelector::parse(raw("labelSelector")).is_err()),
    ];
    let broken = broken.into_iter().filter(|(_, broken)| *broken);
    let texts = broken.map(|(name, _)| format!("spec.resourceAttributes.{name} ignored due to parse error"));
    texts.collect::<Vec<_>>().join("; ")
}

fn part<'a>(review: &'a Value, name: &str) -> Option<&'a Value> {
    review.get("spec")?.get(name).filter(|value| value.is_object())
}

/// A path and a verb with their field names in Go.
fn shown(path: &Value) -> String {
    format!("{{\"Path\":{},\"Verb\":{}}}", json!(text(path, "/path")), json!(text(path, "/verb")))
}

fn metadata(review: &Value, scope: &Scope<'_>, causes: &mut Vec<Cause>) {
    let Some(metadata) = review.get("metadata").and_then(Value::as_object) else { return };
    let (allowed, why) = match scope {
        Scope::Cluster => (["managedFields", ""], "must be empty"),
        Scope::Namespace(_) => (["managedFields", "namespace"], "must be empty except for namespace"),
    };
    let empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    if metadata.iter().any(|(name, value)| !allowed.contains(&name.as_str()) && !empty(value)) {
        causes.push(invalid("metadata", &review["metadata"].to_string(), why));
    }
}

fn selector(resource: &Value, name: &str, causes: &mut Vec<Cause>) {
    let Some(selector) = resource.get(name).filter(|value| value.is_object()) else { return };
    let path = format!("spec.resourceAttributes.{name}");
    let raw = text(selector, "/rawSelector");
    let requirements = items(selector, "/requirements");
    if !raw.is_empty() && !requirements.is_empty() {
        let why = "may not specified at the same time as requirements";
        causes.push(invalid(&format!("{path}.rawSelector"), &format!("{raw:?}"), why));
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {path} is specified, requirements or rawSelector is required");
        causes.push(required(&format!("{path}.requirements"), &why));
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let path = format!("{path}.requirements[{index}]");
        check_requirement(requirement, &path, name == "labelSelector", causes);
    }
}

/// Checks a requirement. Unknown operators are allowed, for newer clients.
fn check_requirement(requirement: &Value, path: &str, label: bool, causes: &mut Vec<Cause>) {
    let values = items(requirement, "/values");
    match text(requirement, "/operator") {
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            causes.push(required(&format!("{path}.values"), why));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.push(Cause::new("FieldValueForbidden", &format!("{path}.values"), why));
        }
        _ => {}
    }
    let (key, field) = (text(requirement, "/key"), format!("{path}.key"));
    if !label && key.is_empty() {
        causes.push(required(&field, "must be specified"));
    }
    let problems = if label { names::qualified_name(key) } else { Vec::new() };
    causes.extend(problems.iter().map(|problem| invalid(&field, &format!("{key:?}"), problem)));
}

fn invalid(field: &str, shown: &str, why: &str) -> Cause {
    Cause::new("FieldValueInvalid", field, &format!("Invalid value: {shown}: {why}"))
}

fn required(field: &str, why: &str) -> Cause {
    Cause::new("FieldValueRequired", field, &format!("Required value: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(kind: Review, review: &Value, scope: &Scope<'_>) -> Vec<String> {
        let causes = access(kind, review, scope).err().and_then(|error| error.details);
        causes.into_iter().flat_map(|details| details.causes).map(|cause| cause.field).collect()
    }

    #[test]
    fn malformed_reviews_are_refused() {
        let local = Scope::Namespace("shop");
        let mine = json!({"resourceAttributes": {}});
        for (kind, scope, spec, wanted) in [
            (Review::SelfSubject, &Scope::Cluster, json!({}), vec!["spec.resourceAttributes"]),
            (Review::SelfSubject, &Scope::Cluster, mine.clone(), vec![]),
            (Review::Subject, &Scope::Cluster, mine, vec!["spec.user"]),
            (
                Review::Subject,
                &local,
                json!({"user": "u", "resourceAttributes": {"namespace": "home"}}),
                vec!["spec.resourceAttributes.namespace"],
            ),
            (
                Review::SelfSubject,
                &Scope::Cluster,
                json!({"resourceAttributes": {"labelSelector": {}, "fieldSelector": {"requirements": [{"operator": "In"}]}}}),
                vec![
                    "spec.resourceAttributes.fieldSelector.requirements[0].values",
                    "spec.resourceAttributes.fieldSelector.requirements[0].key",
                    "spec.resourceAttributes.labelSelector.requirements",
                ],
            ),
        ] {
            assert_eq!(fields(kind, &json!({"spec": spec}), scope), wanted, "{spec}");
        }
        let named = json!({"metadata": {"name": "x"}, "spec": {"nonResourceAttributes": {}}});
        assert_eq!(fields(Review::SelfSubject, &named, &Scope::Cluster), ["metadata"]);
    }

    #[test]
    fn selectors_that_do_not_parse_are_named() {
        let review = json!({"spec": {"resourceAttributes": {"labelSelector": {"rawSelector": "!!"}}}});
        assert_eq!(ignored(&review), "spec.resourceAttributes.labelSelector ignored due to parse error");
        assert_eq!(ignored(&json!({})), "");
    }
}
