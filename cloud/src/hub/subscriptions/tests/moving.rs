//! A node that moves between two replicas over one API server, in the middle of a report.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use tombolo_proto::frame::{ApiRequest, ReplyBody, RequestBody};

use super::{Edge, hub};
use crate::kube::Kube;

/// An API server with one pod, which keeps patches that say so until it is told to go on.
#[derive(Default)]
struct Api {
    /// Version and status of the pod.
    pod: Mutex<(u64, Value)>,
    kept: Notify,
    goes_on: Notify,
}

impl Api {
    fn client(self: &Arc<Self>) -> Kube {
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = Arc::clone(&api);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let (code, object) = match parts.method {
                    Method::PATCH => api.patch(&serde_json::from_slice(&body)?).await,
                    _ => (200, api.object()),
                };
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, tower::BoxError>(response.body(Body::from(object.to_string().into_bytes()))?)
            }
        });
        Client::new(service, "default").into()
    }

    fn object(&self) -> Value {
        let (version, status) = &*self.pod.lock();
        let metadata =
            json!({"name": "p", "namespace": "d", "uid": "u", "resourceVersion": version.to_string()});
        json!({"metadata": metadata, "status": status})
    }

    /// As the real one: a patch that names a version is made on that version or not at all.
    async fn patch(&self, patch: &Value) -> (u16, Value) {
        if patch["status"]["kept"] == true {
            self.kept.notify_one();
            self.goes_on.notified().await;
        }
        let mut pod = self.pod.lock();
        let named = patch.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if named.is_some_and(|named| named != pod.0.to_string()) {
            return (
                409,
                json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "modified"}),
            );
        }
        *pod = (pod.0 + 1, patch["status"].clone());
        drop(pod);
        (200, self.object())
    }
}

fn report(status: &Value) -> RequestBody {
    RequestBody::Api(ApiRequest {
        method: "PATCH".to_owned(),
        path_and_query: "/api/v1/namespaces/d/pods/p/status".to_owned(),
        content_type: "application/strategic-merge-patch+json".to_owned(),
        accept: String::new(),
        body: json!({ "status": status }).to_string().into(),
    })
}

/// More than a report takes, less than the deadline of a call.
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
async fn a_report_that_waits_at_one_replica_never_follows_a_newer_one_through_another() {
    let api = Arc::new(Api::default());
    let replicas = [hub(&api.client()), hub(&api.client())];
    let mut before = Edge::connect(&replicas[0]);
    before.report(&json!({"phase": "Pending", "kept": true}));
    before.until(&api.kept).await;

    // The former replica does not know yet that the node has left it.
    let mut after = Edge::connect(&replicas[1]);
    after.report(&json!({"phase": "Running"}));
    assert_eq!(after.answer().await, 200);
    api.goes_on.notify_one();
    assert_eq!(before.answer().await, 409, "it was made on a version that is not there any more");
    assert_eq!(api.object()["status"], json!({"phase": "Running"}));
}

/// A conflict with somebody else costs one more report, not the order.
#[tokio::test(start_paused = true)]
async fn a_report_after_a_conflict_is_made_on_what_is_there() {
    let api = Arc::new(Api::default());
    let hub = hub(&api.client());
    let mut edge = Edge::connect(&hub);
    edge.report(&json!({"phase": "Pending"}));
    assert_eq!(edge.answer().await, 200);
    edge.report(&json!({"phase": "Running"}));
    assert_eq!(edge.answer().await, 200, "its own write is known before a watch has shown it");
    // Somebody has written beside the status.
    api.pod.lock().0 += 1;
    edge.report(&json!({"phase": "Succeeded"}));
    assert_eq!(edge.answer().await, 200);
    // Somebody has written another status.
    *api.pod.lock() = (100, json!({"phase": "Unknown"}));
    edge.report(&json!({"phase": "Failed"}));
    assert_eq!(edge.answer().await, 409);
    edge.report(&json!({"phase": "Failed"}));
    assert_eq!(edge.answer().await, 200);
    assert_eq!(api.object()["status"], json!({"phase": "Failed"}));
}
