//! Validation of pods and pod templates, in the order of kube-apiserver (pkg/apis/core/validation, `ValidatePodSpec`).

pub(super) mod affinity;
mod annotations;
mod containers;
mod environment;
mod handlers;
mod mounts;
mod network;
mod os;
mod paths;
mod projected;
pub(super) mod resize;
mod resources;
pub(super) mod scheduling;
mod security;
pub(super) mod sources;
pub(super) mod status;
pub(super) mod update;
mod volumes;
mod windows;

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::field::{Errors, Field};
use super::{FieldError, meta, names};
use tombolo_apicore::value::{at, text};

/// Annotation of a mirror pod: a static pod that a kubelet reports.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The owner of the spec: a pod or a template.
#[derive(Clone, Copy)]
struct PodSpecOwner<'v> {
    /// Metadata of a pod; `None` for a template.
    pod: Option<&'v Value>,
    /// Names of claims that become volumes of every pod (StatefulSet).
    claims: &'v [&'v str],
}

/// What the rules of one part need to know about other parts.
struct PodSpecContext<'v> {
    is_pod: bool,
    /// Names of the valid volumes, and whether they can be block devices.
    volumes: HashMap<&'v str, bool>,
    /// Names of the resource claims.
    claims: BTreeSet<&'v str>,
    /// Grace period of the pod in seconds; `None` if it is missing.
    grace: Option<i64>,
    restart: &'v str,
    /// Whether the pod uses the host's user namespace.
    host_users: bool,
}

/// Calls `each` for every container with its path, init containers first.
pub(super) fn visit<'v>(spec: &Field<'_, 'v>, mut each: impl FnMut(&Field<'_, 'v>)) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let list = spec.child(list);
        list.items().for_each(|container| each(&container));
    }
}

/// Checks a pod.
pub(super) fn pod(pod: &Value, old: Option<&Value>, errors: &mut Errors) {
    // A stored pod was valid by the rules of its time.
    if old.is_some_and(|old| same(pod, old)) {
        return;
    }
    let metadata = &pod["metadata"];
    annotations::check(metadata, &pod["spec"], "metadata.annotations", errors);
    let root = Field::root("spec", &pod["spec"]);
    spec(&root, PodSpecOwner { pod: Some(metadata), claims: &[] }, errors);
    if root.child("serviceAccountName").is_empty() {
        volumes::without_account(&root.child("volumes"), errors);
    }
    for list in ["containers", "initContainers"] {
        let list = root.child(list);
        list.items().for_each(|container| containers::image_padding(&container, errors));
    }
    if old.is_none() {
        if !root.child("ephemeralContainers").is_empty() {
            errors.push(root.child("ephemeralContainers").forbidden("cannot be set on create"));
        }
        if !root.child("nodeName").is_empty() && !root.child("schedulingGates").is_empty() {
            let text = "cannot be set until all schedulingGates have been cleared";
            errors.push(root.child("nodeName").forbidden(text));
        }
        annotations::fields_match(metadata, &root, errors);
    }
}

fn same(new: &Value, old: &Value) -> bool {
    new["spec"] == old["spec"]
        && at(new, &["metadata", "annotations"]) == at(old, &["metadata", "annotations"])
}

/// Checks a pod template at a path.
pub(super) fn template(template: &Value, path: &str, errors: &mut Errors) {
    template_with_claims(template, path, &[], errors);
}

/// Checks a pod template whose pods get a volume for each of these claims.
pub(super) fn template_with_claims(template: &Value, path: &str, claims: &[&str], errors: &mut Errors) {
    let root = Field::root(path, template);
    let (metadata, spec) = (root.child("metadata"), root.child("spec"));
    meta::labels(metadata.child("labels").value(), &format!("{path}.labels"), errors);
    meta::annotations(metadata.child("annotations").value(), &format!("{path}.annotations"), errors);
    annotations::check(metadata.value(), spec.value(), &format!("{path}.annotations"), errors);
    self::spec(&spec, PodSpecOwner { pod: None, claims }, errors);
    annotations::fields_match(metadata.value(), &spec, errors);
    let ephemeral = spec.child("ephemeralContainers");
    if !ephemeral.is_empty() {
        errors.push(ephemeral.forbidden("ephemeral containers not allowed in pod template"));
    }
}

