//! Validation of HorizontalPodAutoscalers (pkg/apis/autoscaling/validation): bounds, the target, metrics that a
//! controller can read, and how fast the autoscaler may scale.

use serde_json::Value;

use super::field::{Errors, Field};
use super::names;
use tombolo_apicore::schema::format::Quantity;

/// The field that describes each type of metric, in kube-apiserver's order.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const SOURCE_TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
const STABILIZATION_SECONDS_MAX: i64 = 3600;
const PERIOD_SECONDS_MAX: i64 = 1800;

/// Whether a reference may omit the API group of its object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Optional,
    Required,
}

/// Checks an autoscaler of any version. A stored target without a group may keep its form.
pub(super) fn check(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = Field::root("spec", &object["spec"]);
    let [lowest, highest] = ["minReplicas", "maxReplicas"].map(|name| spec.child(name));
    if lowest.is_set() && lowest.int() < 1 {
        errors.push(lowest.invalid("must be greater than or equal to 1"));
    }
    match highest.int() {
        0 => errors.push(highest.required("must be set and greater than 0")),
        ..0 => errors.push(highest.invalid("must be greater than or equal to 1")),
        _ => {}
    }
    if lowest.is_set() && highest.int() < lowest.int() {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(highest.invalid_value(highest.int(), detail));
    }
    let target = spec.child("scaleTargetRef");
    let kept = old.is_some_and(|old| is_loose(&old["spec"]["scaleTargetRef"]));
    reference(&target, if kept { None } else { Some(Group::Required) }, errors);
    // The first version has its own field for the metric; errors name the path in the second version.
    let percentage = spec.child("targetCPUUtilizationPercentage");
    if percentage.is_set() && percentage.int() < 1 {
        let path = "spec.metrics[0].resource.target.averageUtilization";
        errors.push(Field::root(path, percentage.value()).invalid("must be greater than 0"));
    }
    spec.child("metrics").items().for_each(|one| metric(&one, errors));
    let behavior = spec.child("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        scaling(&behavior.child(direction), errors);
    }
}

/// Whether a stored target would be refused now.
fn is_loose(target: &Value) -> bool {
    api_version_problem(target["apiVersion"].as_str().unwrap_or_default(), Group::Required).is_some()
}

fn api_version_problem(version: &str, group: Group) -> Option<String> {
    match version.matches('/').count() {
        0 | 1 if version.contains('/') && !version.starts_with('/') || group == Group::Optional => None,
        0 | 1 => Some("apiVersion must specify API group".to_owned()),
        _ => Some(format!("unexpected GroupVersion string: {version}")),
    }
}

/// Checks the object that an autoscaler names. `group` is `None` if the version of a stored reference is kept.
fn reference(reference: &Field<'_, '_>, group: Option<Group>, errors: &mut Errors) {
    for field in ["kind", "name"] {
        reference.child(field).check_required(names::path_segment, errors);
    }
    if let Some(group) = group {
        reference.child("apiVersion").grammar(|version| api_version_problem(version, group), errors);
    }
}

fn metric(metric: &Field<'_, '_>, errors: &mut Errors) {
    let kind = metric.child("type");
    if kind.text().is_empty() {
        errors.push(kind.required("must specify a metric source type"));
    }
    let wanted = SOURCES.iter().find(|(known, _)| *known == kind.text()).map(|(_, field)| *field);
    if wanted.is_none() {
        errors.push(kind.not_supported(&SOURCE_TYPES));
    }
    let present: Vec<(&str, Field<'_, '_>)> = SOURCES
        .iter()
        .map(|(_, field)| (*field, metric.child(field)))
        .filter(|(_, source)| source.is_set())
        .collect();
    if let Some((field, first)) = present.first() {
        source(field, first, errors);
    }
    match wanted.map(|field| metric.child(field)) {
        None => errors.push(kind.not_supported(&SOURCE_TYPES)),
        Some(source) if !source.is_set() => {
            errors.push(source.required("must populate information for the given metric source"));
        }
        Some(_) => {}
    }
    if present.len() > 1 {
        let others = present.iter().filter(|(field, _)| wanted != Some(*field));
        errors.extend(others.map(|(_, one)| one.forbidden("must populate the given metric source only")));
    }
}

