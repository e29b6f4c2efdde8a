//! Matching of `metav1.LabelSelector` objects.

use serde_json::Value;

use super::objects::{items, text};

/// Whether a selector selects an object by its labels. An empty selector selects everything.
pub(super) fn selects(selector: &Value, object: &Value) -> bool {
    let labels = object.pointer("/metadata/labels");
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    let exact = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let exact = exact.into_iter().all(|(key, wanted)| label(key) == wanted.as_str());
    exact && items(selector, "/matchExpressions").iter().all(|expression| fits(expression, label))
}

fn fits<'a>(expression: &Value, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let own = label(text(expression, "/key"));
    let listed = own.is_some_and(|own| items(expression, "/values").iter().any(|value| value == own));
    match text(expression, "/operator") {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => own.is_some(),
        "DoesNotExist" => own.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_expressions_select() {
        let object = json!({"metadata": {"labels": {"app": "till", "tier": "front"}}});
        for (selector, selected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "till"}}), true),
            (json!({"matchLabels": {"app": "other"}}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}), false),
            (json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["front"]}]}), true),
            (json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}), true),
            (json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}), false),
        ] {
            assert_eq!(selects(&selector, &object), selected, "{selector}");
        }
    }
}
