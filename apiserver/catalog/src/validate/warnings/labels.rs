//! Deprecated node labels.

use super::super::field::Field;
use super::super::names;

/// The labels, and what to use instead.
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// What to use instead of a label.
pub(super) fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(label, _)| *label == key).map(|(_, advice)| *advice)
}

/// Warns of labels in a node selector term. Values of preferred terms are not validated, but cause warnings.
pub(super) fn node_term(term: &Field<'_, '_>, preferred: bool, warnings: &mut Vec<String>) {
    for expression in term.child("matchExpressions").items() {
        let key = expression.child("key");
        if let Some(advice) = old_label(key.text()) {
            warnings.push(format!("{key}: {} is {advice}", key.text()));
        }
        if preferred {
            for value in expression.child("values").items() {
                let problems = names::label_value(value.text()).into_iter();
                warnings.extend(
                    problems.map(|problem| format!("{value}: {} is invalid, {problem}", value.text())),
                );
            }
        }
    }
}
