//! Validation of webhook configurations, and of the rules that webhooks and policies match requests with
//! (pkg/apis/admissionregistration/validation).

use std::collections::HashSet;

use serde_json::Value;

use super::field::{Errors, Field};
use super::walk::top;
use super::{domains, names};
use tombolo_apicore::value::items;

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const CONDITIONS_MAX: usize = 64;
const TIMEOUT_SECONDS_MAX: i64 = 30;

/// Rules that an update need not follow, because the stored webhooks already break them.
#[derive(Clone, Copy, Default)]
struct Kept {
    side_effects: bool,
    review_versions: bool,
    names: bool,
}

impl Kept {
    fn of(old: &Value) -> Self {
        let hooks = items(old, &["webhooks"]);
        let one_of = |value: &Value, words: &[&str]| words.iter().any(|word| *value == **word);
        let recognised = |hook: &Value| {
            let versions = items(hook, &["admissionReviewVersions"]);
            versions.is_empty() || versions.iter().any(|version| one_of(version, &REVIEW_VERSIONS))
        };
        let unique: HashSet<&str> = hooks.iter().filter_map(|hook| hook["name"].as_str()).collect();
        Self {
            side_effects: !hooks.iter().all(|hook| one_of(&hook["sideEffects"], &SIDE_EFFECTS)),
            review_versions: !hooks.iter().all(recognised),
            names: unique.len() < hooks.len(),
        }
    }
}

/// Checks a configuration of validating or mutating webhooks.
pub(super) fn check(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let kept = old.map(Kept::of).unwrap_or_default();
    let mut seen = HashSet::new();
    for hook in top(object, "webhooks").items() {
        webhook(&hook, kept, errors);
        review_versions(&hook.child("admissionReviewVersions"), kept, errors);
        let name = hook.child("name");
        if !kept.names && !name.text().is_empty() && !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
    }
}

fn webhook(hook: &Field<'_, '_>, kept: Kept, errors: &mut Errors) {
    domains::fully_qualified(&hook.child("name"), errors);
    hook.child("rules").items().for_each(|one| rule(&one, errors));
    hook.child("failurePolicy").one_of(&["Fail", "Ignore"], errors);
    hook.child("matchPolicy").one_of(&["Equivalent", "Exact"], errors);
    let (effects, timeout) = (hook.child("sideEffects"), hook.child("timeoutSeconds"));
    match effects.is_set() {
        false => errors.push(effects.required("must specify one of None, NoneOnDryRun")),
        true if kept.side_effects => effects.one_of(&["None", "NoneOnDryRun", "Some", "Unknown"], errors),
        true => effects.one_of(&SIDE_EFFECTS, errors),
    }
    if timeout.is_set() && !(1..=TIMEOUT_SECONDS_MAX).contains(&timeout.int()) {
        let detail = format!("the timeout value must be between 1 and {TIMEOUT_SECONDS_MAX} seconds");
        errors.push(timeout.invalid(detail));
    }
    hook.child("namespaceSelector").selector(errors);
    hook.child("objectSelector").selector(errors);
    hook.child("reinvocationPolicy").one_of(&["IfNeeded", "Never"], errors);
    let client = hook.child("clientConfig");
    let (service, address) = (client.child("service"), client.child("url"));
    match (service.is_set(), address.is_set()) {
        (true, false) => self::service(&service, errors),
        (false, true) => url(&address, errors),
        _ => errors.push(client.required("exactly one of url or service is required")),
    }
    conditions(&hook.child("matchConditions"), errors);
}

fn review_versions(versions: &Field<'_, '_>, kept: Kept, errors: &mut Errors) {
    if versions.is_empty() {
        errors.push(versions.required("must specify one of v1, v1beta1"));
        return;
    }
    let mut seen = HashSet::new();
    for version in versions.items() {
        match seen.insert(version.text()) {
            true => version.grammar(names::dns1035_label, errors),
            false => errors.push(version.invalid("duplicate version")),
        }
    }
    if !kept.review_versions && !REVIEW_VERSIONS.iter().any(|version| seen.contains(version)) {
        errors.push(versions.invalid("must include at least one of v1, v1beta1"));
    }
}

/// Checks one rule: operations on resources.
pub(super) fn rule(rule: &Field<'_, '_>, errors: &mut Errors) {
    let operations = rule.child("operations");
    let wildcard = |list: &Field<'_, '_>, others: &str, errors: &mut Errors| {
        if list.len() > 1 && list.texts().contains(&"*") {
            errors.push(list.invalid(format!("if '*' is present, must not specify other {others}")));
        }
    };
    operations.demand(errors);
    wildcard(&operations, "operations", errors);
    operations.items().for_each(|one| one.one_of(&OPERATIONS, errors));
    let (groups, versions) = (rule.child("apiGroups"), rule.child("apiVersions"));
    groups.demand(errors);
    wildcard(&groups, "API groups", errors);
    versions.demand(errors);
    wildcard(&versions, "API versions", errors);
    for version in versions.items() {
        version.demand(errors);
    }
    resources(&rule.child("resources"), errors);
    rule.child("scope").one_of(&["*", "Cluster", "Namespaced"], errors);
}

