//! The ServiceAccount plugin: every pod gets an account, and a volume with its token unless it opts out.

use std::time::Duration;

use rand::Rng as _;
use serde_json::{Map, Value, json};
use tombolo_apicore::admission::AdmissionRequest;
use tombolo_apicore::status::ApiError;

use super::refuse;
use crate::authz::references::{self, MIRROR_ANNOTATION, RefKind};
use crate::objects::{Objects, StoredObject, core, items, member, text};

/// Where the token is mounted in containers.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Prefix of the volume's name.
const VOLUME: &str = "kube-api-access-";

/// Lifetime of the token that a kubelet requests, in seconds. The token endpoint recognises this exact number.
pub(crate) const TOKEN_SECONDS: i64 = 3607;

/// Number of tries to find the account `default`, which is created shortly after its namespace, and the pause between
/// them.
const DEFAULT_TRIES: usize = 20;
const DEFAULT_TRY_INTERVAL: Duration = Duration::from_millis(50);

/// Completes a new pod.
///
/// # Errors
/// 403 when the account does not exist, or a mirror pod has a forbidden reference.
pub(super) async fn admit(objects: &Objects, request: &mut AdmissionRequest<'_>) -> Result<(), ApiError> {
    let (asked, namespace, name) = (request.attributes, request.namespace, request.name);
    let Some(pod) = request.object.as_deref_mut() else { return Ok(()) };
    if pod.pointer("/metadata/annotations").is_some_and(|a| a.get(MIRROR_ANNOTATION).is_some()) {
        return check_mirror(pod).map_err(|why| refuse(asked, name, why));
    }
    let account_name = match text(pod, "/spec/serviceAccountName") {
        "" => "default".to_owned(),
        name => name.to_owned(),
    };
    let Some(account) = find(objects, namespace, &account_name).await else {
        let why = format!(
            "error looking up service account {namespace}/{account_name}: serviceaccount {account_name:?} not found"
        );
        return Err(refuse(asked, name, why));
    };
    let spec = member(pod, "spec");
    for field in ["serviceAccountName", "serviceAccount"] {
        spec.insert(field.into(), json!(account_name));
    }
    let wish = |value: &Value| value.get("automountServiceAccountToken").and_then(Value::as_bool);
    if pod.get("spec").and_then(wish).or_else(|| wish(&account.value)).unwrap_or(true) {
        mount(member(pod, "spec"), &format!("{VOLUME}{}", random_suffix()));
    }
    let secrets = items(&account.value, "/imagePullSecrets");
    if items(pod, "/spec/imagePullSecrets").is_empty() && !secrets.is_empty() {
        member(pod, "spec").insert("imagePullSecrets".into(), Value::Array(secrets.to_vec()));
    }
    Ok(())
}

fn check_mirror(pod: &Value) -> Result<(), &'static str> {
    let references = references::all_of_pod(pod);
    let refers = |kind| references.iter().any(|(own, _)| *own == kind);
    if refers(RefKind::ServiceAccount) {
        return Err("a mirror pod may not reference service accounts");
    }
    if refers(RefKind::Secret) {
        return Err("a mirror pod may not reference secrets");
    }
    let sources = items(pod, "/spec/volumes").iter().flat_map(|volume| items(volume, "/projected/sources"));
    if sources.into_iter().any(|source| source.get("serviceAccountToken").is_some()) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

async fn find(objects: &Objects, namespace: &str, name: &str) -> Option<StoredObject> {
    let tries = if name == "default" { DEFAULT_TRIES } else { 1 };
    for attempt in 0..tries {
        if attempt > 0 {
            tokio::time::sleep(DEFAULT_TRY_INTERVAL).await;
        }
        if let Some(account) = objects.get(core("serviceaccounts"), namespace, name) {
            return Some(account);
        }
    }
    None
}

/// Adds the volume and mounts it in each container that has no other mount at the path.
fn mount(spec: &mut Map<String, Value>, new_name: &str) {
    let volumes = spec.get("volumes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let existing = volumes.iter().map(|volume| text(volume, "/name")).find(|name| name.starts_with(VOLUME));
    let (volume, is_new) =
        existing.map_or_else(|| (new_name.to_owned(), true), |name| (name.to_owned(), false));
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let taken =
                items(container, "/volumeMounts").iter().any(|mount| text(mount, "/mountPath") == MOUNT_PATH);
            if taken {
                continue;
            }
            mounted = true;
            let mount = json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH});
            push(container, "volumeMounts", mount);
        }
    }
    if mounted && is_new {
        let mut whole = Value::Object(std::mem::take(spec));
        push(&mut whole, "volumes", token_volume(&volume));
        if let Value::Object(map) = whole {
            *spec = map;
        }
    }
}

fn push(parent: &mut Value, list: &str, item: Value) {
    match parent.get_mut(list).and_then(Value::as_array_mut) {
        Some(items) => items.push(item),
        None => parent[list] = json!([item]),
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]}})
}

/// Five characters of the alphabet that Kubernetes uses for generated names: no vowels, no characters that look alike.
fn random_suffix() -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    (0..5).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_volume_is_mounted_where_the_path_is_free() {
        let mut pod = json!({"spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}, {"name": "b"}],
        }});
        mount(member(&mut pod, "spec"), "kube-api-access-x");
        assert_eq!(items(&pod, "/spec/volumes").len(), 1);
        assert_eq!(pod["spec"]["initContainers"][0]["volumeMounts"][0]["name"], "kube-api-access-x");
        assert_eq!(items(&pod, "/spec/containers/0/volumeMounts").len(), 1);
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"][0]["readOnly"], true);
        mount(member(&mut pod, "spec"), "kube-api-access-y");
        assert_eq!(items(&pod, "/spec/volumes").len(), 1, "everything is mounted already");
    }

    #[test]
    fn no_container_no_volume() {
        let mut pod = json!({"spec": {"containers": [{"volumeMounts": [{"mountPath": MOUNT_PATH}]}]}});
        mount(member(&mut pod, "spec"), "kube-api-access-x");
        assert!(items(&pod, "/spec/volumes").is_empty());
    }

    #[test]
    fn mirror_pods_may_not_refer_to_secrets() {
        let projected =
            json!({"spec": {"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}});
        assert!(check_mirror(&projected).is_err());
        assert!(check_mirror(&json!({"spec": {"serviceAccountName": "x"}})).is_err());
        assert!(check_mirror(&json!({"spec": {"imagePullSecrets": [{"name": "x"}]}})).is_err());
        assert!(check_mirror(&json!({"spec": {"volumes": [{"configMap": {"name": "x"}}]}})).is_ok());
    }
}
