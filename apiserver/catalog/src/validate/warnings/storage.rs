//! Warnings about storage drivers, classes and capacities.

use serde_json::Value;

use super::labels::old_label;
use tombolo_apicore::value::{items, text};

const TOKENS_IN_SECRETS: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to \
                                 true to prevent possible logging of tokens in volume attributes";

/// Warns of a driver that requests tokens without setting whether it receives them as secrets.
pub(super) fn driver(object: &Value, old: Option<&Value>, warnings: &mut Vec<String>) {
    let tokens = |object: &Value| items(object, &["spec", "tokenRequests"]).to_vec();
    let unset = object["spec"]["serviceAccountTokenInSecrets"].is_null();
    let wanted = tokens(object);
    let changed = old.is_none_or(|old| tokens(old) != wanted);
    if unset && changed && !wanted.is_empty() {
        warnings.push(TOKENS_IN_SECRETS.to_owned());
    }
}

/// Warns of deprecated labels in the topologies of a class.
pub(super) fn topologies(class: &Value, warnings: &mut Vec<String>) {
    for (index, topology) in items(class, &["allowedTopologies"]).iter().enumerate() {
        for (inner, expression) in items(topology, &["matchLabelExpressions"]).iter().enumerate() {
            if let Some(why) = old_label(text(expression, &["key"])) {
                warnings
                    .push(format!("allowedTopologies[{index}].matchLabelExpressions[{inner}].key: {why}"));
            }
        }
    }
}

/// Warns of deprecated labels in the selector of a capacity.
pub(super) fn node_topology(selector: &Value, warnings: &mut Vec<String>) {
    for (index, expression) in items(selector, &["matchExpressions"]).iter().enumerate() {
        let key = text(expression, &["key"]);
        if let Some(why) = old_label(key) {
            warnings.push(format!("nodeTopology.matchExpressions[{index}].key: {key} is {why}"));
        }
    }
    for key in selector["matchLabels"].as_object().into_iter().flat_map(|labels| labels.keys()) {
        if let Some(why) = old_label(key) {
            warnings.push(format!("nodeTopology.matchLabels.{key}: {why}"));
        }
    }
}
