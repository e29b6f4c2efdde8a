//! Validation of resource.k8s.io: claims and device classes (pkg/apis/resource/validation). Resource slices have their
//! own file.

mod capacity;
mod slices;
mod status;

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::field::{Errors, Field};
use super::walk::top;
use super::{domains, meta, names};

pub(super) use self::status::check as status;

const REQUESTS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const CONSTRAINTS_MAX: usize = 32;
const CONFIGS_MAX: usize = 32;
const SELECTORS_MAX: usize = 32;
const EXPRESSION_LEN_MAX: usize = 10 * 1024;
const PARAMETERS_LEN_MAX: usize = 10 * 1024;
const IDENTIFIER_LEN_MAX: usize = 32;
const POOL_NAME_LEN_MAX: usize = 253;

const ONE_OF_BOTH: &str = "exactly one of `exactly` or `firstAvailable` is required";
const REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
const IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";

/// Checks one of these kinds. Claims are immutable.
pub(super) fn check(kind: &str, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    match kind {
        "ResourceClaim" if old.is_none() => claim(&top(object, "spec.devices"), errors),
        "ResourceClaimTemplate" => {
            let labels = top(object, "spec.metadata.labels");
            meta::labels(labels.value(), &labels.path(), errors);
            claim(&top(object, "spec.spec.devices"), errors);
        }
        "DeviceClass" => {
            selectors(&top(object, "spec.selectors"), errors);
            let configs = top(object, "spec.config");
            if !configs.overfull(CONFIGS_MAX, errors) {
                configs.items().for_each(|one| opaque(&one.child("opaque"), errors));
            }
        }
        "ResourceSlice" => slices::check(&top(object, "spec"), old, errors),
        _ => {}
    }
}

/// Requests of a claim by name, with the names of their alternatives.
type DeviceRequests<'a> = HashMap<&'a str, HashSet<&'a str>>;

fn requests<'a>(devices: &Field<'_, 'a>) -> DeviceRequests<'a> {
    let mut named = DeviceRequests::new();
    for request in devices.child("requests").items() {
        let alternatives = request.child("firstAvailable");
        let names = alternatives.list().iter().filter_map(|one| one["name"].as_str()).collect();
        named.insert(request.child("name").text(), names);
    }
    named
}

fn claim(devices: &Field<'_, '_>, errors: &mut Errors) {
    let named = requests(devices);
    let list = devices.child("requests");
    if !list.overfull(REQUESTS_MAX, errors) {
        list.items().for_each(|one| request(&one, errors));
        unique_names(&list, errors);
    }
    let constraints = devices.child("constraints");
    if !constraints.overfull(CONSTRAINTS_MAX, errors) {
        constraints.items().for_each(|one| constraint(&one, &named, errors));
    }
    let configs = devices.child("config");
    if !configs.overfull(CONFIGS_MAX, errors) {
        for config in configs.items() {
            references(&config.child("requests"), &named, errors);
            opaque(&config.child("opaque"), errors);
        }
    }
}

/// Checks that the names in a list are unique.
fn unique_names(list: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for item in list.items() {
        let name = item.child("name").text();
        if !seen.insert(name) {
            errors.push(super::FieldError::duplicate(item.path(), name));
        }
    }
}

fn request(request: &Field<'_, '_>, errors: &mut Errors) {
    request.child("name").check_all(names::dns1123_label(request.child("name").text()), errors);
    let (exactly, first) = (request.child("exactly"), request.child("firstAvailable"));
    match (exactly.is_set(), !first.is_empty()) {
        (false, false) => errors.push(request.required(ONE_OF_BOTH)),
        (true, true) => {
            let detail = format!("{ONE_OF_BOTH}, but multiple fields are set");
            errors.push(request.invalid_value(Value::Null, detail));
        }
        (true, false) => choice(&exactly, errors),
        (false, true) if !first.overfull(ALTERNATIVES_MAX, errors) => {
            for alternative in first.items() {
                alternative.child("name").grammar(names::dns1123_label, errors);
                choice(&alternative, errors);
            }
            unique_names(&first, errors);
        }
        (false, true) => {}
    }
}

/// Checks which devices are requested, and how many.
fn choice(choice: &Field<'_, '_>, errors: &mut Errors) {
    choice.child("deviceClassName").check_required(names::dns1123_subdomain, errors);
    selectors(&choice.child("selectors"), errors);
    let (mode, count) = (choice.child("allocationMode"), choice.child("count"));
    match mode.text() {
        "All" if count.int() != 0 => {
            errors.push(count.invalid("must not be specified when allocationMode is 'All'"));
        }
        "ExactCount" if count.int() <= 0 => {
            errors.push(count.invalid_value(count.int(), "must be greater than zero"));
        }
        "All" | "ExactCount" => {}
        _ => errors.push(mode.not_supported(&["All", "ExactCount"])),
    }
    choice.child("tolerations").items().for_each(|one| toleration(&one, errors));
}

