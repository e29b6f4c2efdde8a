//! Validation of resource quotas and limit ranges.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::field::{Errors, Field};
use super::quantities::{self, parse};
use super::{FieldError, IMMUTABLE, names};
use tombolo_apicore::schema::format::Quantity;

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Checks a quota.
pub(super) fn quota(quota: &Value, errors: &mut Errors) {
    let spec = Field::root("spec", &quota["spec"]);
    amounts(&spec.child("hard"), errors);
    scopes(&spec, errors);
    if spec.child("scopeSelector").is_set() {
        selector(&spec, errors);
    }
}

fn amounts(list: &Field<'_, '_>, errors: &mut Errors) {
    for (name, amount) in list.entries() {
        quantities::quota_name(&amount, name, errors);
        quantities::amount(name, &amount, errors);
    }
}

/// Checks the status of a quota.
pub(super) fn quota_status(quota: &Value, errors: &mut Errors) {
    let status = Field::root("status", &quota["status"]);
    amounts(&status.child("hard"), errors);
    amounts(&status.child("used"), errors);
}

/// The scopes of a quota are immutable.
pub(super) fn quota_update(new: &Value, old: &Value, errors: &mut Errors) {
    let scopes = |quota: &Value| -> BTreeSet<String> {
        let list = Field::root("", &quota["spec"]["scopes"]);
        list.items().map(|scope| scope.text().to_owned()).collect()
    };
    if scopes(new) != scopes(old) {
        errors.push(FieldError::invalid("spec.scopes", new["spec"]["scopes"].clone(), IMMUTABLE));
    }
}

fn fits(scope: &str, resource: &str) -> bool {
    const OF_PODS: [&str; 7] =
        ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        scope if SCOPES.contains(&scope) => OF_PODS.contains(&resource),
        _ => true,
    }
}

/// Number of limited resources that a scope does not apply to.
fn unfit(spec: &Field<'_, '_>, scope: &str) -> usize {
    let hard = spec.child("hard");
    let names: Vec<&str> = hard.entries().map(|(name, _)| name).collect();
    names.into_iter().filter(|name| quantities::is_quota(name) && !fits(scope, name)).count()
}

fn scopes(spec: &Field<'_, '_>, errors: &mut Errors) {
    let list = spec.child("scopes");
    for scope in list.items() {
        if !SCOPES.contains(&scope.text()) {
            errors.push(list.invalid("unsupported scope"));
        }
        let unfit = unfit(spec, scope.text());
        errors.extend(std::iter::repeat_n(list.invalid("unsupported scope applied to resource"), unfit));
    }
    let given: HashSet<&str> = list.list().iter().filter_map(Value::as_str).collect();
    conflicts(&given, &list, list.value(), errors);
}

fn conflicts(given: &HashSet<&str>, at: &Field<'_, '_>, shown: &Value, errors: &mut Errors) {
    for pair in [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]] {
        if pair.iter().all(|scope| given.contains(scope)) {
            errors.push(at.invalid_value(shown.clone(), "conflicting scopes"));
        }
    }
}

fn selector(spec: &Field<'_, '_>, errors: &mut Errors) {
    const EXISTS: &str = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
    let selector = spec.child("scopeSelector");
    // Errors are reported at the list, without the expression.
    let list = selector.child("matchExpressions");
    let mut given = HashSet::new();
    for expression in list.items() {
        let part = |name: &'static str| list.with(name, &expression.value()[name]);
        let (scope, operator, values) = (part("scopeName"), part("operator"), part("values"));
        if !SCOPES.contains(&scope.text()) {
            errors.push(scope.invalid_value(scope.text(), "unsupported scope"));
        }
        let text = "unsupported scope applied to resource";
        let wrong = list.invalid_value(selector.value().clone(), text);
        errors.extend(std::iter::repeat_n(wrong, unfit(spec, scope.text())));
        let plain = !matches!(scope.text(), "PriorityClass" | "VolumeAttributesClass");
        if plain && SCOPES.contains(&scope.text()) && operator.text() != "Exists" {
            errors.push(operator.invalid_value(operator.text(), EXISTS));
        }
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                let text = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(values.required(text));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let text = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(values.invalid(text));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.push(operator.invalid_value(operator.text(), "not a valid selector operator")),
        }
        given.insert(scope.text());
    }
    conflicts(&given, &list, &spec.value()["scopes"], errors);
}

const LISTS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

