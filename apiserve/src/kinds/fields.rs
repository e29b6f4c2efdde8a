//! Fields that field selectors may name, per built-in kind, as kube-apiserver supports them.

use serde_json::Value;

use super::KindInfo;
use super::value::{at, text};

/// The value of a selectable field; `None` when the kind has no such selector.
pub(crate) fn value(kind: &KindInfo, object: &Value, field: &str) -> Option<String> {
    match field {
        "metadata.name" => return Some(text(object, &["metadata", "name"]).to_owned()),
        "metadata.namespace" if kind.namespaced => {
            return Some(text(object, &["metadata", "namespace"]).to_owned());
        }
        _ => {}
    }
    let extra = selectable(kind.group_kind());
    let (_, path) = extra.iter().find(|(name, _)| *name == field)?;
    Some(shown(object, field, path))
}

fn shown(object: &Value, field: &str, path: &str) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    let found = match at(object, &parts) {
        Value::String(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    match (field, found.as_str()) {
        ("spec.unschedulable" | "spec.hostNetwork", "") => "false".to_owned(),
        ("status.successful" | "status.replicas", "") => "0".to_owned(),
        ("source", "") => text(object, &["reportingComponent"]).to_owned(),
        _ => found,
    }
}

type Selectable = &'static [(&'static str, &'static str)];

fn selectable(group_kind: (&str, &str)) -> Selectable {
    match group_kind {
        ("", "Pod") => &[
            ("spec.nodeName", "spec.nodeName"),
            ("spec.restartPolicy", "spec.restartPolicy"),
            ("spec.schedulerName", "spec.schedulerName"),
            ("spec.serviceAccountName", "spec.serviceAccountName"),
            ("spec.hostNetwork", "spec.hostNetwork"),
            ("status.phase", "status.phase"),
            ("status.podIP", "status.podIP"),
            ("status.nominatedNodeName", "status.nominatedNodeName"),
        ],
        ("", "Node") => &[("spec.unschedulable", "spec.unschedulable")],
        ("", "Namespace") => &[("status.phase", "status.phase"), ("name", "metadata.name")],
        ("", "Secret") => &[("type", "type")],
        ("", "Service") => &[("spec.clusterIP", "spec.clusterIP"), ("spec.type", "spec.type")],
        ("", "ReplicationController") => &[("status.replicas", "status.replicas")],
        ("", "PersistentVolume" | "PersistentVolumeClaim") => &[("name", "metadata.name")],
        ("apps", "ReplicaSet") => &[("status.replicas", "status.replicas")],
        ("batch", "Job") => &[("status.successful", "status.succeeded")],
        ("certificates.k8s.io", "CertificateSigningRequest") => &[("spec.signerName", "spec.signerName")],
        ("", "Event") => &[
            ("involvedObject.kind", "involvedObject.kind"),
            ("involvedObject.namespace", "involvedObject.namespace"),
            ("involvedObject.name", "involvedObject.name"),
            ("involvedObject.uid", "involvedObject.uid"),
            ("involvedObject.apiVersion", "involvedObject.apiVersion"),
            ("involvedObject.resourceVersion", "involvedObject.resourceVersion"),
            ("involvedObject.fieldPath", "involvedObject.fieldPath"),
            ("reason", "reason"),
            ("reportingComponent", "reportingComponent"),
            ("source", "source.component"),
            ("type", "type"),
        ],
        ("events.k8s.io", "Event") => &[
            ("regarding.kind", "regarding.kind"),
            ("regarding.namespace", "regarding.namespace"),
            ("regarding.name", "regarding.name"),
            ("regarding.uid", "regarding.uid"),
            ("regarding.apiVersion", "regarding.apiVersion"),
            ("regarding.resourceVersion", "regarding.resourceVersion"),
            ("regarding.fieldPath", "regarding.fieldPath"),
            ("reason", "reason"),
            ("reportingController", "reportingController"),
            ("type", "type"),
        ],
        ("resource.k8s.io", "ResourceSlice") => {
            &[("spec.nodeName", "spec.nodeName"), ("spec.driver", "spec.driver")]
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => &[],
        _ => &[],
    }
}
