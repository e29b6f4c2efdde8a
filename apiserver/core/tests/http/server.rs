//! A server on a port of its own, and a plain HTTP client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::server::{Serving, serve};
use tombolo_apicore::status::ApiError;
use tombolo_apicore::write::LocalWrites;

/// Longest wait for anything in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const JSON: &str = "application/json";

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) store: MemoryStore,
    pub(crate) registry: Registry,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<std::io::Result<()>>,
    client: Client<HttpConnector, Full<Bytes>>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// The object in the answer, which must have the code.
    #[track_caller]
    pub(crate) fn expect(&self, code: u16) -> Value {
        assert_eq!(self.status.as_u16(), code, "{}", String::from_utf8_lossy(&self.bytes));
        self.json()
    }
}

/// Echoes the body of the request.
struct Echo;

impl Endpoint for Echo {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Result<(StatusCode, Value), ApiError>> {
        Box::pin(async move { Ok((StatusCode::CREATED, request.body)) })
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with_limits(LogLimits::default()).await
    }

    pub(crate) async fn with_limits(limits: LogLimits) -> Self {
        let store = MemoryStore::new(MemoryStore::START, limits);
        Self::over(store.clone(), LocalWrites::new(Arc::new(store))).await
    }

    /// With writes that take another way into the store.
    pub(crate) async fn with_writes(writes: impl FnOnce(MemoryStore) -> LocalWrites) -> Self {
        let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
        Self::over(store.clone(), writes(store)).await
    }

    async fn over(store: MemoryStore, writes: LocalWrites) -> Self {
        let registry = Registry::new(tombolo_catalog::kinds());
        let stop = CancellationToken::new();
        let api = ApiServer::builder(Arc::new(store.clone()), registry.clone())
            .writes(Arc::new(writes))
            .endpoint("", "serviceaccounts", "token", Arc::new(Echo))
            .stop(stop.clone())
            .build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Serving { tls: None, stop: stop.clone(), grace: PATIENCE };
        let task = tokio::spawn(serve(listener, api, serving));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, store, registry, stop, task, client }
    }

    pub(crate) async fn open(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        tokio::time::timeout(PATIENCE, self.client.request(request))
            .await
            .expect("an answer in time")
            .unwrap()
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.address))
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (head, body) = self.open(request).await.into_parts();
        let bytes = tokio::time::timeout(PATIENCE, body.collect()).await.expect("a body in time").unwrap();
        Answer { status: head.status, headers: head.headers, bytes: bytes.to_bytes() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.send(self.request("GET", path).header("accept", accept).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, kind: &str, body: impl Into<Bytes>) -> Answer {
        let request = self.request(method, path).header("content-type", kind).header("user-agent", "test/1");
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, JSON, body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.call("PUT", path, JSON, body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request("DELETE", path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn watch(&self, path: &str) -> Events {
        self.watch_as(path, JSON).await
    }

    pub(crate) async fn watch_as(&self, path: &str, accept: &str) -> Events {
        let request = self.request("GET", path).header("accept", accept).body(Full::default()).unwrap();
        let (head, body) = self.open(request).await.into_parts();
        assert_eq!(head.status, 200);
        Events { body, buffer: Vec::new() }
    }
}

/// A watch as its client reads it.
pub(crate) struct Events {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; `None` after a clean end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("an event in time")?;
            if let Ok(data) = frame.expect("a clean stream").into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// The next event as `TYPE name`.
    pub(crate) async fn brief(&mut self) -> String {
        match self.next().await {
            Some(event) => brief(&event),
            None => "END".to_owned(),
        }
    }
}

pub(crate) fn brief(event: &Value) -> String {
    let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-");
    format!("{} {name}", event["type"].as_str().unwrap())
}

pub(crate) fn configmap(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}})
}

pub(crate) fn labelled(name: &str, app: &str) -> Value {
    let metadata = json!({"name": name, "labels": {"app": app}});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

pub(crate) fn pod(name: &str, node: &str) -> Value {
    let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

pub(crate) fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

pub(crate) const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
