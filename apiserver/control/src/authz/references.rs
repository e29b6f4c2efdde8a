//! The objects that a pod or a volume refers to. The node that runs it may read them.

use serde_json::Value;

/// Kinds of objects to which the node authorizer grants access by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum RefKind {
    /// Secret.
    Secret,
    /// ConfigMap.
    ConfigMap,
    /// PersistentVolumeClaim.
    Claim,
    /// ServiceAccount.
    ServiceAccount,
    /// ResourceClaim of dynamic resource allocation.
    ResourceClaim,
}

/// Annotation of mirror pods, which a kubelet creates from a file.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Volume sources with a secret in the pod's namespace: the source, and the path to the secret's name in it.
const SECRET_SOURCES: [(&str, &str); 11] = [
    ("secret", "/secretName"),
    ("azureFile", "/secretName"),
    ("cephfs", "/secretRef/name"),
    ("cinder", "/secretRef/name"),
    ("csi", "/nodePublishSecretRef/name"),
    ("flexVolume", "/secretRef/name"),
    ("iscsi", "/secretRef/name"),
    ("rbd", "/secretRef/name"),
    ("scaleIO", "/secretRef/name"),
    ("storageos", "/secretRef/name"),
    ("glusterfs", "/secretRef/name"),
];

/// All objects in the pod's own namespace that the pod refers to, possibly with repetitions. A mirror pod grants
/// nothing: a node creates mirror pods itself, and must not use them to gain rights.
pub(crate) fn of_pod(pod: &Value) -> Vec<(RefKind, &str)> {
    if pod.pointer("/metadata/annotations").is_some_and(|a| a.get(MIRROR_ANNOTATION).is_some()) {
        return Vec::new();
    }
    all_of_pod(pod)
}

/// Like [`of_pod`], without the exception for mirror pods.
pub(crate) fn all_of_pod(pod: &Value) -> Vec<(RefKind, &str)> {
    let mut found = Vec::new();
    let Some(spec) = pod.get("spec") else { return found };
    push(&mut found, RefKind::ServiceAccount, text(spec, "/serviceAccountName"));
    for pull in items(spec, "imagePullSecrets") {
        push(&mut found, RefKind::Secret, text(pull, "/name"));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec, list) {
            container_references(container, &mut found);
        }
    }
    for volume in items(spec, "volumes") {
        volume_references(volume, &mut found);
    }
    for claim in items(spec, "resourceClaims") {
        push(&mut found, RefKind::ResourceClaim, text(claim, "/resourceClaimName"));
    }
    for status in pod.get("status").map(|status| items(status, "resourceClaimStatuses")).unwrap_or_default() {
        push(&mut found, RefKind::ResourceClaim, text(status, "/resourceClaimName"));
    }
    let extended = text(pod, "/status/extendedResourceClaimStatus/resourceClaimName");
    push(&mut found, RefKind::ResourceClaim, extended);
    found
}

fn container_references<'a>(container: &'a Value, found: &mut Vec<(RefKind, &'a str)>) {
    for source in items(container, "envFrom") {
        push(found, RefKind::ConfigMap, text(source, "/configMapRef/name"));
        push(found, RefKind::Secret, text(source, "/secretRef/name"));
    }
    for variable in items(container, "env") {
        push(found, RefKind::ConfigMap, text(variable, "/valueFrom/configMapKeyRef/name"));
        push(found, RefKind::Secret, text(variable, "/valueFrom/secretKeyRef/name"));
    }
}

fn volume_references<'a>(volume: &'a Value, found: &mut Vec<(RefKind, &'a str)>) {
    push(found, RefKind::ConfigMap, text(volume, "/configMap/name"));
    push(found, RefKind::Claim, text(volume, "/persistentVolumeClaim/claimName"));
    for (source, name) in SECRET_SOURCES {
        push(found, RefKind::Secret, volume.get(source).and_then(|source| text(source, name)));
    }
    for source in volume.get("projected").map(|projected| items(projected, "sources")).unwrap_or_default() {
        push(found, RefKind::ConfigMap, text(source, "/configMap/name"));
        push(found, RefKind::Secret, text(source, "/secret/name"));
    }
}

/// Names of the claims for ephemeral volumes of a pod: pod name, dash, volume name.
pub(crate) fn ephemeral_claims(pod: &Value) -> Vec<String> {
    let (Some(name), Some(spec)) = (text(pod, "/metadata/name"), pod.get("spec")) else { return Vec::new() };
    let ephemeral = items(spec, "volumes").iter().filter(|volume| volume.get("ephemeral").is_some());
    ephemeral.filter_map(|volume| Some(format!("{name}-{}", text(volume, "/name")?))).collect()
}

