//! Kind names from the API server's discovery.

use serde_json::Value;
use tombolo_proto::{NodeId, Resource};

use super::closed::Closed;
use crate::kube::{Answer, ApiCall, CallError, Kube};

/// The kind of a resource. The parts of the resource must be path segments. `node` is the node that asks.
///
/// # Errors
/// 404 when the API server does not serve the resource, 503 when it does not answer.
pub(super) async fn kind_of(
    kube: &Kube,
    node: Option<&NodeId>,
    resource: &Resource,
) -> Result<String, Closed> {
    let path = match &*resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let failed = |error: CallError| Closed::new(503, &error.to_string());
    // A cached copy may be older than the resource's definition.
    let names = |copy: &Answer| matches!(named_in(copy, resource), Ok(Some(_)));
    let answer = kube.document_that(node, ApiCall::get(path), names).await.map_err(failed)?;
    let missing = || Closed::new(404, &format!("the server does not serve {resource}"));
    named_in(&answer, resource)?.ok_or_else(missing)
}

/// The kind of a resource in the resource list of its group version; none when the list does not have it.
fn named_in(answer: &Answer, resource: &Resource) -> Result<Option<String>, Closed> {
    match answer.code {
        200 => {}
        404 => return Ok(None),
        _ => return Err(Closed::new(503, &answer.message())),
    }
    let list = answer.json();
    let resources = list.get("resources").and_then(Value::as_array).into_iter().flatten();
    let found = resources
        .into_iter()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(&*resource.name));
    let kind = found.and_then(|entry| entry.get("kind")).and_then(Value::as_str);
    Ok(kind.map(str::to_owned))
}