/// Checks resources and subresources: an entry must not repeat what a `*` covers.
fn resources(list: &Field<'_, '_>, errors: &mut Errors) {
    list.demand(errors);
    let (mut all_below, mut below_all) = (HashSet::new(), HashSet::new());
    let mut has_plain = false;
    for resource in list.items() {
        let text = resource.text();
        let Some((name, part)) = text.split_once('/') else {
            if text.is_empty() {
                errors.push(resource.required(""));
            } else {
                has_plain = text != "*";
            }
            continue;
        };
        if all_below.contains(name) {
            let detail = format!("if '{name}/*' is present, must not specify {text}");
            errors.push(resource.invalid(detail));
        }
        if below_all.contains(part) {
            let detail = format!("if '*/{part}' is present, must not specify {text}");
            errors.push(resource.invalid(detail));
        }
        if part == "*" {
            all_below.insert(name);
        }
        if name == "*" {
            below_all.insert(part);
        }
    }
    let texts = list.texts();
    if texts.len() > 1 && texts.contains(&"*/*") {
        errors.push(list.invalid("if '*/*' is present, must not specify other resources"));
    }
    if texts.contains(&"*") && has_plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(list.invalid(detail));
    }
}

/// Checks that conditions have valid names and an expression.
pub(super) fn conditions(list: &Field<'_, '_>, errors: &mut Errors) {
    list.overfull(CONDITIONS_MAX, errors);
    let mut seen = HashSet::new();
    for condition in list.items() {
        let (name, expression) = (condition.child("name"), condition.child("expression"));
        if expression.text().trim().is_empty() {
            errors.push(expression.required(""));
        }
        if name.text().is_empty() {
            errors.push(name.required(""));
            continue;
        }
        name.grammar(names::qualified_name, errors);
        if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
    }
}

fn service(service: &Field<'_, '_>, errors: &mut Errors) {
    // The real server reports each of the two fields as the other.
    for (field, shown) in [("namespace", "name"), ("name", "namespace")] {
        if service.child(field).text().is_empty() {
            errors.push(service.child(shown).required(""));
        }
    }
    let (port, path) = (service.child("port"), service.child("path"));
    if !(1..=65_535).contains(&port.int()) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(port.invalid_value(port.int(), detail));
    }
    match path.text() {
        "" | "/" => {}
        "//" => errors.push(path.invalid("segment[0] may not be empty")),
        text => url_path(&path, text, errors),
    }
}

fn url_path(path: &Field<'_, '_>, text: &str, errors: &mut Errors) {
    let rest = match text.strip_prefix('/') {
        Some(rest) => rest,
        None => {
            errors.push(path.invalid("must start with a '/'"));
            // The real server drops one byte in this case too.
            text.char_indices().nth(1).map_or("", |(second, _)| &text[second..])
        }
    };
    for (index, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.push(path.invalid(format!("segment[{index}] may not be empty")));
        } else if let Some(problem) = names::dns1123_subdomain(step) {
            errors.push(path.invalid(format!("segment[{index}]: {problem}")));
        }
    }
}

/// Checks the URL of a webhook outside the cluster.
fn url(url: &Field<'_, '_>, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let Ok(read) = url.text().parse::<http::Uri>() else {
        errors.push(url.required(&format!("url must be a valid URL: {}{FORM}", url.text())));
        return;
    };
    let scheme = read.scheme_str().unwrap_or_default();
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(url.invalid_value(scheme, detail));
    }
    if read.host().unwrap_or_default().is_empty() {
        errors.push(url.invalid_value("", format!("host must be specified{FORM}")));
    }
    if let Some((user, _)) = read.authority().and_then(|authority| authority.as_str().rsplit_once('@')) {
        errors.push(url.invalid_value(user, "user information is not permitted in the URL"));
    }
    if let Some((_, fragment)) = url.text().split_once('#') {
        errors.push(url.invalid_value(fragment, "fragments are not permitted in the URL"));
    }
    if let Some(query) = read.query().filter(|query| !query.is_empty()) {
        errors.push(url.invalid_value(query, "query parameters are not permitted in the URL"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(check: fn(&Field<'_, '_>, &mut Errors), value: &Value) -> usize {
        let mut errors = Vec::new();
        check(&Field::root("p", value), &mut errors);
        errors.len()
    }

    #[test]
    fn webhook_rule_names_nothing_beside_a_wildcard() {
        for (list, count) in [
            (json!(["pods", "pods/status"]), 0),
            (json!(["*", "*/scale"]), 0),
            (json!(["pods/*", "pods/status"]), 1),
            (json!(["*/status", "pods/status"]), 1),
            (json!(["*", "pods"]), 1),
            (json!(["*/*", "pods"]), 1),
            (json!([""]), 1),
            (json!([]), 1),
        ] {
            assert_eq!(wrong(resources, &list), count, "{list}");
        }
    }

    #[test]
    fn webhook_addresses_use_https() {
        assert_eq!(wrong(url, &json!("https://a.b/c")), 0);
        for bad in ["http://a.b/c", "https://u@a.b/c", "https://a.b/c?d", "https://a.b/c#d", "a b"] {
            assert_eq!(wrong(url, &json!(bad)), 1, "{bad}");
        }
    }
}
