//! The conditions of a namespace that is being emptied, with the reasons and messages of kube-controller-manager.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tombolo_proto::object::Resource;

use crate::objects::{list_member, text, timestamp};

/// The findings of one round of deletions.
#[derive(Debug, Default)]
pub(super) struct Findings {
    failures: Vec<String>,
    /// `RESOURCE.GROUP` and how many objects of it are left.
    remaining: BTreeMap<String, usize>,
    /// Finalizers and how many objects wait for each.
    finalizers: BTreeMap<String, usize>,
}

/// A condition when nothing is wrong: type, reason, message.
type Fine = (&'static str, &'static str, &'static str);

const DISCOVERY: Fine =
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered");
const PARSING: Fine = (
    "NamespaceDeletionGroupVersionParsingFailure",
    "ParsedGroupVersions",
    "All legacy kube types successfully parsed",
);
const DELETION: Fine = (
    "NamespaceDeletionContentFailure",
    "ContentDeleted",
    "All content successfully deleted, may be waiting on finalization",
);
const CONTENT: Fine = ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed");
const FINALIZERS: Fine =
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished");

impl Findings {
    /// Records that a deletion failed.
    pub(super) fn failed(&mut self, why: String) {
        self.failures.push(why);
    }

    /// Records that an object still exists.
    pub(super) fn remains(&mut self, resource: &Resource, finalizers: &[String]) {
        *self.remaining.entry(format!("{}.{}", resource.name, resource.group)).or_default() += 1;
        for finalizer in finalizers {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }

    /// Whether nothing is left and nothing failed.
    pub(super) fn is_empty(&self) -> bool {
        self.failures.is_empty() && self.remaining.is_empty()
    }

    /// Writes all conditions. Returns whether one changed.
    pub(super) fn write(&self, status: &mut Map<String, Value>, now: Timestamp) -> bool {
        let counts = |all: &BTreeMap<String, usize>, word: &str| {
            all.iter()
                .map(|(name, count)| format!("{name} {word} {count} resource instances"))
                .collect::<Vec<_>>()
        };
        let mut failures = self.failures.clone();
        failures.sort();
        let failed = (!failures.is_empty()).then(|| {
            let (count, texts) = (failures.len(), failures.join(", "));
            let message = format!("Failed to delete all resource types, {count} remaining: {texts}");
            ("ContentDeletionFailed", message)
        });
        let remain = (!self.remaining.is_empty()).then(|| {
            let texts = counts(&self.remaining, "has").join(", ");
            ("SomeResourcesRemain", format!("Some resources are remaining: {texts}"))
        });
        let wait = (!self.finalizers.is_empty()).then(|| {
            let texts = counts(&self.finalizers, "in").join(", ");
            let message = format!("Some content in the namespace has finalizers remaining: {texts}");
            ("SomeFinalizersRemain", message)
        });
        // All resources are in this process, so discovery and parsing cannot fail.
        let all =
            [(DISCOVERY, None), (PARSING, None), (DELETION, failed), (CONTENT, remain), (FINALIZERS, wait)];
        let conditions = list_member(status, "conditions");
        let mut changed = false;
        for (fine, wrong) in all {
            changed |= put(conditions, fine, wrong, now);
        }
        changed
    }
}

/// Writes one condition. Returns whether it changed.
fn put(conditions: &mut Vec<Value>, fine: Fine, wrong: Option<(&str, String)>, now: Timestamp) -> bool {
    let (kind, fine_reason, fine_message) = fine;
    let status = if wrong.is_some() { "True" } else { "False" };
    let (reason, message) = wrong.unwrap_or_else(|| (fine_reason, fine_message.to_owned()));
    let old = conditions.iter_mut().find(|condition| text(condition, "/type") == kind);
    let same = |old: &Value, field: &str, value: &str| text(old, field) == value;
    let since = match &old {
        Some(old) if same(old, "/status", status) => {
            if same(old, "/reason", reason) && same(old, "/message", &message) {
                return false;
            }
            text(old, "/lastTransitionTime").to_owned()
        }
        _ => timestamp(now),
    };
    let new = json!({
        "type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
    });
    match old {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{core, v1};

    fn condition(status: &Map<String, Value>, kind: &str) -> Value {
        let conditions = status["conditions"].as_array().unwrap();
        conditions.iter().find(|condition| condition["type"] == kind).unwrap().clone()
    }

    #[test]
    fn remaining_objects_are_counted_and_named() {
        let mut findings = Findings::default();
        findings.remains(&core("pods"), &[]);
        findings.remains(&v1("apps", "deployments"), &["b".to_owned()]);
        findings.remains(&v1("apps", "deployments"), &["a".to_owned(), "b".to_owned()]);
        findings.failed("no".to_owned());
        let mut status = Map::new();
        let (first, later) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        assert!(findings.write(&mut status, first));
        assert!(!findings.write(&mut status, later), "nothing changed");
        let remaining = condition(&status, "NamespaceContentRemaining");
        assert_eq!(
            remaining["message"],
            "Some resources are remaining: deployments.apps has 2 resource instances, pods. has 1 resource instances"
        );
        let waiting = condition(&status, "NamespaceFinalizersRemaining");
        assert_eq!(
            waiting["message"],
            "Some content in the namespace has finalizers remaining: a in 1 resource instances, b in 2 resource instances"
        );
        let failed = condition(&status, "NamespaceDeletionContentFailure");
        assert_eq!(failed["message"], "Failed to delete all resource types, 1 remaining: no");
        assert_eq!(condition(&status, "NamespaceDeletionDiscoveryFailure")["status"], "False");
    }

    #[test]
    fn a_condition_keeps_its_time_as_long_as_its_status() {
        let mut status = Map::new();
        let (first, later) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let mut findings = Findings::default();
        findings.remains(&core("pods"), &[]);
        findings.write(&mut status, first);
        findings.remains(&core("pods"), &[]);
        assert!(findings.write(&mut status, later));
        let since = |status: &Map<String, Value>| {
            condition(status, "NamespaceContentRemaining")["lastTransitionTime"].clone()
        };
        assert_eq!(since(&status), timestamp(first));
        assert!(Findings::default().write(&mut status, later));
        assert_eq!(since(&status), timestamp(later));
        assert_eq!(condition(&status, "NamespaceContentRemaining")["reason"], "ContentRemoved");
    }
}
