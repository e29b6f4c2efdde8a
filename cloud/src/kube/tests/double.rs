//! API servers for tests, which answer from a function.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A client whose API server answers each call with a code and an object.
pub(crate) fn answering<F>(answer: impl Fn(Parts, Bytes) -> F + Clone + Send + Sync + 'static) -> Client
where
    F: Future<Output = (u16, Value)> + Send,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (code, object) = answer(parts, body).await;
            let response = Response::builder().status(code).header("content-type", "application/json");
            Ok::<_, tower::BoxError>(response.body(Body::from(object.to_string().into_bytes()))?)
        }
    });
    Client::new(service, "default")
}

/// Runs before a patch is applied.
type Before = dyn Fn(&OneObject, &Value) -> BoxFuture<'static, ()> + Send + Sync;

/// An API server with one object, a Node or a pod of node n. As in a real one, a patch that names a version, of the
/// status or not, only succeeds on that version.
pub(crate) struct OneObject {
    /// The metadata without the version.
    metadata: Value,
    /// The version and the status.
    pub(crate) state: Mutex<(u64, Value)>,
    /// Earlier states by version, as far as they were returned to a client.
    past: Mutex<BTreeMap<u64, Value>>,
    before: Box<Before>,
}

impl OneObject {
    /// An object with this name, version and status.
    pub(crate) fn new(
        name: &str,
        state: (u64, Value),
        before: impl Fn(&Self, &Value) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let metadata = json!({"name": name, "uid": "u"});
        let past = Mutex::new(BTreeMap::from([state.clone()]));
        Arc::new(Self { metadata, state: Mutex::new(state), past, before: Box::new(before) })
    }

    pub(crate) fn client(self: &Arc<Self>) -> Client {
        let object = Arc::clone(self);
        answering(move |call, body| {
            let object = Arc::clone(&object);
            async move {
                match call.method {
                    Method::PATCH | Method::PUT => {
                        object.patch(&serde_json::from_slice(&body).unwrap_or_default()).await
                    }
                    _ if !call.uri.path().ends_with(&object.name()) => object.list(call.uri.query()),
                    _ => (200, object.get()),
                }
            }
            .boxed()
        })
    }

    fn name(&self) -> String {
        format!("/{}", self.metadata["name"].as_str().unwrap_or_default())
    }

    fn get(&self) -> Value {
        let state = self.state.lock();
        self.past.lock().insert(state.0, state.1.clone());
        self.at(state.0, &state.1)
    }

    fn at(&self, version: u64, status: &Value) -> Value {
        let mut object = json!({"metadata": self.metadata, "spec": {"nodeName": "n"}, "status": status});
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object
    }

    /// Lists only this object, at the one version that is requested.
    fn list(&self, query: Option<&str>) -> (u16, Value) {
        let parameter =
            |name: &str| query?.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let selects = parameter("fieldSelector") == Some(&self.name().replace('/', "metadata.name%3D"));
        let version =
            parameter("resourceVersion").filter(|_| parameter("resourceVersionMatch") == Some("Exact"));
        let Some(version) = version.filter(|_| selects).and_then(|version| version.parse::<u64>().ok())
        else {
            return (400, json!({"kind": "Status", "code": 400}));
        };
        match self.past.lock().range(..=version).next_back() {
            Some((version, status)) => (200, json!({"items": [self.at(*version, status)]})),
            None => (410, json!({"kind": "Status", "code": 410})),
        }
    }

    async fn patch(&self, patch: &Value) -> (u16, Value) {
        (self.before)(self, patch).await;
        let mut state = self.state.lock();
        let named = patch.pointer("/metadata/resourceVersion").or_else(|| patch.pointer("/0/value"));
        let named = named.and_then(Value::as_str);
        if named.is_some_and(|named| named != state.0.to_string()) {
            let conflict =
                json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "modified"});
            return (409, conflict);
        }
        // The last operation of a JSON patch contains the new status.
        let status = patch.as_array().and_then(|operations| operations.last()?.get("value"));
        *state = (state.0 + 1, status.unwrap_or(&patch["status"]).clone());
        drop(state);
        (200, self.get())
    }
}
