//! Validation of Deployments, ReplicaSets, StatefulSets, DaemonSets and ControllerRevisions
//! (pkg/apis/apps/validation).

use serde_json::Value;

use super::field::{Errors, Field};
use super::selectors::matches;
use super::walk::top;
use super::{FieldError, claims, int_or_percent, names, pod};

/// Checks one of these kinds. Immutable parts are only checked in a new object, so that objects that were stored before
/// a rule existed can still be written.
pub(super) fn check(kind: &str, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = top(object, "spec");
    match kind {
        "Deployment" => deployment(&spec, errors),
        "ReplicaSet" => {
            spec.none_negative(&["replicas", "minReadySeconds"], errors);
            required_selector(&spec, "deployment", "invalid label selector", errors, replicated);
        }
        "StatefulSet" => stateful_set(&spec, old.is_none(), errors),
        "DaemonSet" => daemon_set(&spec, errors),
        "ControllerRevision" => {
            top(object, "revision").non_negative(errors);
            match (old, &object["data"]) {
                (None, Value::Null) => errors.push(top(object, "data").required("data is mandatory")),
                (None, data) if !data.is_object() => {
                    errors.push(top(object, "data").required("data must be a valid JSON object"));
                }
                _ => {}
            }
        }
        _ => {}
    }
}

/// Checks the selector, and the template if the selector is valid.
fn required_selector(
    spec: &Field<'_, '_>,
    what: &str,
    unreadable: &str,
    errors: &mut Errors,
    template: impl Fn(&Field<'_, '_>, &mut Errors),
) {
    let selector = spec.child("selector");
    let before = errors.len();
    selector.required_selector(errors);
    let readable = errors.len() == before || !selector.is_set();
    no_empty_selector(&selector, what, errors);
    if !readable {
        errors.push(selector.invalid(unreadable));
        return;
    }
    if !is_empty(&selector) {
        selects_template(spec, errors);
    }
    template(spec, errors);
}

fn is_empty(selector: &Field<'_, '_>) -> bool {
    selector.is_set() && ["matchLabels", "matchExpressions"].iter().all(|key| selector.child(key).len() == 0)
}

fn no_empty_selector(selector: &Field<'_, '_>, what: &str, errors: &mut Errors) {
    if is_empty(selector) {
        errors.push(selector.invalid(format!("empty selector is invalid for {what}")));
    }
}

/// A missing selector matches nothing.
fn selects_template(spec: &Field<'_, '_>, errors: &mut Errors) {
    let labels = spec.below("template.metadata.labels");
    let selector = spec.child("selector");
    if !selector.is_set() || !matches(selector.value(), labels.value()) {
        errors.push(labels.invalid("`selector` does not match template `labels`"));
    }
}

/// Replicated pods run for ever: they are always restarted and have no deadline.
fn endless(spec: &Field<'_, '_>, what: &str, errors: &mut Errors) {
    let pod = spec.below("template.spec");
    let policy = pod.child("restartPolicy");
    if policy.text() != "Always" {
        errors.push(policy.not_supported(&["Always"]));
    }
    let deadline = pod.child("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.push(deadline.forbidden(&format!("activeDeadlineSeconds in {what} is not Supported")));
    }
}

fn replicated(spec: &Field<'_, '_>, errors: &mut Errors) {
    pod::template(&spec.value()["template"], &format!("{}.template", spec.path()), errors);
    endless(spec, "ReplicaSet", errors);
}

fn deployment(spec: &Field<'_, '_>, errors: &mut Errors) {
    spec.child("replicas").non_negative(errors);
    required_selector(spec, "deployment", "invalid label selector", errors, replicated);
    let strategy = spec.child("strategy");
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "Recreate" if rolling.is_set() => {
            errors.push(rolling.forbidden("may not be specified when strategy `type` is 'Recreate'"));
        }
        "Recreate" => {}
        "RollingUpdate" => rolling_deployment(&rolling, errors),
        _ => errors.push(strategy.not_supported(&["Recreate", "RollingUpdate"])),
    }
    spec.none_negative(&["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"], errors);
    let deadline = spec.child("progressDeadlineSeconds");
    if deadline.is_set() && deadline.int() <= spec.child("minReadySeconds").int() {
        errors.push(deadline.invalid("must be greater than minReadySeconds"));
    }
}

fn rolling_deployment(rolling: &Field<'_, '_>, errors: &mut Errors) {
    let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
    int_or_percent::not_negative(&unavailable, errors);
    int_or_percent::not_negative(&surge, errors);
    if int_or_percent::value(&unavailable) == 0 && int_or_percent::value(&surge) == 0 {
        errors.push(unavailable.invalid("may not be 0 when `maxSurge` is 0"));
    }
    int_or_percent::at_most_all(&unavailable, errors);
}

