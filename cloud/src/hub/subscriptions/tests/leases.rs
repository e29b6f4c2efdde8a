//! Processes of one node that connect to several replicas: the lease, which all of them renew, tells them apart.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tombolo_apicore::patch::{json_patch, merge_patch};
use tombolo_proto::frame::GoodbyeReason;

use super::{Edge, Hub, hub, node};
use crate::kube::Kube;
use crate::kube::tests::double::answering;

/// An API server with one lease.
#[derive(Default)]
struct Api {
    lease: Mutex<(u64, Value)>,
    calls: Mutex<usize>,
    /// Patches wait while this is true.
    held: watch::Sender<bool>,
}

impl Api {
    fn new() -> Arc<Self> {
        let api = Self::default();
        api.lease.lock().1 = json!({"metadata": {"name": "n"}, "spec": {}});
        Arc::new(api)
    }

    /// A replica of cloudcore.
    fn hub(self: &Arc<Self>) -> Arc<Hub> {
        let api = Arc::clone(self);
        let client = answering(move |call, body| {
            let api = Arc::clone(&api);
            async move {
                if !call.uri.path().ends_with("/leases/n") {
                    return (404, json!({"kind": "Status", "code": 404}));
                }
                *api.calls.lock() += 1;
                let content = call.headers.get("content-type").and_then(|text| text.to_str().ok());
                match content {
                    None => (200, api.lease()),
                    Some(content) => {
                        let _ = api.held.subscribe().wait_for(|held| !held).await;
                        api.patch(content, &body)
                    }
                }
            }
        });
        hub(&Kube::from(client))
    }

    fn lease(&self) -> Value {
        let (version, mut lease) = self.lease.lock().clone();
        lease["metadata"]["resourceVersion"] = version.to_string().into();
        lease
    }

    fn patch(&self, content: &str, body: &[u8]) -> (u16, Value) {
        let lease = self.lease();
        let patched = if content.starts_with("application/json-patch") {
            json_patch(&lease, body)
        } else {
            merge_patch(&lease, &serde_json::from_slice(body).expect("JSON"))
        };
        match patched {
            Err(error) => (error.code(), Value::Null),
            Ok(patched)
                if patched.pointer("/metadata/resourceVersion")
                    != lease.pointer("/metadata/resourceVersion") =>
            {
                (409, Value::Null)
            }
            Ok(patched) => {
                let mut state = self.lease.lock();
                *state = (state.0 + 1, patched.clone());
                (200, patched)
            }
        }
    }

    fn process(&self) -> Value {
        self.lease()["metadata"]["annotations"]["tombolo/process"].clone()
    }
}

fn proofs(hub: &Hub) -> u64 {
    hub.metrics.identities_contested.get()
}

/// Longer than a renewal takes.
const SOON: Duration = Duration::from_secs(5);

impl Edge {
    /// Renews the lease, and waits for the answer or for the end of the session.
    async fn renew(&mut self) {
        let before = self.leases;
        self.session.renew_lease(1_790_000_001_000_001);
        let deadline = Instant::now() + SOON;
        while self.leases == before && self.goodbye.is_none() {
            assert!(Instant::now() < deadline, "no answer");
            self.step(deadline).await;
        }
    }

    /// How long a replaced session must stay away; none while it continues.
    fn wait(&self) -> Option<u64> {
        let goodbye = self.goodbye.as_ref()?;
        assert_eq!(goodbye.reason, GoodbyeReason::Replaced);
        Some(goodbye.retry_after.as_secs())
    }
}

async fn renewed(hub: &Arc<Hub>, process: u64) -> Edge {
    let mut edge = Edge::connect_process(hub, node(), process);
    edge.renew().await;
    assert_eq!(edge.wait(), None, "the newest connection wins");
    edge
}

#[tokio::test(start_paused = true)]
async fn two_processes_at_two_replicas_are_detected_and_slowed_down() {
    let api = Api::new();
    let replicas = [api.hub(), api.hub()];
    let mut before = renewed(&replicas[0], 7).await;
    let mut waits = Vec::new();
    for turn in 1..6 {
        let after = renewed(&replicas[turn % 2], [7, 8][turn % 2]).await;
        before.renew().await;
        waits.extend(before.wait());
        before = after;
        before.renew().await;
        assert_eq!(before.wait(), None, "it continues");
    }
    assert_eq!(waits, [30, 30, 60, 120, 240]);
    // One for the session that was lost, and one for each process that came back.
    assert_eq!(replicas.iter().map(|hub| proofs(hub)).sum::<u64>(), 5);
}

#[tokio::test(start_paused = true)]
async fn two_processes_without_overlapping_sessions_are_detected() {
    let api = Api::new();
    let replicas = [api.hub(), api.hub()];
    for (turn, known) in [0, 0, 1, 2, 3].into_iter().enumerate() {
        drop(renewed(&replicas[turn / 2 % 2], 7 + (turn as u64) % 2).await);
        assert_eq!(replicas.iter().map(|hub| proofs(hub)).sum::<u64>(), known, "after {turn} turns");
    }
}

#[tokio::test(start_paused = true)]
async fn moved_or_restarted_node_causes_no_identity_conflict() {
    let api = Api::new();
    let replicas = [api.hub(), api.hub()];
    // The process moves in every second round and restarts in every fourth one. The former session ends late or never.
    let mut former = Vec::new();
    for round in 0..16_u32 {
        let mut edge = renewed(&replicas[round as usize / 2 % 2], 1 + u64::from(round / 4)).await;
        let calls = *api.calls.lock();
        edge.renew().await;
        assert_eq!((edge.wait(), *api.calls.lock() - calls), (None, 1), "one call for a renewal");
        former.push(edge);
    }
    assert_eq!((proofs(&replicas[0]), proofs(&replicas[1])), (0, 0));
}

/// A renewal of a process that has ended may reach the API server after a renewal of its successor.
#[tokio::test(start_paused = true)]
async fn late_renewal_does_not_take_the_lease_from_the_present_process() {
    for known in [false, true] {
        let api = Api::new();
        let replicas = [api.hub(), api.hub()];
        let mut before = Edge::connect_process(&replicas[0], node(), 7);
        if known {
            before.renew().await;
        }
        api.held.send_replace(true);
        before.session.renew_lease(1_790_000_001_000_001);
        let waiting = *api.calls.lock();
        while *api.calls.lock() == waiting {
            before.step(Instant::now() + Duration::from_millis(1)).await;
        }
        // The process no longer answers. Its successor is there before the API server has applied the patch.
        api.held.send_replace(false);
        let (version, mut lease) = api.lease.lock().clone();
        lease["metadata"]["annotations"] =
            json!({"tombolo/process": "8", "tombolo/former-processes": r#"{"processes":[7]}"#});
        *api.lease.lock() = (version + 1, lease);
        let mut after = renewed(&replicas[1], 8).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(api.process(), "8");
        after.renew().await;
        assert_eq!((after.wait(), proofs(&replicas[0]), proofs(&replicas[1])), (None, 0, 0));
        drop(before);
    }
}
