//! Subresources that are connections to nodes and pods. This server opens none, but refuses invalid requests for them
//! exactly as kube-apiserver does.

use http::{Response, StatusCode};
use serde_json::Value;
use tombolo_proto::object::ObjectKey;

use super::deadline;
use super::handler::HandlerResult;
use crate::body;
use crate::kinds::KindInfo;
use crate::query::params::Params;
use crate::query::path::ResourcePath;
use crate::status::{ApiError, Cause};
use crate::store::{Store, StoreError};

/// Log parameters with their minimum values.
const LOG_MINIMA: [(&str, i64, &str); 3] = [
    ("tailLines", 0, "must be greater than or equal to 0"),
    ("limitBytes", 1, "must be greater than 0"),
    ("sinceSeconds", 1, "must be greater than 0"),
];

/// The subresource of a path when this server does not serve it.
pub(super) fn unserved<'a>(kind: &KindInfo, path: &'a ResourcePath) -> Option<&'a str> {
    path.subresource.as_deref().filter(|name| *name != "scale" && kind.rules().endpoint(name).is_none())
}

/// The answer to a request for a connection, or for another subresource that is not served.
pub(super) fn answer(
    store: &dyn Store,
    kind: &KindInfo,
    path: &ResourcePath,
    params: &Params,
    subresource: &str,
) -> HandlerResult {
    if !deadline::is_stream(subresource) {
        return Err(not_served(path, subresource, ""));
    }
    let name = path.name.as_deref().unwrap_or_default();
    if subresource == "log" {
        check_log(name, params)?;
    }
    let key = ObjectKey::new(kind.storage.clone(), path.namespace.as_deref().unwrap_or_default(), name);
    let no_connections =
        || not_served(path, subresource, ": this server opens no connections to nodes and pods");
    let stored = store.get(&key).map_err(|error| match error {
        // The object does not matter: a retry would not help.
        StoreError::NotSynced { .. } => no_connections(),
        error => error.into(),
    })?;
    let stored =
        stored.ok_or_else(|| ApiError::not_found(&kind.resource.group, &kind.resource.name, name))?;
    if &*kind.resource.name == "pods" {
        let pod: Value = serde_json::from_slice(&stored.body()).unwrap_or_default();
        let bound =
            pod.pointer("/spec/nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty());
        match subresource {
            "proxy" if pod.pointer("/status/podIP").is_none() => {
                return Err(ApiError::bad_request("address not allowed"));
            }
            "log" | "exec" | "attach" => check_container(&pod, name, params)?,
            _ => {}
        }
        match subresource {
            // There is no log yet.
            "log" if !bound => return Ok(nothing()),
            "exec" | "attach" | "portforward" if !bound => {
                return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
            }
            _ => {}
        }
    }
    Err(no_connections())
}

fn not_served(path: &ResourcePath, subresource: &str, why: &str) -> ApiError {
    let message = format!("the subresource {subresource:?} of {} is not served here{why}", path.resource);
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "", message)
}

fn nothing() -> Response<body::Body> {
    let mut response = Response::new(body::full(bytes::Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn check_log(name: &str, params: &Params) -> Result<(), ApiError> {
    let mut causes = Vec::new();
    for (field, least, rule) in LOG_MINIMA {
        if let Some(number) = params.number(field)?.filter(|number| *number < least) {
            let message = format!("Invalid value: {number}: {rule}");
            causes.push(Cause::new("FieldValueInvalid", field, &message));
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid("", "PodLogOptions", name, causes)) }
}

/// A named container must exist in the pod.
fn check_container(pod: &Value, name: &str, params: &Params) -> Result<(), ApiError> {
    let Some(wanted) = params.text("container") else { return Ok(()) };
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let mut containers = lists.iter().filter_map(|list| pod["spec"][list].as_array()).flatten();
    if containers.any(|container| container["name"] == wanted) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}")))
}
