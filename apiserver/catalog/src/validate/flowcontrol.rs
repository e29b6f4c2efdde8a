//! Validation of FlowSchemas and PriorityLevelConfigurations (pkg/apis/flowcontrol/validation).

use std::collections::HashSet;

use serde_json::Value;

use super::field::{Errors, Field};
use super::names;
use super::walk::top;

const PRECEDENCE_MAX: i64 = 10_000;
const QUEUES_MAX: i64 = 10_000_000;
/// Bits of the hash that selects the queues of a flow.
const HASH_BITS_MAX: i64 = 60;
/// Name of the schema and of the level that are exempt from limits.
const EXEMPT: &str = "exempt";

const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// Checks one of these kinds, including its status.
pub(super) fn check(kind: &str, object: &Value, errors: &mut Errors) {
    let (name, spec) = (top(object, "metadata.name"), top(object, "spec"));
    match kind {
        "FlowSchema" => schema(name.text(), &spec, errors),
        "PriorityLevelConfiguration" => level(name.text(), &spec, errors),
        _ => {}
    }
    status(object, errors);
}

/// Checks the conditions of either kind.
pub(super) fn status(object: &Value, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for condition in top(object, "status.conditions").items() {
        let kind = condition.child("type");
        if !seen.insert(kind.text()) {
            errors.push(kind.duplicate());
        }
        if kind.text().is_empty() {
            errors.push(kind.required(""));
        }
    }
}

fn schema(name: &str, spec: &Field<'_, '_>, errors: &mut Errors) {
    let precedence = spec.child("matchingPrecedence");
    let wrong = |detail: String| precedence.invalid_value(precedence.int(), detail);
    match precedence.int() {
        ..=0 => errors.push(wrong("must be a positive value".to_owned())),
        1 if name != EXEMPT => {
            errors.push(wrong("only the schema named 'exempt' may have matchingPrecedence 1".to_owned()));
        }
        above if above > PRECEDENCE_MAX => {
            errors.push(wrong(format!("must not be greater than {PRECEDENCE_MAX}")));
        }
        _ => {}
    }
    let method = spec.child("distinguisherMethod");
    let kind = method.child("type");
    if method.is_set() && !["ByNamespace", "ByUser"].contains(&kind.text()) {
        errors.push(kind.not_supported(&["ByNamespace", "ByUser"]));
    }
    let level = spec.below("priorityLevelConfiguration.name");
    match level.text() {
        "" => errors.push(level.required("must reference a priority level")),
        _ => level.grammar(names::dns1123_subdomain, errors),
    }
    spec.child("rules").items().for_each(|one| rule(&one, errors));
}

fn rule(rule: &Field<'_, '_>, errors: &mut Errors) {
    let subjects = rule.child("subjects");
    if subjects.is_empty() {
        errors.push(subjects.required("subjects must contain at least one value"));
    }
    subjects.items().for_each(|one| subject(&one, errors));
    let (resources, urls) = (rule.child("resourceRules"), rule.child("nonResourceRules"));
    if resources.is_empty() && urls.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(rule.required(detail));
    }
    resources.items().for_each(|one| resource_rule(&one, errors));
    urls.items().for_each(|one| url_rule(&one, errors));
}

