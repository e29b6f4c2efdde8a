//! Validation of ResourceSlices: the devices that a driver offers.

use std::collections::HashSet;

use serde_json::Value;

use super::super::field::{Errors, Field};
use super::super::pod::affinity::node_selector;
use super::super::{FieldError, domains, names};
use super::{EFFECTS, pool, qualified};
use tombolo_apicore::value::items;

const DEVICES_MAX: usize = 128;
/// A slice may have fewer devices if they have taints, shared counters or lists of values.
const RICH_DEVICES_MAX: usize = 64;
const ATTRIBUTES_MAX: usize = 32;
const ATTRIBUTE_VALUES_MAX: usize = 48;
const VALUE_LEN_MAX: usize = 64;
const TAINTS_MAX: usize = 16;
const COUNTER_SETS_MAX: usize = 8;
const CONSUMPTIONS_MAX: usize = 2;
const COUNTERS_MAX: usize = 32;
const CONDITIONS_MAX: usize = 4;

const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];
const PLACES: &str = "`nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`";

/// Checks the spec of a slice. Taints of a stored device are not checked again.
pub(super) fn check(spec: &Field<'_, '_>, old: Option<&Value>, errors: &mut Errors) {
    domains::driver(&spec.child("driver"), errors);
    let resource_pool = spec.child("pool");
    pool(&resource_pool.child("name"), errors);
    let (count, generation) = (resource_pool.child("resourceSliceCount"), resource_pool.child("generation"));
    if count.int() <= 0 {
        errors.push(count.invalid_value(count.int(), "must be greater than zero"));
    }
    if generation.int() < 0 {
        errors.push(generation.invalid("must be greater than or equal to zero"));
    }
    node_or_selector(spec, errors);
    let (devices, counters) = (spec.child("devices"), spec.child("sharedCounters"));
    if devices.is_set() && counters.is_set() {
        errors.push(spec.invalid_value("", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let max = if devices.list().iter().any(is_rich) { RICH_DEVICES_MAX } else { DEVICES_MAX };
    if !devices.overfull(max, errors) {
        let per_device = spec.child("perDeviceNodeSelection").is_true();
        devices.items().for_each(|one| device(&one, old, per_device, errors));
        unique(&devices, "name", errors);
    }
    if !counters.overfull(COUNTER_SETS_MAX, errors) {
        for set in counters.items() {
            set.child("name").check_required(names::dns1123_label, errors);
            counter_map(&set.child("counters"), errors);
        }
        unique(&counters, "name", errors);
    }
}

fn is_rich(device: &Value) -> bool {
    let lists = |attribute: &Value| LISTS.iter().any(|list| !attribute[*list].is_null());
    !items(device, &["taints"]).is_empty()
        || !items(device, &["consumesCounters"]).is_empty()
        || device["attributes"].as_object().into_iter().flatten().any(|(_, attribute)| lists(attribute))
}

fn unique(list: &Field<'_, '_>, key: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for item in list.items() {
        let name = item.child(key).text();
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(item.path(), name));
        }
    }
}

/// Checks which nodes can reach the devices: exactly one of four ways is set.
fn node_or_selector(spec: &Field<'_, '_>, errors: &mut Errors) {
    let mut ways = Vec::new();
    let node = spec.child("nodeName");
    if node.is_set() && node.text().is_empty() {
        errors.push(node.invalid("must be either unset or set to a non-empty string"));
    } else if node.is_set() {
        ways.push("`nodeName`");
        node.grammar(names::dns1123_subdomain, errors);
    }
    let selector = spec.child("nodeSelector");
    if selector.is_set() {
        ways.push("`nodeSelector`");
        node_selector(&selector, errors);
        let terms = selector.child("nodeSelectorTerms");
        if terms.len() != 1 {
            errors.push(terms.invalid("must have exactly one node selector term"));
        }
    }
    for (field, way) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")] {
        let field = spec.child(field);
        if field.is_true() {
            ways.push(way);
        } else if field.is_set() {
            errors.push(field.invalid("must be either unset or set to true"));
        }
    }
    match ways.len() {
        0 => errors.push(spec.required(&format!("exactly one of {PLACES} is required"))),
        1 => {}
        _ => {
            let detail = format!("exactly one of {PLACES} is required, but multiple fields are set");
            errors.push(spec.invalid_value(format!("{{{}}}", ways.join(", ")), detail));
        }
    }
}

