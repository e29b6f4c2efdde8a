//! The generation in a ConfigMap, changed by compare-and-swap.

use http::Method;
use serde_json::{Value, json};

use super::{EpochError, RECORD};
use crate::kube::{ApiCall, Caller, Kube};

/// Attempts before a contended record is given up; each loss means that another replica won.
const ATTEMPTS: usize = 16;

/// The recorded generation once it is enough; otherwise `floor` is recorded.
pub(super) async fn settle(
    kube: &Kube,
    namespace: &str,
    floor: u64,
    enough: impl Fn(u64) -> bool,
) -> Result<u64, EpochError> {
    let all = format!("/api/v1/namespaces/{namespace}/configmaps");
    let one = format!("{all}/{RECORD}");
    for _ in 0..ATTEMPTS {
        let answer = kube.call(Caller::Own, ApiCall::get(one.as_str())).await?;
        let call = match answer.code {
            404 => ApiCall::json(Method::POST, all.as_str(), &record(namespace, floor, None)),
            200 => {
                let current = answer.json();
                let recorded = generation(&current);
                if enough(recorded) {
                    return Ok(recorded);
                }
                let revision = current.pointer("/metadata/resourceVersion").cloned();
                ApiCall::json(Method::PUT, one.as_str(), &record(namespace, floor, revision))
            }
            _ => return Err(refused("read", &answer.message())),
        };
        let answer = kube.call(Caller::Own, call).await?;
        match answer.code {
            200 | 201 => return Ok(floor),
            409 => {}
            _ => return Err(refused("write", &answer.message())),
        }
    }
    Err(refused("write", "it changes all the time"))
}

/// The recorded generation; none when there is no record.
pub(super) async fn read(kube: &Kube, namespace: &str) -> Result<Option<u64>, EpochError> {
    let one = format!("/api/v1/namespaces/{namespace}/configmaps/{RECORD}");
    let answer = kube.call(Caller::Own, ApiCall::get(one.as_str())).await?;
    match answer.code {
        200 => Ok(Some(generation(&answer.json()))),
        404 => Ok(None),
        _ => Err(refused("read", &answer.message())),
    }
}

fn refused(action: &str, reason: &str) -> EpochError {
    let action =
        if action == "read" { "read ConfigMap tombolo-epoch" } else { "write ConfigMap tombolo-epoch" };
    EpochError::Refused { action, reason: reason.to_owned() }
}

fn generation(record: &Value) -> u64 {
    let text = record.pointer("/data/generation").and_then(Value::as_str);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn record(namespace: &str, generation: u64, revision: Option<Value>) -> Value {
    let mut metadata = json!({"name": RECORD, "namespace": namespace});
    if let Some(revision) = revision {
        metadata["resourceVersion"] = revision;
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": {"generation": generation.to_string()}
    })
}
