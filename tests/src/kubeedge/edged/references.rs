//! The objects that a pod needs before its containers can start (docs/reference/kubeedge.md#pod-to-running).

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Rows of the ConfigMaps and Secrets of a pod's volumes, and of its image pull secrets.
pub(super) fn volumes(pod: &Value) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for volume in items(&pod["spec"]["volumes"]) {
        add(&mut rows, pod, "configmap", &volume["configMap"]["name"]);
        add(&mut rows, pod, "secret", &volume["secret"]["secretName"]);
        for source in items(&volume["projected"]["sources"]) {
            add(&mut rows, pod, "configmap", &source["configMap"]["name"]);
            add(&mut rows, pod, "secret", &source["secret"]["name"]);
        }
    }
    for secret in items(&pod["spec"]["imagePullSecrets"]) {
        add(&mut rows, pod, "secret", &secret["name"]);
    }
    rows
}

/// Rows of the ConfigMaps and Secrets in the environment of its containers.
pub(super) fn environment(pod: &Value) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for container in ["initContainers", "containers"].iter().flat_map(|list| items(&pod["spec"][list])) {
        for source in items(&container["envFrom"]) {
            add(&mut rows, pod, "configmap", &source["configMapRef"]["name"]);
            add(&mut rows, pod, "secret", &source["secretRef"]["name"]);
        }
        for variable in items(&container["env"]) {
            add(&mut rows, pod, "configmap", &variable["valueFrom"]["configMapKeyRef"]["name"]);
            add(&mut rows, pod, "secret", &variable["valueFrom"]["secretKeyRef"]["name"]);
        }
    }
    rows
}

/// Names of the claims of its volumes.
pub(super) fn claims(pod: &Value) -> Vec<&str> {
    let claims =
        items(&pod["spec"]["volumes"]).iter().map(|volume| &volume["persistentVolumeClaim"]["claimName"]);
    claims.filter_map(Value::as_str).collect()
}

fn add(rows: &mut BTreeSet<String>, pod: &Value, kind: &str, name: &Value) {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    rows.extend(name.as_str().map(|name| format!("{namespace}/{kind}/{name}")));
}

/// For each token that is projected into a pod: the path of the request, and its content.
pub(super) fn tokens(pod: &Value) -> Vec<(String, Value)> {
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    let account = spec["serviceAccountName"].as_str().unwrap_or("default");
    let sources = items(&spec["volumes"]).iter().flat_map(|volume| items(&volume["projected"]["sources"]));
    let tokens = sources.map(|source| &source["serviceAccountToken"]).filter(|token| token.is_object());
    tokens
        .map(|token| {
            let audiences = token["audience"].as_str().map(|audience| vec![audience]);
            let request = json!({
                "metadata": {"creationTimestamp": null},
                "spec": {"audiences": audiences, "expirationSeconds": token["expirationSeconds"],
                    "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"],
                        "uid": metadata["uid"]}},
                "status": {"token": "", "expirationTimestamp": null}});
            (format!("{namespace}/serviceaccounttoken/{account}"), request)
        })
        .collect()
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
