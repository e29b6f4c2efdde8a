//! References that a mirror pod must not have: a node creates mirror pods itself, and must gain no rights by them.

use serde_json::Value;

use crate::authz::references::{self, RefKind};
use crate::objects::items;

/// Volume sources of a mirror pod that refer to an API object, and its name in the refusal.
const API_VOLUMES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];

/// Projected sources of a mirror pod that refer to an API object, and its name in the refusal.
const API_SOURCES: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// The first reference in a mirror pod to another API object.
pub(super) fn api_reference(pod: &Value) -> Option<&'static str> {
    let references = references::all_of_pod(pod);
    let refers = |kind| references.iter().any(|(own, _)| *own == kind);
    let direct = [
        (RefKind::ServiceAccount, "serviceaccounts"),
        (RefKind::Secret, "secrets"),
        (RefKind::ConfigMap, "configmaps"),
    ];
    if let Some((_, what)) = direct.into_iter().find(|(kind, _)| refers(*kind)) {
        return Some(what);
    }
    if !items(pod, "/spec/resourceClaims").is_empty() {
        return Some("resourceclaims");
    }
    items(pod, "/spec/volumes").iter().find_map(|volume| {
        let source = API_VOLUMES.into_iter().find(|(source, _)| volume.get(*source).is_some());
        let projected = || {
            let sources = items(volume, "/projected/sources").iter();
            sources.flat_map(|s| API_SOURCES.into_iter().find(|(name, _)| s.get(*name).is_some())).next()
        };
        source.or_else(projected).map(|(_, what)| what)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mirror_pods_that_refer_to_other_objects_are_detected() {
        assert_eq!(api_reference(&json!({"spec": {"volumes": [{"hostPath": {}}, {"emptyDir": {}}]}})), None);
        assert_eq!(api_reference(&json!({"spec": {"serviceAccountName": "x"}})), Some("serviceaccounts"));
        let projected = json!({"spec": {"volumes": [{"projected": {"sources": [{"downwardAPI": {}}, {"podCertificate": {}}]}}]}});
        assert_eq!(api_reference(&projected), Some("podcertificates"));
    }
}
