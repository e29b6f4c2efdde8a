//! Validation of requests and limits of containers and pods.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};

use super::super::names;
use super::super::quantities::{self, parse};
use super::{Errors, Field, MIRROR};
use crate::qos::together;
use tombolo_apicore::schema::format::Quantity;
use tombolo_apicore::value::{at, items};

const HUGE_PAGES: &str = "hugepages-";

/// Names of the resource claims of a pod.
pub(super) fn claim_names(spec: &Value) -> BTreeSet<&str> {
    let names = items(spec, &["resourceClaims"]).iter().filter_map(|claim| claim["name"].as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// Checks the resource claims of a pod.
pub(super) fn pod_claims(list: &Field<'_, '_>, metadata: Option<&Value>, errors: &mut Errors) {
    let mirror = metadata.is_some_and(|metadata| !at(metadata, &["annotations", MIRROR]).is_null());
    let mut seen = HashSet::new();
    for claim in list.items() {
        if mirror {
            let text = "static pods do not support resource claims";
            errors.push(super::FieldError::forbidden("[]", text));
            continue;
        }
        let name = claim.child("name");
        if name.demand(errors) {
            match seen.insert(name.text()) {
                true => name.check(names::dns1123_label, errors),
                false => errors.push(name.duplicate()),
            }
        }
        // The Go struct that the real server shows.
        let shown = json!({
            "Name": name.text(),
            "ResourceClaimName": claim.value()["resourceClaimName"],
            "ResourceClaimTemplateName": claim.value()["resourceClaimTemplateName"],
        });
        let sources = [claim.child("resourceClaimName"), claim.child("resourceClaimTemplateName")];
        match sources.iter().filter(|source| source.is_set()).count() {
            0 => errors.push(claim.invalid_value(
                shown,
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            )),
            1 => {}
            _ => errors.push(claim.invalid_value(
                shown,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            )),
        }
        for source in sources.iter().filter(|source| source.is_set()) {
            source.check_all(names::dns1123_subdomain(source.text()), errors);
        }
    }
}

/// Checks requests and limits of a container.
pub(in super::super) fn of_container(
    resources: &Field<'_, '_>,
    claims: &BTreeSet<&str>,
    errors: &mut Errors,
) {
    check(resources, quantities::container_name, errors);
    container_claims(&resources.child("claims"), claims, errors);
}

/// Checks the overhead of a runtime class.
pub(super) fn overhead(overhead: &Field<'_, '_>, errors: &mut Errors) {
    let limits = json!({ "limits": overhead.value() });
    check(&Field::root(&overhead.path(), &limits), quantities::container_name, errors);
}

/// Checks the name of a resource.
type NameRule = fn(&Field<'_, '_>, &str, &mut Errors);

fn check(resources: &Field<'_, '_>, name_rule: NameRule, errors: &mut Errors) {
    let (limits, requests) = (resources.child("limits"), resources.child("requests"));
    for (name, limit) in limits.entries() {
        amount(name, &limit, name_rule, errors);
    }
    for (name, request) in requests.entries() {
        amount(name, &request, name_rule, errors);
        let limit = limits.key(name);
        let overcommit = quantities::may_overcommit(name);
        let (Ok(wanted), Ok(most)) = (parse(&request), parse(&limit)) else {
            if !limit.is_set() && !overcommit {
                errors.push(limits.required("Limit must be set for non overcommitable resources"));
            }
            continue;
        };
        let text = match overcommit {
            false if wanted != most => format!("must be equal to {name} limit of {most}"),
            _ if wanted > most => format!("must be less than or equal to {name} limit of {most}"),
            _ => continue,
        };
        errors.push(requests.invalid_value(request.text(), text));
    }
    let names = || limits.entries().chain(requests.entries()).map(|(name, _)| name);
    let huge = names().any(|name| name.starts_with(HUGE_PAGES));
    if huge && !names().any(|name| matches!(name, "cpu" | "memory")) {
        errors.push(resources.forbidden("HugePages require cpu or memory"));
    }
}

fn amount(name: &str, amount: &Field<'_, '_>, name_rule: NameRule, errors: &mut Errors) {
    name_rule(amount, name, errors);
    quantities::amount(name, amount, errors);
    let size = name.strip_prefix(HUGE_PAGES).map(Quantity::parse);
    let Some(size) = size else { return };
    let size = size.ok().filter(|size| size.sign().is_gt() && size.rounded_up() == *size);
    let units = |quantity: Quantity| quantity.rounded_up().units();
    let divisible = size.and_then(units).is_some_and(|size| {
        parse(amount).ok().and_then(units).is_some_and(|amount| amount.checked_rem(size) == Some(0))
    });
    if !divisible {
        let text = format!("{} is not positive integer multiple of {name}", amount.text());
        errors.push(amount.invalid(text));
    }
}

/// Checks the resource claims that a container uses.
fn container_claims(list: &Field<'_, '_>, claims: &BTreeSet<&str>, errors: &mut Errors) {
    let mut seen: HashSet<String> = HashSet::new();
    for claim in list.items() {
        let (name, request) = (claim.child("name").text(), claim.child("request"));
        if name.is_empty() {
            errors.push(claim.required(""));
            continue;
        }
        let duplicate = |shown: &str| super::FieldError::duplicate(claim.path(), shown);
        if seen.contains(name) {
            errors.push(duplicate(name));
        } else {
            request.check(names::dns1123_label, errors);
            let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{}", request.text()) };
            let parts = seen.iter().filter(|seen| seen.split_once('/').is_some_and(|(of, _)| of == name));
            let parts = if request.is_empty() { parts.count() } else { 0 };
            if seen.contains(&key) {
                errors.push(duplicate(&key));
            }
            errors.extend(std::iter::repeat_n(duplicate(name), parts));
            seen.insert(key);
        }
        if !claims.contains(name) {
            let names: Vec<&str> = claims.iter().copied().collect();
            let known = match names.is_empty() {
                true => " which is empty".to_owned(),
                false => format!(": {}", names.join(", ")),
            };
            let text = format!("must be one of the names in pod.spec.resourceClaims{known}");
            errors.push(super::FieldError { value: Some(name.into()), ..claim.not_found(&text) });
        }
    }
}

/// Checks the resize policy of a container.
pub(super) fn resize_policy(list: &Field<'_, '_>, restart: &str, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for policy in list.items() {
        let (name, action) = (policy.child("resourceName"), policy.child("restartPolicy"));
        if !seen.insert(name.text()) {
            errors.push(super::FieldError::duplicate(policy.path(), name.text()));
        }
        // Both are reported at the list.
        list.with_itself(name.value()).one_of_required(&["cpu", "memory"], errors);
        list.with_itself(action.value()).one_of_required(&["NotRequired", "RestartContainer"], errors);
        if restart == "Never" && action.text() != "NotRequired" {
            let text = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(list.invalid_value(action.text(), text));
        }
    }
}

/// Checks requests and limits at pod level.
pub(super) fn of_pod(spec: &Field<'_, '_>, errors: &mut Errors) {
    let resources = spec.child("resources");
    if !resources.is_set() {
        return;
    }
    if spec.value()["os"]["name"] == "windows" {
        errors.push(resources.forbidden("may not be set for a windows pod"));
        return;
    }
    if resources.child("claims").is_set() {
        let claims = resources.child("claims");
        errors.push(claims.forbidden("claims may not be set for Resources at pod-level"));
    }
    check(&resources, quantities::pod_name, errors);
    container_claims(&resources.child("claims"), &claim_names(spec.value()), errors);
    consistent(spec, &resources, errors);
}

/// The containers together may not exceed the pod's resources.
fn consistent(spec: &Field<'_, '_>, resources: &Field<'_, '_>, errors: &mut Errors) {
    let requests = resources.child("requests");
    for (name, sum) in together(spec.value(), "requests") {
        let given = requests.key(name);
        if parse(&given).is_ok_and(|given| sum > given) {
            let text = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.push(given.invalid(text));
        }
    }
    let limits = resources.child("limits");
    for (name, sum) in together(spec.value(), "limits") {
        let given = limits.key(name);
        if name.starts_with(HUGE_PAGES) && parse(&given).is_ok_and(|given| sum > given) {
            let text = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.push(given.invalid(text));
        }
    }
    let shown = resources.child("containers");
    for (index, container) in items(spec.value(), &["containers"]).iter().enumerate() {
        let own = Field::root("", at(container, &["resources", "limits"]));
        for (name, limit) in own.entries() {
            let most = limits.key(name);
            let (Ok(own), Ok(most)) = (parse(&limit), parse(&most)) else { continue };
            if own > most {
                let container = shown.index(index);
                let field = container.key(name);
                let text = format!("must be less than or equal to pod limits of {most}");
                errors.push(field.child("limits").invalid_value(limit.text(), text));
            }
        }
    }
}
