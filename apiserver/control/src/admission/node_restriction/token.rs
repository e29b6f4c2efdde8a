//! Tokens that a node requests on behalf of its pods.

use serde_json::Value;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::status::ApiError;

use super::super::refuse;
use crate::nodes::node_of;
use crate::objects::{Objects, StoredObject, core, items, text, v1};

/// Checks a token request by a node: the token must be bound to a pod that runs on the node and mounts a token for that
/// audience.
///
/// # Errors
/// 404 when there is no such pod, 403 otherwise.
pub(crate) fn admit_token(objects: &Objects, asked: &Attributes, body: &Value) -> Result<(), ApiError> {
    let Some(node) = node_of(&asked.identity) else { return Ok(()) };
    let no = |why: String| Err(refuse(asked, &asked.name, why));
    let bound = |field: &str| text(body, &format!("/spec/boundObjectRef/{field}")).to_owned();
    let (name, uid) = (bound("name"), bound("uid"));
    if bound("apiVersion") != "v1" || bound("kind") != "Pod" || name.is_empty() {
        return no("node requested token not bound to a pod".into());
    }
    if uid.is_empty() {
        return no("node requested token with a pod binding without a uid".into());
    }
    let pod = objects.get(core("pods"), &asked.namespace, &name);
    let pod = pod.ok_or_else(|| ApiError::not_found("", "pods", &name))?;
    if pod.uid.as_str() != uid {
        return no(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        ));
    }
    if pod.text("/spec/nodeName") != node {
        return no("node requested token bound to a pod scheduled on a different node".into());
    }
    let audience = match items(body, "/spec/audiences") {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return no("node may only request 0 or 1 audiences".into()),
    };
    if mounts_audience(objects, &pod, audience) {
        return Ok(());
    }
    let user = &asked.identity.user;
    no(format!(
        "audience {audience:?} not found in pod spec volume, {user} is not authorized to request tokens for this audience"
    ))
}

/// Whether a volume of the pod requests a token with this audience, itself or through its CSI driver.
fn mounts_audience(objects: &Objects, pod: &StoredObject, audience: &str) -> bool {
    let driver_asks = |driver: &str| {
        let driver = objects.get(v1("storage.k8s.io", "csidrivers"), "", driver);
        let requests =
            driver.as_ref().map(|driver| items(&driver.value, "/spec/tokenRequests")).unwrap_or_default();
        requests.iter().any(|request| text(request, "/audience") == audience)
    };
    let claim_driver = |claim: &str| {
        let claim = objects.get(core("persistentvolumeclaims"), pod.key.namespace(), claim)?;
        let volume = objects.get(core("persistentvolumes"), "", claim.text("/spec/volumeName"))?;
        Some(volume.text("/spec/csi/driver").to_owned())
    };
    items(&pod.value, "/spec/volumes").iter().any(|volume| {
        let token = |source: &Value| {
            source.get("serviceAccountToken").is_some_and(|token| text(token, "/audience") == audience)
        };
        if items(volume, "/projected/sources").iter().any(token) {
            return true;
        }
        let driver = if volume.get("ephemeral").is_some() {
            claim_driver(&format!("{}-{}", pod.key.name(), text(volume, "/name")))
        } else if let Some(claim) = volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str)
        {
            claim_driver(claim)
        } else {
            volume.pointer("/csi/driver").and_then(Value::as_str).map(str::to_owned)
        };
        driver.is_some_and(|driver| !driver.is_empty() && driver_asks(&driver))
    })
}