fn spec(spec: &Field<'_, '_>, owner: PodSpecOwner<'_>, errors: &mut Errors) {
    let grace = spec.child("terminationGracePeriodSeconds");
    if !grace.is_set() {
        errors.push(grace.required(""));
    }
    let mut volumes = volumes::check(&spec.child("volumes"), owner.pod, errors);
    volumes.extend(owner.claims.iter().map(|claim| (*claim, true)));
    resources::pod_claims(&spec.child("resourceClaims"), owner.pod, errors);
    let context = PodSpecContext {
        is_pod: owner.pod.is_some(),
        volumes,
        claims: resources::claim_names(spec.value()),
        grace: grace.value().as_i64(),
        restart: text(spec.value(), &["restartPolicy"]),
        host_users: spec.child("hostUsers").value() != &Value::Bool(false),
    };
    containers::regular(&spec.child("containers"), &context, errors);
    containers::init(spec, &context, errors);
    containers::ephemeral(spec, &context, errors);
    resources::of_pod(spec, errors);
    network::host_ports(spec, &context, errors);
    spec.child("restartPolicy").one_of_required(&["Always", "OnFailure", "Never"], errors);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    spec.child("dnsPolicy").one_of_required(&policies, errors);
    let selector = spec.child("nodeSelector");
    meta::labels(selector.value(), &selector.path(), errors);
    security::of_pod(spec, errors);
    affinity::check(&spec.child("affinity"), errors);
    network::dns(spec, errors);
    scheduling::gates(spec, errors);
    scheduling::spread(&spec.child("topologySpreadConstraints"), errors);
    windows::host_process(spec, errors);
    host_users(spec, errors);
    network::host_name(spec, errors);
    names(spec, errors);
    if spec.child("overhead").is_set() {
        resources::overhead(&spec.child("overhead"), errors);
    }
    os::check(spec, errors);
    environment::file_volumes(spec, errors);
}

/// Checks names, numbers and lists that have no module of their own.
fn names(spec: &Field<'_, '_>, errors: &mut Errors) {
    spec.child("serviceAccountName").check(names::dns1123_subdomain, errors);
    spec.child("nodeName").check(names::dns1123_subdomain, errors);
    spec.child("activeDeadlineSeconds").within(1, i64::from(i32::MAX), errors);
    spec.child("hostname").check(names::dns1123_label, errors);
    spec.child("subdomain").check(names::dns1123_label, errors);
    scheduling::tolerations(&spec.child("tolerations"), errors);
    network::host_aliases(&spec.child("hostAliases"), errors);
    spec.child("priorityClassName").check(names::dns1123_subdomain, errors);
    let class = spec.child("runtimeClassName");
    if class.is_set() {
        class.check_all(names::dns1123_subdomain(class.text()), errors);
    }
    let preemption = spec.child("preemptionPolicy");
    if preemption.is_set() {
        preemption.one_of_required(&["PreemptLowerPriority", "Never"], errors);
    }
}

/// Checks settings that a user namespace of its own excludes.
fn host_users(spec: &Field<'_, '_>, errors: &mut Errors) {
    const WHY: &str = "when `hostUsers` is false";
    if spec.child("hostUsers").value() != &Value::Bool(false) {
        return;
    }
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        let field = spec.with(shown, &spec.value()[field]);
        if field.is_true() {
            errors.push(field.forbidden(WHY));
        }
    }
    visit(spec, |container| {
        if !container.child("volumeDevices").is_empty() {
            errors.push(container.child("volumeDevices").forbidden(WHY));
        }
    });
}

/// Checks a port number.
pub(super) fn port_number(number: i64, path: &str, errors: &mut Errors) {
    if !(1..=65_535).contains(&number) {
        errors.push(FieldError::invalid(path, number, "must be between 1 and 65535, inclusive"));
    }
}

/// Checks a port given by number or name; a missing port counts as zero.
pub(super) fn port_or_name(port: &Field<'_, '_>, errors: &mut Errors) {
    match port.value() {
        Value::String(name) => port.check_all(names::port_name(name), errors),
        _ => port_number(port.int(), &port.path(), errors),
    }
}
