//! Validation of nodes.

use core::net::IpAddr;
use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::field::{Errors, Field};
use super::{FieldError, addresses, names, quantities};
use tombolo_apicore::value::text;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";

/// Checks a node.
pub(super) fn check(node: &Value, errors: &mut Errors) {
    let annotation = text(node, &["metadata", "annotations", TAINTS]);
    if !annotation.is_empty() {
        match serde_json::from_str::<Value>(annotation) {
            Ok(list) => taints(&Field::root(&format!("metadata.annotations.{TAINTS}"), &list), errors),
            Err(error) => {
                errors.push(FieldError::invalid("metadata.annotations", TAINTS, error.to_string()));
            }
        }
    }
    taints(&Field::root("metadata.taints", &node["spec"]["taints"]), errors);
    offers(node, errors);
    let spec = Field::root("spec", &node["spec"]);
    let ranges = spec.child("podCIDRs");
    ranges.items().for_each(|range| addresses::network(&range, range.text(), errors));
    let families: Vec<Option<IpAddr>> = ranges
        .items()
        .map(|range| addresses::sloppy_network(range.text()).map(|(address, _)| address))
        .collect();
    if families.len() > 1 && (families.len() > 2 || !addresses::is_dual_stack(&families)) {
        errors.push(ranges.invalid("may specify no more than one CIDR for each IP family"));
    }
}

/// Checks taints. kube-apiserver reports their errors in the metadata.
fn taints(list: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for taint in list.items() {
        let (key, value, effect) = (taint.child("key"), taint.child("value"), taint.child("effect"));
        key.check_all(names::qualified_name(key.text()), errors);
        let problems = names::label_value(value.text());
        if !problems.is_empty() {
            errors.push(value.invalid(problems.join(";")));
        }
        effect.one_of_required(&EFFECTS, errors);
        if !seen.insert((key.text(), effect.text())) {
            let text = "taints must be unique by key and effect pair";
            errors.push(FieldError { detail: text.to_owned(), ..taint.duplicate() });
        }
    }
}

/// Checks the capacity and the allocatable resources of a node.
fn offers(node: &Value, errors: &mut Errors) {
    resources(node, errors);
    features(&Field::root("status.declaredFeatures", &node["status"]["declaredFeatures"]), errors);
}

fn resources(node: &Value, errors: &mut Errors) {
    for list in ["capacity", "allocatable"] {
        let amounts = Field::root("status", &node["status"]);
        let amounts = amounts.child(list);
        for (name, amount) in amounts.entries() {
            quantities::amount(name, &amounts.with(name, amount.value()), errors);
        }
    }
}

static FEATURE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$").expect("the expression is right")
});

/// Maximum length of a feature's name in bytes.
const FEATURE_LEN_MAX: usize = 253;

/// Checks the declared features of a node: sorted and unique.
fn features(list: &Field<'_, '_>, errors: &mut Errors) {
    let mut before: Option<&str> = None;
    for feature in list.items() {
        let name = feature.text();
        match before {
            Some(before) if before == name => errors.push(feature.duplicate()),
            Some(before) if before > name => {
                errors.push(feature.invalid("list must be sorted alphabetically"));
            }
            _ => {}
        }
        before = Some(name);
        if name.len() > FEATURE_LEN_MAX {
            let text =
                format!("invalid feature name {name:?}: must be no more than {FEATURE_LEN_MAX} characters");
            errors.push(feature.invalid(text));
        } else if !FEATURE.is_match(name) {
            let text = format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            errors.push(feature.invalid(text));
        }
    }
}

/// Checks an update, including one of the status. Errors of a new node are reported once more, as in kube-apiserver,
/// whose list of causes has them twice.
pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    offers(new, errors);
    let root = Field::root("status.addresses", &new["status"]["addresses"]);
    let mut seen = HashSet::new();
    for address in root.items() {
        if !seen.insert((address.child("type").text(), address.child("address").text())) {
            errors.push(address.duplicate());
        }
    }
    let (now, before) = (Field::root("spec", &new["spec"]), Field::root("spec", &old["spec"]));
    let (ranges, had) = (now.child("podCIDRs"), before.child("podCIDRs"));
    if !had.is_empty() {
        let text = "node updates may not change podCIDR except from \"\" to valid";
        let changed = match ranges.list().len() == had.list().len() {
            true => ranges.list().iter().zip(had.list()).filter(|(now, before)| now != before).count(),
            false => 1,
        };
        errors.extend(std::iter::repeat_n(ranges.forbidden(text), changed));
    }
    let provider = now.child("providerID");
    let had = before.child("providerID");
    if !had.is_empty() && had.text() != provider.text() {
        let text = "node updates may not change providerID except from \"\" to valid";
        errors.push(provider.forbidden(text));
    }
    taints(&Field::root("metadata.taints", &new["spec"]["taints"]), errors);
    if now.child("externalID").text() != before.child("externalID").text() {
        errors.push(now.child("externalID").forbidden("may not be updated"));
    }
}
