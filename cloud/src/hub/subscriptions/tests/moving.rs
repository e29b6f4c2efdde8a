//! A node that moves between two replicas with one API server, in the middle of a report.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use tombolo_proto::frame::{ApiRequest, ReplyBody, RequestBody};

use super::{Edge, hub};
use crate::kube::tests::double::OneObject;

/// An API server with one pod. It holds marked patches back until it is told to continue.
struct Api {
    pod: Arc<OneObject>,
    kept: Arc<Notify>,
    goes_on: Arc<Notify>,
}

impl Api {
    fn new() -> Self {
        let (kept, goes_on) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let notified = (Arc::clone(&kept), Arc::clone(&goes_on));
        let pod = OneObject::new("p", (0, Value::Null), move |_, patch| {
            let (is_kept, (kept, goes_on)) = (patch["status"]["kept"] == true, notified.clone());
            async move {
                if is_kept {
                    kept.notify_one();
                    goes_on.notified().await;
                }
            }
            .boxed()
        });
        Self { pod, kept, goes_on }
    }

    fn status(&self) -> Value {
        self.pod.state.lock().1.clone()
    }
}

fn report(status: &Value) -> RequestBody {
    RequestBody::Api(ApiRequest {
        content_type: "application/strategic-merge-patch+json".to_owned(),
        body: json!({ "status": status }).to_string().into(),
        ..ApiRequest::new("PATCH", "/api/v1/namespaces/d/pods/p/status")
    })
}

/// Longer than a report takes, shorter than the deadline of a call.
const SOON: Duration = Duration::from_secs(5);

impl Edge {
    fn report(&mut self, status: &Value) {
        let now = self.clock.now();
        self.session.request(now, Duration::from_secs(60), report(status), None).expect("room for one");
    }

    /// The code of the next answer.
    async fn answer(&mut self) -> u16 {
        let deadline = Instant::now() + SOON;
        while self.replies.is_empty() {
            assert!(Instant::now() < deadline, "no answer");
            self.step(deadline).await;
        }
        match self.replies.remove(0).body {
            ReplyBody::Api(reply) => reply.code,
            ReplyBody::Message(message) => panic!("{message:?}"),
        }
    }

    async fn until(&mut self, told: &Notify) {
        let deadline = Instant::now() + SOON;
        let told = told.notified();
        tokio::pin!(told);
        loop {
            tokio::select! {
                () = &mut told => return,
                () = self.step(deadline) => assert!(Instant::now() < deadline, "it has not come there"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn report_waiting_at_one_replica_never_overwrites_a_newer_one_from_another() {
    let api = Api::new();
    let replicas = [hub(&api.pod.client().into()), hub(&api.pod.client().into())];
    let mut before = Edge::connect(&replicas[0]);
    before.report(&json!({"phase": "Pending", "kept": true}));
    before.until(&api.kept).await;

    // The former replica does not know yet that the node has left it.
    let mut after = Edge::connect(&replicas[1]);
    after.report(&json!({"phase": "Running"}));
    assert_eq!(after.answer().await, 200);
    api.goes_on.notify_one();
    assert_eq!(before.answer().await, 409, "it was made on a version that is not there any more");
    assert_eq!(api.status(), json!({"phase": "Running"}));
}

/// A conflict with another writer costs one more report, but never the order.
#[tokio::test(start_paused = true)]
async fn report_after_a_conflict_is_based_on_the_present_object() {
    let api = Api::new();
    let hub = hub(&api.pod.client().into());
    let mut edge = Edge::connect(&hub);
    edge.report(&json!({"phase": "Pending"}));
    assert_eq!(edge.answer().await, 200);
    edge.report(&json!({"phase": "Running"}));
    assert_eq!(edge.answer().await, 200, "its own write is known before a watch shows it");
    // Another writer has changed fields other than the status.
    api.pod.state.lock().0 += 1;
    edge.report(&json!({"phase": "Succeeded"}));
    assert_eq!(edge.answer().await, 200);
    // Another writer has written a different status.
    *api.pod.state.lock() = (100, json!({"phase": "Unknown"}));
    edge.report(&json!({"phase": "Failed"}));
    assert_eq!(edge.answer().await, 409);
    edge.report(&json!({"phase": "Failed"}));
    assert_eq!(edge.answer().await, 200);
    assert_eq!(api.status(), json!({"phase": "Failed"}));
}