fn source(field: &str, source: &Field<'_, '_>, errors: &mut Errors) {
    let target = source.child("target");
    let [value, average, utilization] =
        ["value", "averageValue", "averageUtilization"].map(|name| target.child(name));
    match field {
        "object" => {
            reference(&source.child("describedObject"), Some(Group::Optional), errors);
            named_metric(source, errors);
            self::target(&target, errors);
            if !value.is_set() && !average.is_set() {
                errors.push(average.required("must set either a target value or averageValue"));
            }
        }
        "external" => {
            named_metric(source, errors);
            self::target(&target, errors);
            if !value.is_set() && !average.is_set() {
                let detail = "must set either a target value for metric or a per-pod target";
                errors.push(average.required(detail));
            }
            if value.is_set() && average.is_set() {
                let detail = "may not set both a target value for metric and a per-pod target";
                errors.push(value.forbidden(detail));
            }
        }
        "pods" => {
            named_metric(source, errors);
            self::target(&target, errors);
            if !average.is_set() {
                errors.push(average.required("must specify a positive target averageValue"));
            }
        }
        kind => {
            let name = source.child("name");
            if name.text().is_empty() {
                errors.push(name.required("must specify a resource name"));
            } else if kind == "containerResource" {
                name.grammar(container_resource, errors);
            }
            let container = source.child("container");
            if kind == "containerResource" && container.text().is_empty() {
                errors.push(container.required("must specify a container"));
            } else if kind == "containerResource" {
                container.grammar(names::dns1123_label, errors);
            }
            self::target(&target, errors);
            if !utilization.is_set() && !average.is_set() {
                let detail = "must set either a target raw value or a target utilization";
                errors.push(utilization.required(detail));
            }
            if utilization.is_set() && average.is_set() {
                let detail = "may not set both a target raw value and a target utilization";
                errors.push(average.forbidden(detail));
            }
        }
    }
}

fn named_metric(source: &Field<'_, '_>, errors: &mut Errors) {
    let name = source.below("metric.name");
    match name.text() {
        "" => errors.push(name.required("must specify a metric name")),
        _ => name.grammar(names::path_segment, errors),
    }
}

fn target(target: &Field<'_, '_>, errors: &mut Errors) {
    let kind = target.child("type");
    if kind.text().is_empty() {
        errors.push(kind.required("must specify a metric target type"));
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind.text()) {
        kind.grammar(|_| ["must be either Utilization, Value, or AverageValue"], errors);
    }
    for field in ["value", "averageValue"] {
        let amount = target.child(field);
        let is_positive = Quantity::parse(amount.text()).is_ok_and(|amount| amount.sign().is_gt());
        if amount.is_set() && !is_positive {
            errors.push(amount.invalid("must be positive"));
        }
    }
    let utilization = target.child("averageUtilization");
    if utilization.is_set() && utilization.int() < 1 {
        errors.push(utilization.invalid("must be greater than 0"));
    }
}

fn scaling(rules: &Field<'_, '_>, errors: &mut Errors) {
    if !rules.is_set() {
        return;
    }
    let window = rules.child("stabilizationWindowSeconds");
    if window.int() < 0 {
        errors.push(window.invalid("must be greater than or equal to zero"));
    }
    if window.int() > STABILIZATION_SECONDS_MAX {
        errors.push(window.invalid(format!("must be less than or equal to {STABILIZATION_SECONDS_MAX}")));
    }
    rules.child("selectPolicy").one_of(&["Disabled", "Max", "Min"], errors);
    let policies = rules.child("policies");
    if policies.is_empty() {
        errors.push(policies.required("must specify at least one Policy"));
    }
    for policy in policies.items() {
        let kind = policy.child("type");
        if !["Percent", "Pods"].contains(&kind.text()) {
            errors.push(kind.not_supported(&["Percent", "Pods"]));
        }
        let [value, period] = ["value", "periodSeconds"].map(|name| policy.child(name));
        for number in [&value, &period] {
            if number.int() <= 0 {
                errors.push(number.invalid("must be greater than zero"));
            }
        }
        if period.int() > PERIOD_SECONDS_MAX {
            errors.push(period.invalid(format!("must be less than or equal to {PERIOD_SECONDS_MAX}")));
        }
    }
    let tolerance = rules.child("tolerance");
    if Quantity::parse(tolerance.text()).is_ok_and(|share| share.sign().is_lt()) {
        errors.push(tolerance.invalid("must be greater than or equal to 0"));
    }
}

/// The problems with the name of a container resource.
fn container_resource(name: &str) -> Vec<String> {
    let problems = names::qualified_name(name);
    let is_standard =
        matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    let is_extended = || {
        let quota = format!("requests.{name}");
        !name.starts_with("requests.") && names::qualified_name(&quota).is_empty()
    };
    let problem = match name.contains('/') {
        false if !is_standard => "must be a standard resource for containers",
        true if !name.contains("kubernetes.io/") && !is_extended() => {
            "doesn't follow extended resource name standard"
        }
        _ => return problems,
    };
    problems.into_iter().chain([problem.to_owned()]).collect()
}
