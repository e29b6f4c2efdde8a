//! Stores generation and beat in a ConfigMap, changed by compare-and-swap.

use http::Method;
use serde_json::{Value, json};
use tombolo_proto::CloudRevision;

use super::{EpochError, RECORD};
use crate::history_progress::HistoryProgress;
use crate::kube::{ApiCall, Caller, Kube};

/// Attempts before writing a contended record is given up. Each failure means that another replica won.
const ATTEMPTS: usize = 16;

/// Description of the attempted write.
const WRITE: &str = "write ConfigMap tombolo-epoch";

/// State of the cloud as shown by one consistent read.
#[derive(Debug)]
pub(super) struct Look {
    revision: CloudRevision,
    record: Option<Value>,
}

impl Look {
    /// How far the history has progressed. If the record was deleted, `known` is used in its place.
    pub(super) fn progress(&self, known: HistoryProgress) -> HistoryProgress {
        let recorded = |member| self.record.as_ref().map(|record| number(record, member));
        HistoryProgress {
            generation: recorded("generation").unwrap_or(known.generation),
            beat: recorded("beat").unwrap_or(known.beat),
            revision: self.revision,
        }
    }

    /// The call that replaces the record as it was seen, if it has not changed since.
    fn replace(&self, namespace: &str, generation: u64, beat: u64) -> ApiCall {
        let all = all(namespace);
        let mut metadata = json!({"name": RECORD, "namespace": namespace});
        let seen = self.record.as_ref().and_then(|record| record.pointer("/metadata/resourceVersion"));
        if let Some(seen) = seen {
            metadata["resourceVersion"] = seen.clone();
        }
        let record = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"generation": generation.to_string(), "beat": beat.to_string()}
        });
        match self.record {
            None => ApiCall::json(Method::POST, all, &record),
            Some(_) => ApiCall::json(Method::PUT, format!("{all}/{RECORD}"), &record),
        }
    }
}

/// Reads the state. A list without `resourceVersion` is consistent. Listing a single name returns the record together
/// with the present revision, and needs no permission for other names.
pub(super) async fn look(kube: &Kube, namespace: &str) -> Result<Look, EpochError> {
    let path = format!("{}?fieldSelector=metadata.name%3D{RECORD}", all(namespace));
    let answer = kube.call(Caller::Own, ApiCall::get(path)).await?;
    if !answer.is_success() {
        return Err(EpochError::refused("read ConfigMap tombolo-epoch", &answer));
    }
    let list = answer.json();
    let revision = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    let revision = revision.and_then(|text| CloudRevision::parse(text).ok());
    let revision = revision.ok_or(EpochError::Malformed("metadata.resourceVersion"))?;
    let mut items = list["items"].as_array().into_iter().flatten();
    let record = items.find(|item| item["metadata"]["name"] == RECORD).cloned();
    Ok(Look { revision, record })
}

/// The record, once its generation satisfies `enough`; until then `floor` is recorded. `look` is the state seen last,
/// `known` is used where there is no record.
pub(super) async fn settle(
    kube: &Kube,
    namespace: &str,
    mut look: Look,
    (floor, known): (u64, HistoryProgress),
    enough: impl Fn(u64) -> bool,
) -> Result<HistoryProgress, EpochError> {
    for _ in 0..ATTEMPTS {
        let progress = look.progress(known);
        if look.record.is_some() && enough(progress.generation) {
            return Ok(progress);
        }
        let answer = kube.call(Caller::Own, look.replace(namespace, floor, progress.beat)).await?;
        match answer.code {
            200 | 201 => return Ok(HistoryProgress { generation: floor, ..progress }),
            // Another writer changed or deleted what was read.
            409 => look = self::look(kube, namespace).await?,
            404 if look.record.is_some() => look = self::look(kube, namespace).await?,
            _ => return Err(EpochError::refused(WRITE, &answer)),
        }
    }
    let reason = "other writers keep changing it".to_owned();
    Err(EpochError::Refused { action: WRITE, reason, passing: true })
}

/// Raises the beat by one, and creates the record again if it was deleted. False when another replica wrote first or
/// the write failed: the next interval brings another attempt.
pub(super) async fn beat(kube: &Kube, namespace: &str, look: &Look, progress: HistoryProgress) -> bool {
    let call = look.replace(namespace, progress.generation, progress.beat.saturating_add(1));
    kube.call(Caller::Own, call).await.is_ok_and(|answer| answer.is_success())
}

fn all(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn number(record: &Value, member: &str) -> u64 {
    let text = record["data"][member].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
