//! Validation of statuses, by kind: counts are not negative and consistent. Checked when the status is written.

use serde_json::Value;

use super::field::{Errors, Field};
use super::walk::top;
use super::{batch, certificates, conditions, devices, flowcontrol, ingress, policies, storage_classes};

const REPLICAS: &str = "cannot be greater than status.replicas";

/// Rules for the counts of a kind.
struct Counts {
    group: &'static str,
    kind: &'static str,
    /// Fields that must not be negative.
    counts: &'static [&'static str],
    /// A count, its upper bound, and the error message.
    order: &'static [(&'static str, &'static str, &'static str)],
    /// The collision count must not decrease.
    collides: bool,
}

const COUNTS: [Counts; 6] = [
    Counts {
        group: "apps",
        kind: "Deployment",
        counts: &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ],
        order: &[
            ("updatedReplicas", "replicas", REPLICAS),
            ("readyReplicas", "replicas", REPLICAS),
            ("availableReplicas", "replicas", REPLICAS),
            ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
        ],
        collides: true,
    },
    Counts {
        group: "apps",
        kind: "ReplicaSet",
        counts: &[
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ],
        order: &[
            ("fullyLabeledReplicas", "replicas", REPLICAS),
            ("readyReplicas", "replicas", REPLICAS),
            ("availableReplicas", "replicas", REPLICAS),
            ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
        ],
        collides: false,
    },
    Counts {
        group: "apps",
        kind: "StatefulSet",
        counts: &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
        order: &[
            ("readyReplicas", "replicas", REPLICAS),
            ("currentReplicas", "replicas", REPLICAS),
            ("updatedReplicas", "replicas", REPLICAS),
            ("availableReplicas", "replicas", REPLICAS),
            ("availableReplicas", "readyReplicas", "cannot be greater than status.readyReplicas"),
        ],
        collides: true,
    },
    Counts {
        group: "apps",
        kind: "DaemonSet",
        counts: &[
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ],
        order: &[],
        collides: true,
    },
    Counts {
        group: "autoscaling",
        kind: "HorizontalPodAutoscaler",
        counts: &["currentReplicas", "desiredReplicas"],
        order: &[],
        collides: false,
    },
    Counts {
        group: "policy",
        kind: "PodDisruptionBudget",
        counts: &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"],
        order: &[],
        collides: false,
    },
];

/// Checks an update of a status.
pub(super) fn check(group_kind: (&str, &str), new: &Value, old: &Value, errors: &mut Errors) {
    let status = top(new, "status");
    match group_kind {
        ("batch", "Job") => batch::status(new, old, errors),
        ("networking.k8s.io", "Ingress") => ingress::status(new, old, errors),
        ("resource.k8s.io", "ResourceClaim") => devices::status(new, old, errors),
        ("storage.k8s.io", "VolumeAttachment") => storage_classes::attachment_status(new, errors),
        ("flowcontrol.apiserver.k8s.io", _) => flowcontrol::status(new, errors),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificates::check(new, Some(old), errors),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            policies::status(&status, errors);
            conditions::check(&status.child("conditions"), errors);
        }
        ("policy", "PodDisruptionBudget") => conditions::check(&status.child("conditions"), errors),
        _ => {}
    }
    let own = COUNTS.iter().find(|counts| (counts.group, counts.kind) == group_kind);
    if let Some(own) = own {
        own.check(&status, &old["status"], errors);
    }
}

impl Counts {
    fn check(&self, status: &Field<'_, '_>, old: &Value, errors: &mut Errors) {
        status.none_negative(self.counts, errors);
        for (count, bound, detail) in self.order {
            let count = status.child(count);
            if count.int() > status.child(bound).int() {
                errors.push(count.invalid(*detail));
            }
        }
        let collisions = status.child("collisionCount");
        if self.collides && collisions.int() < old["collisionCount"].as_i64().unwrap_or_default() {
            errors.push(collisions.invalid_value(collisions.int(), "cannot be decremented"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn status_counts_are_consistent() {
        let wrong = |status: Value, old: Value| {
            let object = |status: Value| json!({"status": status});
            let mut errors = Vec::new();
            check(("apps", "Deployment"), &object(status), &object(old), &mut errors);
            errors.into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        let no: [&str; 0] = [];
        assert_eq!(wrong(json!({"replicas": 2, "readyReplicas": 2, "updatedReplicas": 1}), json!({})), no);
        assert_eq!(
            wrong(json!({"replicas": 1, "updatedReplicas": 2}), json!({})),
            ["status.updatedReplicas"]
        );
        assert_eq!(wrong(json!({"unavailableReplicas": -1}), json!({})), ["status.unavailableReplicas"]);
        assert_eq!(wrong(json!({}), json!({"collisionCount": 1})), ["status.collisionCount"]);
    }
}