fn selectors(list: &Field<'_, '_>, errors: &mut Errors) {
    if list.overfull(SELECTORS_MAX, errors) {
        return;
    }
    // CEL expressions are validated where they are evaluated.
    for selector in list.items() {
        let cel = selector.child("cel");
        if !cel.is_set() {
            errors.push(cel.required(""));
        }
        cel.child("expression").overlong(EXPRESSION_LEN_MAX, errors);
    }
}

const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

fn toleration(toleration: &Field<'_, '_>, errors: &mut Errors) {
    let [key, operator, value, effect] =
        ["key", "operator", "value", "effect"].map(|field| toleration.child(field));
    if !key.text().is_empty() {
        key.grammar(names::qualified_name, errors);
    }
    match operator.text() {
        "Exists" if !value.text().is_empty() => {
            errors.push(value.invalid("must be empty for operator `Exists`"));
        }
        "Equal" => value.grammar(names::label_value, errors),
        _ => operator.one_of_required(&["Equal", "Exists"], errors),
    }
    if !effect.text().is_empty() {
        effect.one_of(&EFFECTS, errors);
    }
}

fn constraint(constraint: &Field<'_, '_>, named: &DeviceRequests<'_>, errors: &mut Errors) {
    references(&constraint.child("requests"), named, errors);
    let (same, distinct) = (constraint.child("matchAttribute"), constraint.child("distinctAttribute"));
    if same.is_set() {
        attribute(&same, errors);
    } else if distinct.is_set() {
        attribute(&distinct, errors);
    } else {
        let detail = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        errors.push(constraint.required(detail));
    }
}

fn attribute(name: &Field<'_, '_>, errors: &mut Errors) {
    qualified(name, name.text(), errors);
    if !name.text().contains('/') {
        errors.push(name.invalid("a fully qualified name must be a domain and a name separated by a slash"));
    }
}

/// Checks the name of an attribute or a capacity, which may have a domain. Errors are reported at `field`.
fn qualified(field: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    match name.split('/').collect::<Vec<_>>()[..] {
        [name] => identifier(field, name, errors),
        [domain, name] => {
            match domain {
                "" => errors.push(field.invalid_value("", "the domain must not be empty")),
                _ => domains::driver_name(field, domain, errors),
            }
            match name {
                "" => errors.push(field.invalid_value("", "the name must not be empty")),
                _ => identifier(field, name, errors),
            }
        }
        _ => {}
    }
}

fn identifier(field: &Field<'_, '_>, name: &str, errors: &mut Errors) {
    if name.len() > IDENTIFIER_LEN_MAX {
        errors.push(super::FieldError::too_long(field.path(), IDENTIFIER_LEN_MAX));
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() || !name.bytes().all(fits) {
        errors.push(field.invalid_value(name, IDENTIFIER));
    }
}

/// Checks a list of request names: `request` or `request/alternative`.
fn references(list: &Field<'_, '_>, named: &DeviceRequests<'_>, errors: &mut Errors) {
    if list.overfull(REQUESTS_MAX, errors) {
        return;
    }
    list.items().for_each(|one| reference(&one, named, errors));
    list.unique(errors);
}

fn reference(name: &Field<'_, '_>, named: &DeviceRequests<'_>, errors: &mut Errors) {
    let parts: Vec<&str> = name.text().split('/').collect();
    if parts.len() <= 2 {
        let problems = parts.iter().filter_map(|part| names::dns1123_label(part).map(|why| (part, why)));
        errors.extend(problems.map(|(part, why)| name.invalid_value(*part, why)));
    }
    let is_known = match parts[..] {
        [request] => named.contains_key(request),
        [request, alternative] => {
            named.get(request).is_some_and(|alternatives| alternatives.contains(alternative))
        }
        _ => false,
    };
    if !is_known {
        errors.push(name.invalid_value(name.text(), REFERENCE));
    }
}

/// Checks opaque parameters for a driver.
fn opaque(opaque: &Field<'_, '_>, errors: &mut Errors) {
    if !opaque.is_set() {
        errors.push(opaque.required(""));
        return;
    }
    domains::driver(&opaque.child("driver"), errors);
    raw(&opaque.child("parameters"), PARAMETERS_LEN_MAX, errors);
}

/// Checks an object of unknown type.
fn raw(raw: &Field<'_, '_>, max: usize, errors: &mut Errors) {
    if !raw.is_set() {
        errors.push(raw.required(""));
    } else if raw.value().to_string().len() > max {
        errors.push(super::FieldError::too_long(raw.path(), max));
    } else if !raw.value().is_object() {
        errors.push(raw.invalid_value("<value omitted>", "must be a valid JSON object"));
    }
}

/// Checks the name of a pool: DNS subdomains joined by slashes.
fn pool(name: &Field<'_, '_>, errors: &mut Errors) {
    if name.text().is_empty() {
        errors.push(name.required(""));
        return;
    }
    name.overlong(POOL_NAME_LEN_MAX, errors);
    let problems =
        name.text().split('/').filter_map(|part| names::dns1123_subdomain(part).map(|why| (part, why)));
    errors.extend(problems.map(|(part, why)| name.invalid_value(part, why)));
}
