//! Renews a node's lease, and tracks which process of the node renews it.
//!
//! The lease is the one object that every replica writes for a live node, so it also records which process of an edge
//! renewed it. Two machines with one identity are thus detected, whichever replicas they use and whether or not their
//! sessions overlap. A renewal is conditional on the lease already belonging to its process, so an uncontended node
//! still costs one call per renewal.
//!
//! A process that finds the lease held by another process takes it over only after it has answered a request sent after
//! that, and only in the version that was read. So each process in the history was alive after the one before it had
//! the lease. A process that appears twice was therefore alive at the same time as the one in between.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tombolo_proto::NodeId;
use tombolo_runtime::time::unix_millis;

use super::{LEASE_NAMESPACE, RequestKind, Upstream};
use crate::kube::{ApiCall, Caller};

/// Annotation of a lease: the process that renews it, in hex digits.
const PROCESS: &str = "tombolo/process";

/// Annotation of a lease: its former processes, and the proofs that result.
const FORMER: &str = "tombolo/former-processes";

/// Number of former processes that are remembered.
const FORMER_MAX: usize = 4;

/// Time without a further proof of two processes after which the matter counts as settled.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(3600);

/// Outcome of a renewal.
#[derive(Debug)]
pub enum Renewal {
    /// The HTTP status code of the API server, 429 when too many renewals wait, or 503 when it does not answer.
    Answered(u16),
    /// Nothing is written: the lease belongs to another process.
    OfAnother(Box<Held>),
}

/// The holder of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The version of the lease in which it was read.
    version: String,
    /// Its present process; `None` before the first one.
    pub process: Option<u64>,
    former: Former,
}

/// What is remembered besides the present process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Former {
    /// Former processes, the newest first.
    processes: Vec<u64>,
    /// Number of consecutive proofs that two processes exist at the same time.
    proofs: u32,
    /// Time of the last proof, in Unix seconds.
    proved: u64,
}

impl Former {
    fn proofs(&self, now: u64) -> u32 {
        if now.saturating_sub(self.proved) < SETTLED_AFTER.as_secs() { self.proofs } else { 0 }
    }
}

#[derive(Deserialize)]
struct Lease {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Held {
    /// Malformed annotations, which cloudcore did not write, are ignored.
    fn read(lease: &[u8]) -> Option<Self> {
        let Metadata { resource_version: version, annotations } =
            serde_json::from_slice::<Lease>(lease).ok()?.metadata;
        let process = annotations.get(PROCESS).and_then(|text| u64::from_str_radix(text, 16).ok());
        let former = annotations.get(FORMER).and_then(|text| serde_json::from_str(text).ok());
        let mut former: Former = former.unwrap_or_default();
        former.processes.truncate(FORMER_MAX);
        Some(Self { version, process, former })
    }

    /// Number of recent proofs that two processes use the node's identity.
    #[must_use]
    pub fn proofs(&self) -> u32 {
        self.former.proofs(now())
    }

    /// Whether a process that takes the lease now had it before another one.
    #[must_use]
    pub fn comes_back(&self, process: u64) -> bool {
        self.process != Some(process) && self.former.processes.contains(&process)
    }

    /// What is remembered once this process has taken the lease.
    fn taken_by(&self, process: u64, now: u64) -> Former {
        let mut former = self.former.clone();
        if self.comes_back(process) {
            former.proofs = former.proofs(now).saturating_add(1);
            former.proved = now;
        }
        let before = self.process.filter(|before| *before != process);
        former.processes.retain(|other| *other != process && Some(*other) != before);
        former.processes.splice(0..0, before);
        former.processes.truncate(FORMER_MAX);
        former
    }
}

fn now() -> u64 {
    unix_millis() / 1000
}

fn path_of(node: &NodeId) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{node}")
}

fn time_of(micros: i64) -> Option<String> {
    jiff::Timestamp::from_microsecond(micros).ok().map(|time| format!("{time:.6}"))
}

impl Upstream {
    /// Renews the node's lease for a process of the node, if the lease belongs to that process. For process 0, an older
    /// edge that does not name its process, the lease is renewed whoever holds it.
    pub async fn renew_lease(&self, node: &NodeId, renew_time_micros: i64, process: u64) -> Renewal {
        let Some(time) = time_of(renew_time_micros) else { return Renewal::Answered(400) };
        let call = match process {
            0 => merge(node, &json!({"spec": {"renewTime": time}})),
            _ => {
                let pointer = format!("/metadata/annotations/{}", PROCESS.replace('/', "~1"));
                let steps = json!([
                    {"op": "test", "path": pointer, "value": format!("{process:x}")},
                    {"op": "add", "path": "/spec/renewTime", "value": time},
                ]);
                ApiCall::patch(path_of(node), "application/json-patch+json", steps.to_string().into())
            }
        };
        // 422: the patch does not apply. A process that does not identify itself cannot be told from others.
        self.write_lease(node, call, (process != 0).then_some(422)).await
    }

