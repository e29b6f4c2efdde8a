//! PodSecurity: the labels of a namespace say which Pod Security Standards are enforced on its pods, and which cause
//! only a warning to the client.

mod checks;
mod policy;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::Stored;

use self::checks::{PodSecurityViolation, Subject, findings};
use self::policy::{Level, Policy, Rules};
use super::refuse;
use crate::objects::{Objects, core, items, text};

/// Maximum number of pods of a namespace that are checked when its labels change.
const PODS_MAX: usize = 3000;

/// Enforces the rules on pods, and warns about pod templates and namespaces.
///
/// # Errors
/// 403 for a pod that breaks the rules of its namespace, 422 for invalid labels.
pub(super) fn admit(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let asked = request.attributes;
    let main = asked.subresource.is_empty();
    let (Some(object), Operation::Create | Operation::Update) =
        (request.object.as_deref(), request.operation)
    else {
        return Ok(());
    };
    match (asked.group.as_str(), asked.resource.as_str()) {
        ("", "namespaces") if main => admit_namespace(objects, request, object),
        ("", "pods") if main || matches!(asked.subresource.as_str(), "ephemeralcontainers" | "resize") => {
            let changed = request.old.is_none_or(|old| is_significant(object, old));
            if changed { admit_pod(objects, request, object) } else { Ok(()) }
        }
        (group, resource) if main => {
            if let Some(template) = template(group, resource).and_then(|pointer| object.pointer(pointer)) {
                let policy = policy_of(objects, request.namespace);
                warn(request, policy.warn, &findings(policy.warn, Subject::of(template)));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Where the kinds that create pods have their template.
fn template(group: &str, resource: &str) -> Option<&'static str> {
    match (group, resource) {
        ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
        | ("", "replicationcontrollers")
        | ("batch", "jobs") => Some("/spec/template"),
        ("", "podtemplates") => Some("/template"),
        ("batch", "cronjobs") => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

fn policy_of(objects: &Objects, namespace: &str) -> Policy {
    let namespace = objects.get(core("namespaces"), "", namespace);
    namespace.map(|namespace| Policy::of(&namespace.value).0).unwrap_or_default()
}

fn admit_pod(objects: &Objects, request: &AdmissionRequest<'_>, pod: &Value) -> Result<(), ApiError> {
    let policy = policy_of(objects, request.namespace);
    let broken = findings(policy.enforce, Subject::of(pod));
    if !broken.is_empty() {
        let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, in_words(&broken));
        return Err(refuse(request.attributes, request.name, why));
    }
    warn(request, policy.warn, &findings(policy.warn, Subject::of(pod)));
    Ok(())
}

fn warn(request: &AdmissionRequest<'_>, rules: Rules, findings: &[PodSecurityViolation]) {
    if !findings.is_empty() {
        request.warnings.add(format!("would violate PodSecurity \"{rules}\": {}", in_words(findings)));
    }
}

fn in_words(findings: &[PodSecurityViolation]) -> String {
    let words = findings.iter().map(|finding| match finding.detail.as_str() {
        "" => finding.reason.clone(),
        detail => format!("{} ({detail})", finding.reason),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Whether an update of a pod changes fields that the standards check: the rest of its spec cannot change.
fn is_significant(new: &Value, old: &Value) -> bool {
    let images = |pod: &Value, list: &str| -> Vec<(String, String)> {
        let own = items(pod, list).iter();
        own.map(|container| (text(container, "/name").to_owned(), text(container, "/image").to_owned()))
            .collect()
    };
    let lists = ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"];
    lists.iter().any(|list| images(new, list) != images(old, list))
}

fn admit_namespace(
    objects: &Objects,
    request: &AdmissionRequest<'_>,
    namespace: &Value,
) -> Result<(), ApiError> {
    let (policy, errors) = Policy::of(namespace);
    let before = request.old.map(Policy::of);
    let known = before.as_ref().is_some_and(|(_, old)| *old == errors);
    if !errors.is_empty() && !known {
        return Err(ApiError::invalid("", "Namespace", request.name, &errors));
    }
    let Some((old, _)) = before else { return Ok(()) };
    let (new, old) = (policy.enforce, old.enforce);
    let laxer = new.same_version(old) && new.level <= old.level;
    if new != old && new.level != Level::Privileged && !laxer {
        let pods = objects.list_raw(&core("pods"), Some(request.name));
        warn_of_pods(request, new, &pods);
    }
    Ok(())
}

/// Warns about existing pods that break the new rules. One pod of each controller is checked first.
fn warn_of_pods(request: &AdmissionRequest<'_>, rules: Rules, pods: &[Arc<Stored>]) {
    let mut controllers = HashSet::new();
    let (first, others): (Vec<&Arc<Stored>>, Vec<&Arc<Stored>>) =
        pods.iter().partition(|pod| controller_of(pod).is_none_or(|uid| controllers.insert(uid)));
    let mut broken: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    // Only one pod at a time is parsed into a tree.
    for pod in first.into_iter().chain(others).take(PODS_MAX) {
        let Ok(value) = serde_json::from_slice(&pod.body()) else { continue };
        let found = findings(rules, Subject::of(&value));
        if !found.is_empty() {
            let reasons = found.iter().map(|finding| finding.reason.as_str()).collect::<Vec<_>>().join(", ");
            broken.entry(reasons).or_default().push(pod.key.name());
        }
    }
    if pods.len() > PODS_MAX {
        request.warnings.add(format!(
            "new PodSecurity enforce level only checked against the first {PODS_MAX} of {} existing pods",
            pods.len()
        ));
    }
    if !broken.is_empty() {
        let name = request.name;
        request.warnings.add(format!(
            "existing pods in namespace {name:?} violate the new PodSecurity enforce level \"{rules}\""
        ));
    }
    let mut texts: Vec<String> = broken.iter().map(|(reasons, pods)| named_pods(reasons, pods)).collect();
    texts.sort();
    texts.into_iter().for_each(|text| request.warnings.add(text));
}

/// The UID of the controller of a pod.
fn controller_of(pod: &Stored) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct PodBody {
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        owner_references: Vec<PodOwner>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct PodOwner {
        uid: String,
        controller: Option<bool>,
    }
    let PodBody { metadata } = serde_json::from_slice(&pod.body()).ok()?;
    let controller = metadata.owner_references.into_iter().find(|owner| owner.controller == Some(true));
    controller.map(|owner| owner.uid)
}

fn named_pods(reasons: &str, pods: &[&str]) -> String {
    let first = pods.iter().min().copied().unwrap_or_default();
    match pods.len() {
        0 | 1 => format!("{first}: {reasons}"),
        2 => format!("{first} (and 1 other pod): {reasons}"),
        count => format!("{first} (and {} other pods): {reasons}", count - 1),
    }
}

#[cfg(test)]
mod tests;
