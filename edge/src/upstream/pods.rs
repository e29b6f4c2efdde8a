//! Follows the delivered pods and reports their status.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tombolo_apicore::backend::PatchType;
use tombolo_apicore::history::ChangeKind;
use tombolo_apicore::store::{Store as _, StoreError, Stored};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::{debug, warn};
use xxhash_rust::xxh3::xxh3_64;

use super::Upstream;
use super::status::{Step, merged, next_step};
use crate::paths;
use crate::store::{Call, Report, ReportKind};

/// Delay before the store is read again after an error.
const RETRY: Duration = Duration::from_secs(5);

/// Pods with a scheduled next step, and the addresses in use.
#[derive(Default)]
struct Pods {
    due: BTreeSet<(Instant, ObjectKey)>,
    times: HashMap<ObjectKey, Instant>,
    addresses: HashMap<Ipv4Addr, ObjectKey>,
}

pub(super) async fn run(upstream: Arc<Upstream>) {
    loop {
        upstream.own_turn().await;
        tokio::select! {
            () = report(&upstream) => return,
            () = upstream.kubelets_turn() => {}
        }
    }
}

async fn report(upstream: &Upstream) {
    repeat(upstream.store.commits(), || follow(upstream)).await;
}

/// Follows until the store is closed, and starts again after every end or error.
async fn repeat<F>(mut commits: watch::Receiver<u64>, follow: impl Fn() -> F)
where
    F: Future<Output = Result<(), StoreError>>,
{
    loop {
        // A commit from here on may be the one that the next attempt needs.
        commits.borrow_and_update();
        match follow().await {
            // The watch fell behind: list again.
            Ok(()) | Err(StoreError::Expired { .. }) => {}
            // The store has no pods yet: wait for a commit.
            Err(StoreError::NotSynced { .. }) => {
                if commits.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                warn!(%error, "cannot read the delivered pods");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn follow(upstream: &Upstream) -> Result<(), StoreError> {
    let resource = Resource::new("", "v1", "pods");
    let snapshot = upstream.store.list(&resource, None)?;
    let mut changes = upstream.store.watch(&resource, snapshot.revision)?;
    let mut pods = Pods::default();
    for pod in &snapshot.items {
        consider(upstream, &mut pods, pod).await;
    }
    loop {
        tokio::select! {
            batch = changes.next() => {
                let Some(batch) = batch? else { return Ok(()) };
                for change in batch {
                    if change.kind == ChangeKind::Deleted {
                        pods.forget(&change.object.key);
                    } else {
                        consider(upstream, &mut pods, &change.object).await;
                    }
                }
            }
            () = pods.wait() => {
                while let Some(key) = pods.pop_due(Instant::now()) {
                    if let Ok(Some(pod)) = upstream.store.get(&key) {
                        act(upstream, &mut pods, &pod, false).await;
                    }
                }
            }
        }
    }
}

async fn consider(upstream: &Upstream, pods: &mut Pods, pod: &Stored) {
    act(upstream, pods, pod, true).await;
}

/// Does the next step for a pod, or schedules it.
async fn act(upstream: &Upstream, pods: &mut Pods, pod: &Stored, may_wait: bool) {
    let Ok(object) = serde_json::from_slice::<Value>(&pod.body()) else { return };
    let address = pods.address(&pod.key, pod.uid.as_str());
    let report = match next_step(&object, upstream.simulate_pods, address, Timestamp::now()) {
        Step::Rest => return pods.unschedule(&pod.key),
        Step::Status { after, .. } if may_wait && !after.is_zero() => {
            return pods.schedule(&pod.key, Instant::now() + after);
        }
        Step::Status { status, .. } => status_report(pod, &object, &status),
        Step::Remove => removal(pod),
    };
    pods.unschedule(&pod.key);
    debug!(key = %pod.key, kind = ?report.kind, "reporting a pod");
    if let Err(error) = upstream.store.report(report).await {
        warn!(key = %pod.key, %error, "cannot add a pod's report to the outbox");
        pods.schedule(&pod.key, Instant::now() + RETRY);
    }
}

fn status_report(pod: &Stored, object: &Value, status: &Value) -> Report {
    let call = Call {
        method: "PATCH".to_owned(),
        path_and_query: format!("{}/status", paths::object(&pod.key)),
        content_type: PatchType::Strategic.media_type().to_owned(),
        // With the UID, the status is not applied to a new pod of the same name.
        body: json!({"metadata": {"uid": pod.uid.as_str()}, "status": status}).to_string(),
    };
    let shown = merged(&object["status"], status).to_string();
    Report { kind: ReportKind::Status, key: pod.key.clone(), call, status: Some(shown.into()), base: None }
}

fn removal(pod: &Stored) -> Report {
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": pod.uid.as_str()},
    });
    let call = Call {
        method: "DELETE".to_owned(),
        path_and_query: paths::object(&pod.key),
        content_type: "application/json".to_owned(),
        body: options.to_string(),
    };
    Report { kind: ReportKind::Removal, key: pod.key.clone(), call, status: None, base: None }
}

impl Pods {
    /// An address in 10.0.0.0/8 for a simulated pod. It is stable for a pod and differs from those of other pods of
    /// this node.
    fn address(&mut self, key: &ObjectKey, uid: &str) -> Ipv4Addr {
        let mut low = u32::try_from(xxh3_64(uid.as_bytes()) % (1 << 24)).unwrap_or_default();
        loop {
            let address = Ipv4Addr::from((10 << 24) | low);
            let last = address.octets()[3];
            let owner = self.addresses.get(&address);
            if !matches!(last, 0 | 255) && owner.is_none_or(|owner| owner == key) {
                self.addresses.insert(address, key.clone());
                return address;
            }
            low = (low + 1) % (1 << 24);
        }
    }

    fn schedule(&mut self, key: &ObjectKey, at: Instant) {
        self.unschedule(key);
        self.times.insert(key.clone(), at);
        self.due.insert((at, key.clone()));
    }

    fn unschedule(&mut self, key: &ObjectKey) {
        if let Some(at) = self.times.remove(key) {
            self.due.remove(&(at, key.clone()));
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.unschedule(key);
        self.addresses.retain(|_, owner| owner != key);
    }

    fn pop_due(&mut self, now: Instant) -> Option<ObjectKey> {
        let (at, key) = self.due.first()?.clone();
        if at > now {
            return None;
        }
        self.unschedule(&key);
        Some(key)
    }

    async fn wait(&self) {
        match self.due.first() {
            Some((at, _)) => tokio::time::sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tombolo_apicore::store::Revision;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_commit_is_missed_and_a_lost_watch_begins_again_at_once() {
        let (commits, told) = watch::channel(0_u64);
        let attempts = Cell::new(0);
        let not_synced = || StoreError::NotSynced { reason: String::new() };
        let following = repeat(told, || {
            attempts.set(attempts.get() + 1);
            let attempt = attempts.get();
            // The first commit arrives after the first attempt has read the store.
            if attempt == 1 {
                commits.send_modify(|count| *count += 1);
            }
            async move {
                match attempt {
                    1 => Err(not_synced()),
                    2 => Err(StoreError::Expired { requested: Revision(1), oldest: Revision(2) }),
                    3 => Ok(()),
                    _ => std::future::pending().await,
                }
            }
        });
        let _ = tokio::time::timeout(Duration::from_secs(60), following).await;
        assert_eq!(attempts.get(), 4);
    }

    #[test]
    fn addresses_are_unique_and_stay() {
        let mut pods = Pods::default();
        let key =
            |number: usize| ObjectKey::new(Resource::new("", "v1", "pods"), "default", &format!("p{number}"));
        let mut seen = std::collections::HashSet::new();
        for number in 0..500 {
            assert!(seen.insert(pods.address(&key(number), "same uid, so that every address is taken")));
        }
        assert_eq!(pods.address(&key(0), "u"), pods.address(&key(0), "u"));
    }
}