    /// Renews the lease and makes it this process's. The process must have been heard from after `held` was read.
    pub async fn take_lease(
        &self,
        node: &NodeId,
        renew_time_micros: i64,
        process: u64,
        held: &Held,
    ) -> Renewal {
        let Some(time) = time_of(renew_time_micros) else { return Renewal::Answered(400) };
        let former = serde_json::to_string(&held.taken_by(process, now())).unwrap_or_default();
        let annotations = json!({PROCESS: format!("{process:x}"), FORMER: former});
        let metadata = json!({"resourceVersion": held.version, "annotations": annotations});
        let patch = json!({"metadata": metadata, "spec": {"renewTime": time}});
        self.write_lease(node, merge(node, &patch), Some(409)).await
    }

    /// Writes the lease. On the status code `another`, reads who holds it.
    async fn write_lease(&self, node: &NodeId, call: ApiCall, another: Option<u16>) -> Renewal {
        if !self.enabled {
            return Renewal::Answered(503);
        }
        let Ok(_pass) = self.gates.pass_kind(node, RequestKind::WriteLease).await else {
            return Renewal::Answered(429);
        };
        let code = self.call_lease(node, call).await;
        match code {
            Ok((code, _)) if Some(code) == another => {}
            Ok((code, _)) | Err(code) => return Renewal::Answered(code),
        }
        match self.call_lease(node, ApiCall::get(path_of(node))).await {
            Ok((200, lease)) => match Held::read(&lease) {
                Some(held) => Renewal::OfAnother(Box::new(held)),
                None => Renewal::Answered(502),
            },
            Ok((code, _)) | Err(code) => Renewal::Answered(code),
        }
    }

    async fn call_lease(&self, node: &NodeId, call: ApiCall) -> Result<(u16, bytes::Bytes), u16> {
        match self.kube.call(Caller::Node(node), call).await {
            Ok(answer) => Ok((answer.code, answer.body)),
            Err(error) => {
                tracing::debug!(%node, %error, "cannot renew the lease");
                Err(503)
            }
        }
    }
}

fn merge(node: &NodeId, patch: &Value) -> ApiCall {
    ApiCall::patch(path_of(node), "application/merge-patch+json", patch.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000;

    fn written(held: &Held, process: u64, now: u64) -> Held {
        let former = held.taken_by(process, now);
        Held { version: "1".to_owned(), process: Some(process), former }
    }

    #[test]
    fn only_a_returning_process_proves_a_lease_conflict() {
        let mut held = Held { version: String::new(), process: None, former: Former::default() };
        // A node that is restarted again and again.
        for process in [1, 2, 2, 3, 4, 5, 6, 7] {
            assert!(!held.comes_back(process), "{process}");
            held = written(&held, process, NOW);
            assert_eq!(held.former.proofs(NOW), 0);
        }
        assert_eq!(held.former.processes, [6, 5, 4, 3]);
        for (process, proofs) in [(6, 1), (7, 2), (7, 2), (6, 3)] {
            held = written(&held, process, NOW);
            assert_eq!(held.former.proofs(NOW), proofs);
        }
        let later = NOW + SETTLED_AFTER.as_secs();
        assert_eq!(held.former.proofs(later), 0);
        assert_eq!(written(&held, 7, later).former.proofs(later), 1, "it begins again");
    }

    #[test]
    fn lease_annotations_written_by_others_are_ignored() {
        let read = |annotations: Value| {
            let lease = json!({"metadata": {"resourceVersion": "7", "annotations": annotations}});
            Held::read(lease.to_string().as_bytes()).expect("a lease")
        };
        for annotations in [json!({}), json!({PROCESS: "x", FORMER: "y"}), json!({PROCESS: "", FORMER: "[]"})]
        {
            assert_eq!(
                read(annotations),
                Held { version: "7".to_owned(), process: None, former: Former::default() }
            );
        }
        let many: Vec<u64> = (0..10_000).collect();
        let former = json!({"processes": many}).to_string();
        assert_eq!(read(json!({PROCESS: "1f", FORMER: former})).former.processes.len(), FORMER_MAX);
        assert_eq!(Held::read(b"{}"), None);
    }
}
