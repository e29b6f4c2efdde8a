//! What clients are warned of although their object is stored (the strategies of kube-apiserver 1.36).

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use super::validate::names;
use super::value::{items, text};
use crate::schema::format::is_known_format;

const TOKENS_IN_SECRETS: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to \
                                 true to prevent possible logging of tokens in volume attributes";

/// Finalizers that belong to the system.
const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

/// Labels of nodes that have other names today.
const NODE_LABELS: [(&str, &str); 8] = [
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

/// The warnings about a new object, or about what an object becomes.
pub(crate) fn warnings(group: &str, kind: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    match (group, kind) {
        ("", "Secret") if text(object, &["type"]) == "kubernetes.io/tls" => {
            key_pair(object).err().map(str::to_owned).into_iter().collect()
        }
        ("storage.k8s.io", "CSIDriver") => driver(object, old),
        ("storage.k8s.io", "StorageClass") => topologies(object),
        ("storage.k8s.io", "CSIStorageCapacity") => node_topology(&object["nodeTopology"]),
        ("node.k8s.io", "RuntimeClass") => {
            let found = keys(&object["scheduling"]["nodeSelector"]).filter_map(node_label);
            found.map(|why| format!("scheduling.nodeSelector: {why}")).collect()
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => formats(object, old),
        _ => Vec::new(),
    }
}

/// Finalizers of custom resources that others may use too, of those that were not there before.
pub(crate) fn finalizers(object: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(|old| items(old, &["metadata", "finalizers"])).unwrap_or_default();
    let mut added: Vec<&str> = items(object, &["metadata", "finalizers"])
        .iter()
        .filter(|finalizer| !known.contains(finalizer))
        .filter_map(Value::as_str)
        .collect();
    added.sort_unstable();
    added.dedup();
    let mut found = Vec::new();
    for name in added {
        let mut warn = |why: &str| found.push(format!("metadata.finalizers: {name:?}: {why}"));
        names::qualified_name(name).iter().for_each(|why| warn(why));
        if name.contains('/') || STANDARD_FINALIZERS.contains(&name) {
            continue;
        }
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        warn(&format!(
            "prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        ));
    }
    found
}

/// Why a label of nodes should not be used.
pub(crate) fn node_label(key: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(own, _)| *own == key).map(|(_, why)| *why)
}

fn keys(map: &Value) -> impl Iterator<Item = &str> {
    map.as_object().into_iter().flatten().map(|(key, _)| key.as_str())
}

fn driver(object: &Value, old: Option<&Value>) -> Vec<String> {
    let tokens = |object: &Value| items(object, &["spec", "tokenRequests"]).to_vec();
    let unset = object["spec"]["serviceAccountTokenInSecrets"].is_null();
    let wanted = tokens(object);
    let changed = old.is_none_or(|old| tokens(old) != wanted);
    if unset && changed && !wanted.is_empty() { vec![TOKENS_IN_SECRETS.to_owned()] } else { Vec::new() }
}

fn topologies(class: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (index, topology) in items(class, &["allowedTopologies"]).iter().enumerate() {
        for (inner, expression) in items(topology, &["matchLabelExpressions"]).iter().enumerate() {
            if let Some(why) = node_label(text(expression, &["key"])) {
                found.push(format!("allowedTopologies[{index}].matchLabelExpressions[{inner}].key: {why}"));
            }
        }
    }
    found
}

fn node_topology(selector: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (index, expression) in items(selector, &["matchExpressions"]).iter().enumerate() {
        let key = text(expression, &["key"]);
        if let Some(why) = node_label(key) {
            found.push(format!("nodeTopology.matchExpressions[{index}].key: {key} is {why}"));
        }
    }
    for key in keys(&selector["matchLabels"]) {
        if let Some(why) = node_label(key) {
            found.push(format!("nodeTopology.matchLabels.{key}: {why}"));
        }
    }
    found
}

/// Whether the data of a Secret can be the certificate and key of a server, in the words of Go's `crypto/tls`.
fn key_pair(secret: &Value) -> Result<(), &'static str> {
    let part = |name: &str| {
        use base64::Engine as _;
        let text = secret["data"][name].as_str().unwrap_or_default();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
    };
    let (certificate, key) = (part("tls.crt"), part("tls.key"));
    if CertificateDer::from_pem_slice(&certificate).is_err() {
        return Err(match PrivateKeyDer::from_pem_slice(&certificate) {
            Ok(_) => {
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM \
                 inputs may have been switched"
            }
            Err(_) => "tls: failed to find any PEM data in certificate input",
        });
    }
    match PrivateKeyDer::from_pem_slice(&key) {
        Ok(_) => Ok(()),
        Err(pem::Error::NoItemsFound) if CertificateDer::from_pem_slice(&key).is_ok() => {
            Err("tls: found a certificate rather than a key in the PEM for the private key")
        }
        Err(_) => Err("tls: failed to find any PEM data in key input"),
    }
}

/// Formats of a definition's schemas that nobody checks, without those that were there before.
fn formats(object: &Value, old: Option<&Value>) -> Vec<String> {
    let all = |definition: &Value| {
        let mut found = Vec::new();
        for version in items(definition, &["spec", "versions"]) {
            unknown_formats(&version["schema"]["openAPIV3Schema"], &mut found);
        }
        found
    };
    let known = old.map(all).unwrap_or_default();
    let new = all(object).into_iter().filter(|format| !known.contains(format));
    new.map(|format| format!("unrecognized format {format:?}")).collect()
}

fn unknown_formats(schema: &Value, found: &mut Vec<String>) {
    let Value::Object(members) = schema else { return };
    let format = text(schema, &["format"]);
    let known = match text(schema, &["type"]) {
        "" | "string" => is_known_format(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !known {
        found.push(format.to_owned());
    }
    for (name, member) in members {
        match (name.as_str(), member) {
            ("properties" | "patternProperties" | "definitions" | "dependencies", Value::Object(schemas)) => {
                schemas.values().for_each(|schema| unknown_formats(schema, found));
            }
            ("allOf" | "oneOf" | "anyOf" | "items", Value::Array(schemas)) => {
                schemas.iter().for_each(|schema| unknown_formats(schema, found));
            }
            ("items" | "not" | "additionalProperties" | "additionalItems", schema) => {
                unknown_formats(schema, found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_new_formats_are_warned_of() {
        let definition = |format: &str| {
            json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
                "properties": {"a": {"type": "string", "format": format}, "b": {"type": "integer", "format": "int32"}},
            }}}]}})
        };
        let warned =
            |new: &Value, old| warnings("apiextensions.k8s.io", "CustomResourceDefinition", new, old);
        let odd = definition("odd");
        assert_eq!(warned(&odd, None), ["unrecognized format \"odd\""]);
        assert!(warned(&odd, Some(&odd)).is_empty());
        assert!(warned(&definition("date-time"), Some(&odd)).is_empty());
    }

    #[test]
    fn secrets_for_servers_need_a_certificate_and_a_key() {
        let warned =
            |data: Value| warnings("", "Secret", &json!({"type": "kubernetes.io/tls", "data": data}), None);
        let certificate = ["tls: failed to find any PEM data in certificate input"];
        assert_eq!(warned(json!({})), certificate);
        assert_eq!(warned(json!({"tls.crt": "AAAA", "tls.key": ""})), certificate);
        assert!(warnings("", "Secret", &json!({"type": "Opaque"}), None).is_empty());
    }
}