fn stateful_set(spec: &Field<'_, '_>, is_new: bool, errors: &mut Errors) {
    let management = spec.child("podManagementPolicy");
    match management.text() {
        "" => errors.push(management.required("")),
        "OrderedReady" | "Parallel" => {}
        _ => errors.push(management.invalid("must be 'OrderedReady' or 'Parallel'")),
    }
    stateful_strategy(&spec.child("updateStrategy"), errors);
    let retention = spec.child("persistentVolumeClaimRetentionPolicy");
    for when in ["whenDeleted", "whenScaled"] {
        retention.child(when).one_of(&["Retain", "Delete"], errors);
    }
    if is_new {
        for claim in spec.child("volumeClaimTemplates").items() {
            claims::spec(&claim.child("spec"), errors);
        }
    }
    spec.none_negative(&["replicas", "minReadySeconds"], errors);
    spec.below("ordinals.start").non_negative(errors);
    let service = spec.child("serviceName");
    if is_new && !service.text().is_empty() {
        service.grammar(names::dns1123_label, errors);
    }
    required_selector(spec, "statefulset", "", errors, |spec, errors| {
        let claims = spec.value()["volumeClaimTemplates"].as_array().into_iter().flatten();
        let claims: Vec<&str> =
            claims.map(|claim| claim["metadata"]["name"].as_str().unwrap_or_default()).collect();
        let path = format!("{}.template", spec.path());
        for (index, claim) in claims.iter().enumerate() {
            claim_volume(&format!("{path}.spec.volumes[{index}]"), claim, errors);
        }
        pod::template_with_claims(&spec.value()["template"], &path, &claims, errors);
    });
    endless(spec, "StatefulSet", errors);
}

/// Each pod gets a volume named after each claim, so a claim needs a valid volume name.
fn claim_volume(path: &str, name: &str, errors: &mut Errors) {
    if name.is_empty() {
        for field in ["persistentVolumeClaim.claimName", "name"] {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    } else if let Some(problem) = names::dns1123_label(name) {
        errors.push(FieldError::invalid(format!("{path}.name"), name, problem));
    }
}

fn stateful_strategy(strategy: &Field<'_, '_>, errors: &mut Errors) {
    let rolling = strategy.child("rollingUpdate");
    match strategy.child("type").text() {
        "" => errors.push(strategy.required("")),
        "OnDelete" if rolling.is_set() => {
            errors.push(rolling.invalid("only allowed for updateStrategy 'RollingUpdate'"));
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            rolling.child("partition").non_negative(errors);
        }
        _ => errors.push(strategy.invalid("must be 'RollingUpdate' or 'OnDelete'")),
    }
}

fn daemon_set(spec: &Field<'_, '_>, errors: &mut Errors) {
    let selector = spec.child("selector");
    let before = errors.len();
    selector.selector(errors);
    if errors.len() == before && !is_empty(&selector) {
        selects_template(spec, errors);
    }
    no_empty_selector(&selector, "daemonset", errors);
    pod::template(&spec.value()["template"], &format!("{}.template", spec.path()), errors);
    endless(spec, "DaemonSet", errors);
    spec.child("minReadySeconds").non_negative(errors);
    let strategy = spec.child("updateStrategy");
    match strategy.child("type").text() {
        "OnDelete" => {}
        "RollingUpdate" => rolling_daemons(&strategy.child("rollingUpdate"), errors),
        _ => errors.push(strategy.not_supported(&["RollingUpdate", "OnDelete"])),
    }
    spec.child("revisionHistoryLimit").non_negative(errors);
}

fn rolling_daemons(rolling: &Field<'_, '_>, errors: &mut Errors) {
    if !rolling.is_set() {
        errors.push(rolling.required(""));
        return;
    }
    let (unavailable, surge) = (rolling.child("maxUnavailable"), rolling.child("maxSurge"));
    for number in [&unavailable, &surge] {
        int_or_percent::not_negative(number, errors);
    }
    for number in [&unavailable, &surge] {
        int_or_percent::at_most_all(number, errors);
    }
    match (int_or_percent::value(&unavailable) != 0, int_or_percent::value(&surge) != 0) {
        (true, true) => errors.push(surge.invalid("may not be set when maxUnavailable is non-zero")),
        (false, false) => errors.push(unavailable.required("cannot be 0 when maxSurge is 0")),
        _ => {}
    }
}

const STATEFUL_SET: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

/// Fields of a StatefulSet that may change.
const STATEFUL_SET_FREE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// Checks what an update of a StatefulSet changes.
pub(super) fn stateful_set_update(new: &Value, old: &Value, errors: &mut Errors) {
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, _| !STATEFUL_SET_FREE.contains(&key.as_str()));
        }
        spec
    };
    if fixed(new) != fixed(old) {
        errors.push(FieldError::forbidden("spec", STATEFUL_SET));
    }
}
