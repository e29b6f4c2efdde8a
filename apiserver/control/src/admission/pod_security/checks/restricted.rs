//! Level Restricted: the settings that hardened pods must have.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{PodSecurityViolation, Subject, forbidden, named, plural, quoted, setters};
use crate::objects::{items, text};

/// Allowed volumes: they do not expose the node to the pod.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Forbidden volumes, as a finding names them.
const RESTRICTED_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

/// Minor version since which Windows pods are exempt.
const WINDOWS: u32 = 25;

/// Minor version since which a user namespace makes root harmless.
const USER_NAMESPACES: u32 = 35;

pub(super) fn privilege_escalation(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    if minor >= WINDOWS && subject.is_windows() {
        return None;
    }
    let is_bad = |container: &Value| {
        container.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false))
    };
    let bad = subject.bad(is_bad);
    (!bad.is_empty()).then(|| {
        let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad));
        PodSecurityViolation::new("allowPrivilegeEscalation != false", detail)
    })
}

pub(super) fn capabilities(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    if minor >= WINDOWS && subject.is_windows() {
        return None;
    }
    let list = |container, name: &str| items(container, &format!("/securityContext/capabilities/{name}"));
    let keeps = subject.bad(|container| !list(container, "drop").iter().any(|name| name == "ALL"));
    let mut added = BTreeSet::new();
    let adds = subject.bad(|container| {
        let own = list(container, "add").iter().filter_map(Value::as_str);
        own.filter(|name| *name != "NET_BIND_SERVICE").map(|name| added.insert(name)).count() > 0
    });
    let mut details = Vec::new();
    if !keeps.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&keeps)));
    }
    if !adds.is_empty() {
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&adds),
            quoted(&added)
        ));
    }
    (!details.is_empty()).then(|| PodSecurityViolation::new("unrestricted capabilities", details.join("; ")))
}

pub(super) fn volumes(subject: Subject<'_>, _: u32) -> Option<PodSecurityViolation> {
    let mut types = BTreeSet::new();
    let mut bad = Vec::new();
    for volume in items(subject.spec, "/volumes") {
        let has = |kind: &str| volume.get(kind).is_some_and(|source| !source.is_null());
        if VOLUMES.iter().any(|kind| has(kind)) {
            continue;
        }
        bad.push(text(volume, "/name"));
        types.insert(RESTRICTED_VOLUMES.iter().copied().find(|kind| has(kind)).unwrap_or("unknown"));
    }
    (!bad.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", bad.len()),
            quoted(&bad),
            plural("uses", "use", bad.len()),
            plural("restricted volume type", "restricted volume types", types.len()),
            quoted(&types)
        );
        PodSecurityViolation::new("restricted volume types", detail)
    })
}

pub(super) fn run_as_non_root(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    const REASON: &str = "runAsNonRoot != true";
    if minor >= USER_NAMESPACES && subject.has_user_namespace() {
        return None;
    }
    let said = |holder: &Value| holder.pointer("/securityContext/runAsNonRoot").and_then(Value::as_bool);
    let pod = said(subject.spec);
    if let Some(by) = setters(pod == Some(false), &subject.bad(|container| said(container) == Some(false))) {
        return Some(PodSecurityViolation::new(
            REASON,
            format!("{by} must not set securityContext.runAsNonRoot=false"),
        ));
    }
    let silent = subject.bad(|container| pod != Some(true) && said(container).is_none());
    (!silent.is_empty()).then(|| {
        PodSecurityViolation::new(
            REASON,
            format!("pod or {} must set securityContext.runAsNonRoot=true", named(&silent)),
        )
    })
}

pub(super) fn run_as_user(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    if minor >= USER_NAMESPACES && subject.has_user_namespace() {
        return None;
    }
    let is_root =
        |holder: &Value| holder.pointer("/securityContext/runAsUser").and_then(Value::as_i64) == Some(0);
    let by = setters(is_root(subject.spec), &subject.bad(is_root))?;
    Some(PodSecurityViolation::new("runAsUser=0", format!("{by} must not set runAsUser=0")))
}

pub(super) fn seccomp(subject: Subject<'_>, minor: u32) -> Option<PodSecurityViolation> {
    const REASON: &str = "seccompProfile";
    if minor >= WINDOWS && subject.is_windows() {
        return None;
    }
    let allowed = |profile: &str| matches!(profile, "RuntimeDefault" | "Localhost");
    let (pod, containers, values) = forbidden(subject, "/seccompProfile/type", |profile| !allowed(profile));
    if let Some(by) = setters(pod, &containers) {
        let detail = format!("{by} must not set securityContext.seccompProfile.type to {}", quoted(&values));
        return Some(PodSecurityViolation::new(REASON, detail));
    }
    let has =
        |holder: &Value| holder.pointer("/securityContext/seccompProfile/type").is_some_and(Value::is_string);
    let silent = subject.bad(|container| !has(subject.spec) && !has(container));
    (!silent.is_empty()).then(|| {
        let detail = format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            named(&silent)
        );
        PodSecurityViolation::new(REASON, detail)
    })
}
