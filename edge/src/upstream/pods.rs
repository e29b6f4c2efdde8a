//! Follows the delivered pods and reports their status.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_apicore::history::ChangeKind;
use tombolo_apicore::store::{Store as _, Stored};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::{debug, warn};
use xxhash_rust::xxh3::xxh3_64;

use super::Upstream;
use super::status::{Step, merged, next_step};
use crate::follow::{Following, News};
use crate::paths;
use crate::store::{Call, Report, ReportKind};

/// Delay before the next step of a pod after the outbox has not taken its report.
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
            () = report(&upstream) => {}
            () = upstream.kubelets_turn() => {}
        }
    }
}

/// Reports every step of the delivered pods until it is dropped.
async fn report(upstream: &Upstream) {
    let resource = Resource::new("", "v1", "pods");
    let mut following = Following::new(Arc::new(upstream.store.clone()), [resource]);
    let mut pods = Pods::default();
    loop {
        tokio::select! {
            news = following.next() => take(upstream, &mut pods, news).await,
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

async fn take(upstream: &Upstream, pods: &mut Pods, news: News) {
    match news {
        News::All(_, snapshot) => {
            *pods = Pods::default();
            for pod in &snapshot.items {
                consider(upstream, pods, pod).await;
            }
        }
        News::Changed(_, changes) => {
            for change in changes {
                let pod = &change.object;
                match change.kind {
                    ChangeKind::Deleted => pods.forget(&pod.key),
                    ChangeKind::Added | ChangeKind::Modified => consider(upstream, pods, pod).await,
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
    let call = Call::patch_status(&pod.key, Some(pod.uid.as_str()), json!({"status": status}));
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
    use super::*;

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