fn device(device: &Field<'_, '_>, old: Option<&Value>, per_device: bool, errors: &mut Errors) {
    let name = device.child("name");
    name.grammar(names::dns1123_label, errors);
    let (attributes, capacity) = (device.child("attributes"), device.child("capacity"));
    let count = attributes.len() + capacity.len();
    if count > ATTRIBUTES_MAX {
        let detail =
            format!("the total number of attributes and capacities must not exceed {ATTRIBUTES_MAX}");
        errors.push(device.invalid_value(count, detail));
    }
    let values: usize = attributes.entries().map(|(_, one)| value_count(&one)).sum();
    if values > ATTRIBUTE_VALUES_MAX {
        let detail = format!("the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}");
        errors.push(device.invalid_value(values, detail));
    }
    for (key, value) in attributes.entries() {
        qualified(&attributes, key, errors);
        attribute(&value, errors);
    }
    let is_shared = device.child("allowMultipleAllocations").is_true();
    for (key, value) in capacity.entries() {
        qualified(&capacity, key, errors);
        super::capacity::check(&value, is_shared, errors);
    }
    let before = old.into_iter().flat_map(|old| items(old, &["spec", "devices"]));
    let is_kept = before
        .filter(|before| before["name"] == *name.value())
        .any(|before| before["taints"] == *device.child("taints").value());
    let taints = device.child("taints");
    if !is_kept && !taints.overfull(TAINTS_MAX, errors) {
        taints.items().for_each(|one| taint(&one, errors));
    }
    consumption(&device.child("consumesCounters"), errors);
    own_place(device, per_device, errors);
    binding(device, errors);
}

fn value_count(attribute: &Field<'_, '_>) -> usize {
    LISTS.iter().map(|list| attribute.child(list).len()).sum::<usize>().max(1)
}

fn attribute(attribute: &Field<'_, '_>, errors: &mut Errors) {
    const SINGLE: [&str; 4] = ["bool", "int", "string", "version"];
    let set = SINGLE.iter().chain(&LISTS).filter(|field| attribute.child(field).is_set()).count();
    let (text, version) = (attribute.child("string"), attribute.child("version"));
    text.overlong(VALUE_LEN_MAX, errors);
    if version.is_set() {
        self::version(&version, errors);
    }
    for list in LISTS.iter().map(|list| attribute.child(list)).filter(Field::is_set) {
        if list.is_empty() {
            errors.push(list.invalid("must not be empty if specified"));
        }
    }
    attribute.child("strings").items().for_each(|one| one.overlong(VALUE_LEN_MAX, errors));
    attribute.child("versions").items().for_each(|one| self::version(&one, errors));
    match set {
        0 => errors.push(attribute.invalid_value("", "exactly one value must be specified")),
        1 => {}
        _ => errors.push(attribute.invalid("exactly one value must be specified")),
    }
}

fn version(version: &Field<'_, '_>, errors: &mut Errors) {
    if !is_semantic(version.text()) {
        errors.push(version.invalid("must be a string compatible with semver.org spec 2.0.0"));
    }
    version.overlong(VALUE_LEN_MAX, errors);
}

