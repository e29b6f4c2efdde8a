//! Warnings about volumes and claims.

use serde_json::Value;

use super::super::field::Field;
use super::super::quantities::parse;
use super::labels::node_term;
use tombolo_apicore::value::{at, items};

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const NO_CLASS: &str = "deprecated since v1.8; use \"storageClassName\" attribute instead";

/// Deprecated or removed sources.
const OLD: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Sources of persistent volumes that cause warnings, in that order.
const OF_VOLUMES: [&str; 6] = ["cephfs", "photonPersistentDisk", "scaleIO", "storageos", "glusterfs", "rbd"];

fn old(of: &Field<'_, '_>, source: &str, warnings: &mut Vec<String>) {
    let known = OLD.iter().find(|(key, ..)| *key == source);
    if let Some((key, shown, advice)) = known.filter(|(key, ..)| of.child(key).is_set()) {
        warnings.push(format!("{}: {advice}", of.with(shown, &of.value()[*key])));
    }
}

/// Warnings about the volumes of a pod.
pub(super) fn of_pod(list: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for volume in list.items() {
        for (source, ..) in OLD {
            if source == "cephfs" {
                let template = volume.child("ephemeral");
                let template = template.child("volumeClaimTemplate");
                sizes(&template.child("spec"), warnings);
            }
            old(&volume, source, warnings);
        }
    }
}

/// Warns of fractions of bytes.
pub(super) fn fraction(amount: &Field<'_, '_>, warnings: &mut Vec<String>) {
    if amount.is_set() && parse(amount).is_ok_and(|quantity| quantity.rounded_up() != quantity) {
        warnings.push(format!(
            "{amount}: fractional byte value {:?} is invalid, must be an integer",
            amount.text()
        ));
    }
}

fn sizes(claim: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let resources = claim.child("resources");
    for list in ["requests", "limits"] {
        fraction(&resources.child(list).key("storage"), warnings);
    }
}

/// Warnings about a claim.
pub(super) fn claim(claim: &Value, warnings: &mut Vec<String>) {
    if !at(claim, &["metadata", "annotations", CLASS]).is_null() {
        warnings.push(format!("metadata.annotations[{CLASS}]: {NO_CLASS}"));
    }
    sizes(&Field::root("spec", &claim["spec"]), warnings);
}

/// Warnings about the claim templates of a StatefulSet. Updates use another path.
pub(super) fn claim_templates(kind: &str, object: &Value, suffix: &str, warnings: &mut Vec<String>) {
    if kind != "StatefulSet" {
        return;
    }
    for (index, claim) in items(object, &["spec", "volumeClaimTemplates"]).iter().enumerate() {
        sizes(&Field::root(&format!("spec.volumeClaimTemplates[{index}]{suffix}"), &claim["spec"]), warnings);
    }
    if object["spec"]["revisionHistoryLimit"].as_i64().is_some_and(|limit| limit < 0) {
        warnings.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
}

/// Warnings about a persistent volume.
pub(super) fn volume(volume: &Value, warnings: &mut Vec<String>) {
    let annotations = Field::root("metadata.annotations", &volume["metadata"]["annotations"]);
    for (key, advice) in [
        (CLASS, NO_CLASS),
        (
            "volume.beta.kubernetes.io/mount-options",
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        ),
    ] {
        if annotations.key(key).is_set() {
            warnings.push(format!("{}: {advice}", annotations.key(key)));
        }
    }
    let spec = Field::root("spec", &volume["spec"]);
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if policy.text() == "Recycle" {
        warnings.push(format!(
            "{policy}: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
        ));
    }
    let affinity = spec.child("nodeAffinity");
    let required = affinity.child("required");
    for term in required.child("nodeSelectorTerms").items() {
        node_term(&term, false, warnings);
    }
    OF_VOLUMES.iter().for_each(|source| old(&spec, source, warnings));
}