fn subject(subject: &Field<'_, '_>, errors: &mut Errors) {
    const FIELDS: [(&str, &str); 3] =
        [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.child("kind");
    let Some((named, own)) = FIELDS.iter().find(|(named, _)| *named == kind.text()) else {
        errors.push(kind.not_supported(&["Group", "ServiceAccount", "User"]));
        return;
    };
    let content = subject.child(own);
    if !content.is_set() {
        errors.push(content.required(&format!("{own} is required when subject kind is '{named}'")));
    } else if *own == "serviceAccount" {
        service_account(&content, errors);
    } else if content.child("name").text().is_empty() {
        errors.push(content.child("name").required(""));
    }
    for (other, field) in FIELDS.iter().filter(|(_, field)| field != own) {
        let field_at = subject.child(field);
        if field_at.is_set() {
            let detail = format!("{field} is forbidden when subject kind is not '{other}'");
            errors.push(field_at.forbidden(&detail));
        }
    }
}

fn service_account(account: &Field<'_, '_>, errors: &mut Errors) {
    let (name, namespace) = (account.child("name"), account.child("namespace"));
    match name.text() {
        "" => errors.push(name.required("")),
        "*" => {}
        _ => name.grammar(names::dns1123_subdomain, errors),
    }
    match namespace.text() {
        "" => errors.push(namespace.required("must specify namespace for service account")),
        _ => namespace.grammar(names::dns1123_label, errors),
    }
}

/// `*` must be the only entry.
fn alone(list: &Field<'_, '_>, what: &str, errors: &mut Errors) -> bool {
    let has_all = list.texts().contains(&"*");
    if has_all && list.len() > 1 {
        errors.push(list.invalid(format!("if '*' is present, must not specify other {what}")));
    }
    has_all
}

fn verbs(verbs: &Field<'_, '_>, errors: &mut Errors) {
    if verbs.is_empty() {
        errors.push(verbs.required("verbs must contain at least one value"));
    } else if !alone(verbs, "verbs", errors) && !verbs.texts().iter().all(|verb| VERBS.contains(verb)) {
        let value = verbs.value().clone();
        errors.push(super::FieldError::not_supported(verbs.path(), value, &VERBS));
    }
}

fn resource_rule(rule: &Field<'_, '_>, errors: &mut Errors) {
    verbs(&rule.child("verbs"), errors);
    for (field, one, others) in
        [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")]
    {
        let list = rule.child(field);
        if list.is_empty() {
            errors.push(list.required(&format!("resource rules must supply at least one {one}")));
        }
        alone(&list, others, errors);
    }
    let namespaces = rule.child("namespaces");
    if namespaces.is_empty() && !rule.child("clusterScope").is_true() {
        let detail = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(namespaces.required(detail));
    } else if !alone(&namespaces, "namespaces", errors) {
        for namespace in namespaces.items() {
            let problem = names::dns1123_label(namespace.text());
            let intro = "each member of this list must be '*' or a DNS-1123 label; ";
            errors.extend(problem.map(|problem| namespace.invalid(format!("{intro}{problem}"))));
        }
    }
}

fn url_rule(rule: &Field<'_, '_>, errors: &mut Errors) {
    verbs(&rule.child("verbs"), errors);
    let urls = rule.child("nonResourceURLs");
    if urls.is_empty() {
        errors.push(urls.required("nonResourceURLs must contain at least one value"));
    } else if !alone(&urls, "non-resource URLs", errors) {
        for url in urls.items() {
            errors.extend(url_problem(url.text()).map(|problem| url.invalid(problem)));
        }
    }
}

fn url_problem(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

fn level(name: &str, spec: &Field<'_, '_>, errors: &mut Errors) {
    let (kind, limited, exempt) = (spec.child("type"), spec.child("limited"), spec.child("exempt"));
    if (name == EXEMPT) != (kind.text() == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(kind.invalid_value(kind.text(), detail));
    }
    match kind.text() {
        "Exempt" => {
            if limited.is_set() {
                errors.push(limited.forbidden("must be nil if the type is not Limited"));
            }
            shares(&exempt, errors);
        }
        "Limited" => {
            if exempt.is_set() {
                errors.push(exempt.forbidden("must be nil if the type is Limited"));
            }
            match limited.is_set() {
                true => self::limited(&limited, errors),
                false => errors.push(limited.required("must not be empty when type is Limited")),
            }
        }
        _ => kind.one_of_required(&["Exempt", "Limited"], errors),
    }
}

fn shares(part: &Field<'_, '_>, errors: &mut Errors) {
    let (shares, percent) = (part.child("nominalConcurrencyShares"), part.child("lendablePercent"));
    if shares.int() < 0 {
        errors.push(shares.invalid("must be a non-negative integer"));
    }
    percent.within(0, 100, errors);
}

fn limited(limited: &Field<'_, '_>, errors: &mut Errors) {
    shares(limited, errors);
    let borrowing = limited.child("borrowingLimitPercent");
    if borrowing.int() < 0 {
        errors.push(borrowing.invalid("if specified, must be a non-negative integer"));
    }
    let response = limited.child("limitResponse");
    let (kind, queuing) = (response.child("type"), response.child("queuing"));
    match kind.text() {
        "Reject" if queuing.is_set() => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(queuing.forbidden(detail));
        }
        "Reject" => {}
        "Queue" if queuing.is_set() => queues(&queuing, errors),
        "Queue" => {
            errors.push(queuing.required("must not be empty if limited.limitResponse.type is Limited"));
        }
        _ => kind.one_of_required(&["Queue", "Reject"], errors),
    }
}

fn queues(queuing: &Field<'_, '_>, errors: &mut Errors) {
    let [length, queues, hand] = ["queueLengthLimit", "queues", "handSize"].map(|field| queuing.child(field));
    for number in [&length, &queues, &hand] {
        if number.int() <= 0 {
            errors.push(number.invalid("must be positive"));
        }
    }
    let (deck, dealt) = (queues.int(), hand.int());
    if deck > QUEUES_MAX {
        errors.push(queues.invalid(format!("must not be greater than {QUEUES_MAX}")));
    }
    if dealt <= 0 {
        return;
    }
    if dealt > deck {
        errors.push(hand.invalid(format!("should not be greater than queues ({deck})")));
        return;
    }
    let bits = ((deck as f64).log2() * dealt as f64).ceil() as i64;
    if bits > HASH_BITS_MAX {
        errors.push(hand.invalid(format!(
            "required entropy bits of deckSize {deck} and handSize {dealt} should not be greater than {HASH_BITS_MAX}"
        )));
    }
}