/// Checks a limit range.
pub(super) fn limit_range(range: &Value, errors: &mut Errors) {
    let spec = Field::root("spec", &range["spec"]);
    let mut types = HashSet::new();
    for limit in spec.child("limits").items() {
        let kind = limit.child("type");
        let problems = names::qualified_name(kind.text());
        let standard =
            kind.text().contains('/') || ["Pod", "Container", "PersistentVolumeClaim"].contains(&kind.text());
        if problems.is_empty() && !standard {
            errors.push(kind.invalid("must be a standard limit type or fully qualified"));
        }
        kind.check_all(problems, errors);
        if !types.insert(kind.text()) {
            errors.push(FieldError::duplicate(kind.path(), kind.text()));
        }
        limit_names(&limit, kind.text(), errors);
        if kind.text() == "PersistentVolumeClaim" {
            let bound = |list: &str| limit.value()[list].get("storage").is_some();
            if !bound("min") && !bound("max") {
                let text = "either minimum or maximum storage value is required, but neither was provided";
                errors.push(limit.child("limits").required(text));
            }
        }
        limit_values(&limit, kind.text(), errors);
    }
}

fn limit_names(limit: &Field<'_, '_>, kind: &str, errors: &mut Errors) {
    for list in LISTS {
        let amounts = limit.child(list);
        if kind == "Pod" && list.starts_with("default") {
            if !amounts.is_empty() {
                errors.push(amounts.forbidden("may not be specified when `type` is 'Pod'"));
            }
            continue;
        }
        for (name, amount) in amounts.entries() {
            match kind {
                "Pod" | "Container" => quantities::container_name(&amount, name, errors),
                _ => drop(quantities::any_name(&amount, name, errors)),
            }
        }
    }
}

/// Pairs of values of which the first may not exceed the second: the two lists, the list and the value that the error
/// reports, and the names of both.
const ORDER: [(&str, &str, &str, &str, &str, &str); 6] = [
    ("min", "max", "min", "min", "min value", "max value"),
    ("min", "defaultRequest", "defaultRequest", "defaultRequest", "min value", "default request value"),
    ("defaultRequest", "max", "defaultRequest", "defaultRequest", "default request value", "max value"),
    (
        "defaultRequest",
        "default",
        "defaultRequest",
        "defaultRequest",
        "default request value",
        "default limit value",
    ),
    ("min", "default", "default", "min", "min value", "default value"),
    ("default", "max", "default", "max", "default value", "max value"),
];

fn limit_values(limit: &Field<'_, '_>, kind: &str, errors: &mut Errors) {
    let mut resources: BTreeSet<&str> = BTreeSet::new();
    let mut values: HashMap<(&str, &str), Quantity> = HashMap::new();
    for list in LISTS.into_iter().filter(|list| kind != "Pod" || !list.starts_with("default")) {
        for (name, amount) in limit.child(list).entries() {
            resources.insert(name);
            values.extend(parse(&amount).ok().map(|amount| ((list, name), amount)));
        }
    }
    for name in resources {
        let value = |list: &'static str| values.get(&(list, name)).copied();
        for (low, high, at, shown, low_name, high_name) in ORDER {
            let (Some(below), Some(above), Some(shown)) = (value(low), value(high), value(shown)) else {
                continue;
            };
            if below > above {
                let text = format!("{low_name} {below} is greater than {high_name} {above}");
                errors.push(limit.child(at).key(name).invalid_value(shown.to_string(), text));
            }
        }
        ratio(limit, name, value("maxLimitRequestRatio"), (value("min"), value("max")), errors);
        let (default, request) = (value("default"), value("defaultRequest"));
        if let (Some(default), Some(request)) = (default, request)
            && default != request
            && !quantities::may_overcommit(name)
        {
            let text =
                format!("default value {default} must equal to defaultRequest value {request} in {name}");
            errors.push(limit.child("defaultRequest").key(name).invalid_value(request.to_string(), text));
        }
    }
}

fn ratio(
    limit: &Field<'_, '_>,
    name: &str,
    ratio: Option<Quantity>,
    (min, max): (Option<Quantity>, Option<Quantity>),
    errors: &mut Errors,
) {
    let Some(ratio) = ratio else { return };
    let ratios = limit.child("maxLimitRequestRatio");
    let field = ratios.key(name);
    if ratio < Quantity::whole(1) {
        errors.push(field.invalid(format!("ratio {ratio} is less than 1")));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let most = max.ratio(min);
        if ratio.ratio(Quantity::whole(1)) > most {
            errors.push(field.invalid(format!("ratio {ratio} is greater than max/min = {most:.6}")));
        }
    }
}
