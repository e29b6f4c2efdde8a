//! The scopes of quotas: which objects a quota counts.

use serde_json::Value;

use super::{Item, pods};
use crate::objects::{items, text};

/// Whether an object is in all scopes of a quota. A quota without scopes counts every object.
pub(super) fn contain(quota: &Value, item: Item<'_>) -> bool {
    let named = items(quota, "/spec/scopes").iter().filter_map(Value::as_str);
    let selected = items(quota, "/spec/scopeSelector/matchExpressions");
    named.into_iter().all(|scope| has(item, scope, "Exists", &[]))
        && selected.iter().all(|selector| {
            has(item, text(selector, "/scopeName"), text(selector, "/operator"), items(selector, "/values"))
        })
}

fn has(item: Item<'_>, scope: &str, operator: &str, values: &[Value]) -> bool {
    let object = item.object;
    match (item.group, item.resource, scope) {
        ("", "pods", "Terminating") => pods::has_deadline(object),
        ("", "pods", "NotTerminating") => !pods::has_deadline(object),
        ("", "pods", "BestEffort") => pods::is_best_effort(object),
        ("", "pods", "NotBestEffort") => !pods::is_best_effort(object),
        ("", "pods", "CrossNamespacePodAffinity") => pods::has_affinity_across_namespaces(object),
        ("", "pods", "PriorityClass") => {
            selects(operator, values, &[text(object, "/spec/priorityClassName")])
        }
        ("", "persistentvolumeclaims", "VolumeAttributesClass") => {
            let classes = [
                "/spec/volumeAttributesClassName",
                "/status/currentVolumeAttributesClassName",
                "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
            ];
            selects(operator, values, &classes.map(|pointer| text(object, pointer)))
        }
        // Other objects have no scopes, so quotas with scopes do not count them.
        _ => false,
    }
}

/// Whether one of an object's classes is selected. Empty names mean no class.
fn selects(operator: &str, values: &[Value], classes: &[&str]) -> bool {
    let own: Vec<&str> = classes.iter().copied().filter(|class| !class.is_empty()).collect();
    let listed = |class: &str| values.iter().any(|value| value == class);
    match operator {
        "Exists" => !own.is_empty(),
        "DoesNotExist" => own.is_empty(),
        "In" => own.iter().any(|class| listed(class)),
        "NotIn" => own.is_empty() || own.iter().any(|class| !listed(class)),
        _ => false,
    }
}