/// The secrets (namespace, name) of a PersistentVolume that a kubelet must read to mount it.
pub(crate) fn of_volume(volume: &Value) -> Vec<(&str, &str)> {
    let Some(spec) = volume.get("spec") else { return Vec::new() };
    let claim_namespace = text(spec, "/claimRef/namespace").unwrap_or_default();
    let mut found = Vec::new();
    let azure = spec.get("azureFile");
    if let Some(name) = azure.and_then(|source| text(source, "/secretName")) {
        let namespace = azure.and_then(|source| text(source, "/secretNamespace")).unwrap_or(claim_namespace);
        found.push((namespace, name));
    }
    let csi = ["csi/nodePublishSecretRef", "csi/nodeStageSecretRef", "csi/nodeExpandSecretRef"];
    let others = ["cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"];
    let others = others.map(|source| format!("/{source}/secretRef"));
    for path in csi.iter().map(|path| format!("/{path}")).chain(others) {
        let Some(reference) = spec.pointer(&path) else { continue };
        if let Some(name) = text(reference, "/name") {
            found.push((text(reference, "/namespace").unwrap_or(claim_namespace), name));
        }
    }
    found
}

fn items<'a>(value: &'a Value, list: &str) -> &'a [Value] {
    value.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The non-empty string at a JSON pointer.
fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn push<'a>(found: &mut Vec<(RefKind, &'a str)>, kind: RefKind, name: Option<&'a str>) {
    found.extend(name.map(|name| (kind, name)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_reference_field_is_known() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {
                "serviceAccountName": "account",
                "imagePullSecrets": [{"name": "pull"}],
                "initContainers": [{"envFrom": [{"configMapRef": {"name": "init-map"}}, {"secretRef": {"name": "init-secret"}}]}],
                "containers": [{"env": [
                    {"valueFrom": {"configMapKeyRef": {"name": "env-map"}}},
                    {"valueFrom": {"secretKeyRef": {"name": "env-secret"}}},
                ]}],
                "ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "debug-secret"}}]}],
                "volumes": [
                    {"name": "a", "configMap": {"name": "volume-map"}},
                    {"name": "b", "secret": {"secretName": "volume-secret"}},
                    {"name": "c", "projected": {"sources": [{"configMap": {"name": "projected-map"}}, {"secret": {"name": "projected-secret"}}]}},
                    {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}},
                    {"name": "e", "csi": {"nodePublishSecretRef": {"name": "csi-secret"}}},
                    {"name": "f", "ephemeral": {"volumeClaimTemplate": {}}},
                ],
                "resourceClaims": [{"name": "x", "resourceClaimName": "device"}],
            },
        });
        let mut found = of_pod(&pod);
        found.sort_unstable();
        let names =
            |kind| found.iter().filter(|(own, _)| *own == kind).map(|(_, name)| *name).collect::<Vec<_>>();
        assert_eq!(names(RefKind::ConfigMap), ["env-map", "init-map", "projected-map", "volume-map"]);
        let secrets = [
            "csi-secret",
            "debug-secret",
            "env-secret",
            "init-secret",
            "projected-secret",
            "pull",
            "volume-secret",
        ];
        assert_eq!(names(RefKind::Secret), secrets);
        assert_eq!(names(RefKind::Claim), ["claim"]);
        assert_eq!(names(RefKind::ServiceAccount), ["account"]);
        assert_eq!(names(RefKind::ResourceClaim), ["device"]);
        assert_eq!(ephemeral_claims(&pod), ["p-f"]);
    }

    #[test]
    fn mirror_pod_grants_no_rights() {
        let pod = json!({
            "metadata": {"annotations": {MIRROR_ANNOTATION: "x"}},
            "spec": {"imagePullSecrets": [{"name": "pull"}]},
        });
        assert!(of_pod(&pod).is_empty());
        assert_eq!(all_of_pod(&pod).len(), 1);
    }

    #[test]
    fn volumes_grant_the_rights_of_a_kubelet_and_not_of_controllers() {
        let volume = json!({"spec": {"claimRef": {"namespace": "shop"}, "csi": {
            "controllerPublishSecretRef": {"namespace": "infra", "name": "controller"},
            "nodeStageSecretRef": {"namespace": "infra", "name": "stage"},
        }, "azureFile": {"secretName": "azure"}}});
        assert_eq!(of_volume(&volume), [("shop", "azure"), ("infra", "stage")]);
    }
}
