//! Names of kinds, from the API server's discovery.

use serde_json::Value;
use tombolo_proto::Resource;

use super::subscriptions::Closed;
use crate::kube::{ApiCall, Caller, Kube, is_path_segment};

/// The kind that a resource holds.
///
/// # Errors
/// 404 when the API server does not serve the resource, 503 when it does not answer.
pub(super) async fn kind_of(kube: &Kube, resource: &Resource) -> Result<String, Closed> {
    let segments = [&*resource.version, &*resource.name].into_iter().chain(
        // The core group is empty and no part of the path.
        Some(&*resource.group).filter(|group| !group.is_empty()),
    );
    if !segments.into_iter().all(is_path_segment) {
        return Err(Closed::new(400, "group, version and resource must be Kubernetes names"));
    }
    let path = match &*resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let answer = kube.call(Caller::Own, ApiCall::get(path)).await;
    let answer = answer.map_err(|error| Closed::new(503, &error.to_string()))?;
    let missing = || Closed::new(404, &format!("the server does not serve {resource}"));
    match answer.code {
        200 => {}
        404 => return Err(missing()),
        _ => return Err(Closed::new(503, &answer.message())),
    }
    let list = answer.json();
    let resources = list.get("resources").and_then(Value::as_array).into_iter().flatten();
    let found = resources
        .into_iter()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(&*resource.name));
    let kind = found.and_then(|entry| entry.get("kind")).and_then(Value::as_str);
    kind.map(str::to_owned).ok_or_else(missing)
}
