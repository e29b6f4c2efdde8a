//! Validation of a pod's status.

use core::net::IpAddr;
use std::collections::HashSet;

use serde_json::Value;

use super::super::{IMMUTABLE, addresses, names};
use super::{Errors, Field, annotations};
use tombolo_apicore::value::{at, int, items, text};

const ID_MAX: i64 = i32::MAX as i64;
const LISTS: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

/// Checks a new status of a pod.
pub(in super::super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    annotations::update(new, old, errors);
    let (now, before) = (Field::root("status", &new["status"]), Field::root("status", &old["status"]));
    conditions(&now.child("conditions"), errors);
    nominated(&now, &before, !text(old, &["spec", "nodeName"]).is_empty(), errors);
    generation(&now.child("observedGeneration"), errors);
    let class = now.child("qosClass");
    if class.text() != before.child("qosClass").text() {
        errors.push(class.invalid_value(class.text(), IMMUTABLE));
    }
    for list in LISTS {
        transitions(&now.child(list), &before.child(list), &old["spec"], errors);
    }
    claims(&now, new, errors);
    addresses_of(&now, &before, errors);
    for list in LISTS {
        now.child(list).items().for_each(|status| {
            user(&status, text(new, &["spec", "os", "name"]), errors);
        });
    }
}

fn generation(generation: &Field<'_, '_>, errors: &mut Errors) {
    if generation.int() < 0 {
        errors.push(generation.invalid("must be a non-negative integer"));
    }
}

fn conditions(list: &Field<'_, '_>, errors: &mut Errors) {
    for condition in list.items() {
        generation(&condition.child("observedGeneration"), errors);
        let kind = condition.child("type").text();
        if !["PodScheduled", "Ready", "Initialized"].contains(&kind) {
            let shown = condition.child("Type");
            let problems = names::qualified_name(kind);
            errors.extend(problems.into_iter().map(|problem| shown.invalid_value(kind, problem)));
        }
    }
}

/// Checks the nominated node: the one on which the scheduler makes room for the pod.
fn nominated(now: &Field<'_, '_>, before: &Field<'_, '_>, bound: bool, errors: &mut Errors) {
    let node = now.child("nominatedNodeName");
    if node.is_empty() || node.text() == before.child("nominatedNodeName").text() {
        return;
    }
    node.check(names::dns1123_subdomain, errors);
    if bound {
        errors.push(node.forbidden("may not be set on pods that are already bound to a node"));
    }
}

/// A container that has ended for good does not run again.
fn transitions(now: &Field<'_, '_>, before: &Field<'_, '_>, spec: &Value, errors: &mut Errors) {
    for old in before.items() {
        let ended = at(old.value(), &["state", "terminated"]);
        if ended.is_null() {
            continue;
        }
        let name = old.child("name").text();
        let runs = |status: &Field<'_, '_>| {
            status.child("name").text() == name && at(status.value(), &["state", "terminated"]).is_null()
        };
        if now.items().any(|status| runs(&status)) && !may_restart(spec, name, int(ended, &["exitCode"])) {
            let text = "may not be transitioned to non-terminated state";
            errors.push(old.child("state").forbidden(text));
        }
    }
}

/// Whether an ended container is restarted: by its rules, its policy or the pod's policy.
fn may_restart(spec: &Value, name: &str, code: i64) -> bool {
    let all = || items(spec, &["containers"]).iter().chain(items(spec, &["initContainers"]));
    let rules = |container: &'_ Value| items(container, &["restartPolicyRules"]).to_vec();
    if all().any(|container| rules(container).iter().any(|rule| rule["action"] == "RestartAllContainers")) {
        return true;
    }
    let Some(container) = all().find(|container| container["name"] == name) else { return false };
    let matches = |rule: &Value| {
        let listed = items(rule, &["exitCodes", "values"]).iter().any(|value| value.as_i64() == Some(code));
        match text(rule, &["exitCodes", "operator"]) {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    };
    if rules(container).iter().any(matches) {
        return true;
    }
    let policy = match text(container, &["restartPolicy"]) {
        "" => text(spec, &["restartPolicy"]),
        own => own,
    };
    match policy {
        "Always" => true,
        "OnFailure" => code != 0,
        _ => false,
    }
}

/// Checks the statuses of the pod's resource claims.
fn claims(status: &Field<'_, '_>, pod: &Value, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for claim in status.child("resourceClaimStatuses").items() {
        let name = claim.child("name");
        let known = items(pod, &["spec", "resourceClaims"]).iter().any(|claim| claim["name"] == name.text());
        if !known {
            let text = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(name.invalid_value(name.text(), text));
        }
        if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
        let object = claim.child("resourceClaimName");
        if object.is_set() {
            object.check_all(names::dns1123_subdomain(object.text()), errors);
        }
    }
}

fn addresses_of(now: &Field<'_, '_>, before: &Field<'_, '_>, errors: &mut Errors) {
    family(&now.child("podIPs"), &before.child("podIPs"), errors);
    let host = now.child("hostIPs");
    let first = host.index(0);
    let first = first.child("ip");
    if !host.is_empty() && first.text() != now.child("hostIP").text() {
        errors.push(first.invalid_value(first.text(), "must be equal to `hostIP`"));
    }
    family(&host, &before.child("hostIPs"), errors);
}

fn family(list: &Field<'_, '_>, before: &Field<'_, '_>, errors: &mut Errors) {
    let had: HashSet<&str> = before.items().map(|address| address.child("ip").text()).collect();
    let mut all: Vec<Option<IpAddr>> = Vec::new();
    for address in list.items() {
        let ip = address.child("ip").text();
        if !had.contains(ip) {
            addresses::address(&address, ip, errors);
        }
        all.push(addresses::sloppy(ip));
    }
    if all.len() > 1 && (all.len() > 2 || !addresses::is_dual_stack(&all)) {
        errors.push(list.invalid("may specify no more than one IP for each IP family"));
    }
}

fn user(status: &Field<'_, '_>, os: &str, errors: &mut Errors) {
    let user = status.child("user");
    let linux = user.child("linux");
    if !linux.is_set() {
        return;
    }
    if os == "windows" {
        errors.push(linux.forbidden("cannot be set for a windows pod"));
        return;
    }
    linux.child("uid").within(0, ID_MAX, errors);
    linux.child("gid").within(0, ID_MAX, errors);
    for group in linux.child("supplementalGroups").items() {
        group.within(0, ID_MAX, errors);
    }
}