/// Whether a text is a version according to semver.org 2.0.0: `1.2.3-alpha.1+build`.
fn is_semantic(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, release) = text.split_once('-').map_or((text, None), |(core, release)| (core, Some(release)));
    let is_word =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let is_plain = |part: &str| !part.is_empty() && (part == "0" || !part.starts_with('0'));
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.iter().all(|part| is_number(part) && is_plain(part))
        && release.is_none_or(|release| {
            release.split('.').all(|part| is_word(part) && (!is_number(part) || is_plain(part)))
        })
        && build.is_none_or(|build| build.split('.').all(is_word))
}

fn taint(taint: &Field<'_, '_>, errors: &mut Errors) {
    taint.child("key").grammar(names::qualified_name, errors);
    let value = taint.child("value");
    value.grammar(names::label_value, errors);
    taint.child("effect").one_of_required(&EFFECTS, errors);
}

fn consumption(list: &Field<'_, '_>, errors: &mut Errors) {
    if list.overfull(CONSUMPTIONS_MAX, errors) {
        return;
    }
    for one in list.items() {
        one.child("counterSet").check_required(names::dns1123_label, errors);
        counter_map(&one.child("counters"), errors);
    }
    unique(list, "counterSet", errors);
}

fn counter_map(counters: &Field<'_, '_>, errors: &mut Errors) {
    if counters.is_empty() {
        errors.push(counters.required(""));
    } else if !counters.overfull(COUNTERS_MAX, errors) {
        for (name, _) in counters.entries() {
            errors.extend(names::dns1123_label(name).map(|problem| counters.invalid_value(name, problem)));
        }
    }
}

fn own_place(device: &Field<'_, '_>, per_device: bool, errors: &mut Errors) {
    let [node, selector, all] = ["nodeName", "nodeSelector", "allNodes"].map(|field| device.child(field));
    let set = [("`nodeName`", &node), ("`nodeSelector`", &selector), ("`allNodes`", &all)];
    let ways: Vec<&str> = set.iter().filter(|(_, field)| field.is_set()).map(|(way, _)| *way).collect();
    if !per_device {
        if !ways.is_empty() {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.push(device.invalid_value(Value::Null, detail));
        }
        return;
    }
    node.check(names::dns1123_subdomain, errors);
    if node.is_set() && node.text().is_empty() {
        errors.push(node.invalid("must not be empty"));
    }
    if all.is_set() && !all.is_true() {
        errors.push(all.invalid("must be either unset or set to true"));
    }
    let detail = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match ways.len() {
        0 => errors.push(device.required(detail)),
        1 => {}
        _ => errors.push(device.invalid_value(format!("{{{}}}", ways.join(", ")), detail)),
    }
}

/// Conditions for a successful binding must come with conditions for a failed one.
fn binding(device: &Field<'_, '_>, errors: &mut Errors) {
    let (bound, failed) = (device.child("bindingConditions"), device.child("bindingFailureConditions"));
    for list in [&bound, &failed] {
        if !list.overfull(CONDITIONS_MAX, errors) {
            list.items().for_each(|one| one.grammar(names::qualified_name, errors));
        }
        list.unique(errors);
    }
    for condition in failed.items().filter(|condition| bound.list().contains(condition.value())) {
        let detail = "bindingFailureConditions must not overlap with bindingConditions";
        errors.push(condition.invalid(detail));
    }
    match (bound.is_empty(), failed.is_empty()) {
        (true, false) => {
            errors.push(bound.invalid("bindingConditions are required to use bindingFailureConditions"));
        }
        (false, true) => {
            errors.push(failed.invalid("bindingFailureConditions are required to use bindingConditions"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::is_semantic;

    #[test]
    fn versions_are_semantic() {
        for good in ["1.2.3", "0.0.0", "1.2.3-alpha.1", "1.2.3+b.01", "1.2.3-0a+x"] {
            assert!(is_semantic(good), "{good}");
        }
        for bad in ["", "1.2", "01.2.3", "1.2.3-01", "1.2.3-", "1.2.3+", "v1.2.3"] {
            assert!(!is_semantic(bad), "{bad}");
        }
    }
}
