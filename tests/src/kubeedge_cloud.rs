//! A cloud with the wire behaviour of KubeEdge cloudcore, scripted by a test and written only from
//! docs/reference/kubeedge.md. It does not use the product's message types, so that mistakes in those are found.

mod join;

pub use join::{Asked, KubeEdgeJoin};

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::accept_hdr_async;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tombolo_testkit::wait_for_value;

use crate::pki::Authority;
use crate::world::DEADLINE;

/// The cloud. It serves until it is dropped.
pub struct KubeEdgeCloud {
    /// Signs for the cloud and for its nodes.
    pub authority: Arc<Authority>,
    /// Port of its WebSocket listener.
    pub port: u16,
    shared: Arc<Mutex<KubeEdgeCloudState>>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct KubeEdgeCloudState {
    /// Objects by the resource under which an edge requests them.
    objects: BTreeMap<String, Value>,
    /// Every message from edges, keepalives included.
    up: Vec<Value>,
    /// Path and the three headers of each upgrade request.
    upgrades: Vec<[String; 4]>,
    /// Channel to the current connection.
    down: Option<mpsc::UnboundedSender<Value>>,
    sent: u64,
}

impl KubeEdgeCloud {
    /// Listens.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start() -> Result<Self> {
        let authority = Arc::new(Authority::new()?);
        let shared = Arc::<Mutex<KubeEdgeCloudState>>::default();
        let served = Arc::clone(&shared);
        let serve = move |stream| serve(stream, Arc::clone(&served));
        let (address, tasks) = authority.serve_tls(authority.verifier()?, serve).await?;
        Ok(Self { authority, port: address.port(), shared, _tasks: tasks })
    }

    /// Stores an object under the resource that edges request, or a document under the path that their MetaServer
    /// requests.
    pub fn put(&self, resource: &str, object: Value) {
        self.shared.lock().objects.insert(resource.to_owned(), object);
    }

    /// Removes an object or document. A request for a removed document is not answered.
    pub fn remove(&self, resource: &str) {
        self.shared.lock().objects.remove(resource);
    }

    /// Sends a message that is not an answer, and returns its id.
    pub fn push(&self, operation: &str, resource: &str, content: &Value) -> String {
        let mut shared = self.shared.lock();
        let version = content["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let mut message = shared.message(operation, resource, content);
        if !version.is_empty() {
            message["header"]["resourceversion"] = json!(version);
        }
        let id = message["header"]["msg_id"].as_str().unwrap_or_default().to_owned();
        shared.send(message);
        id
    }

    /// Closes the current connection without a goodbye, as KubeEdge peers do.
    pub fn hang_up(&self) {
        self.shared.lock().down = None;
    }

    /// Whether an edge is connected, so that a push reaches it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.lock().down.is_some()
    }

    /// Path and the headers `node_id`, `project_id`, `ConnectionUse` of the upgrades so far.
    #[must_use]
    pub fn upgrades(&self) -> Vec<[String; 4]> {
        self.shared.lock().upgrades.clone()
    }

    /// How many messages of this operation and resource have arrived.
    #[must_use]
    pub fn count(&self, operation: &str, resource: &str) -> usize {
        self.shared.lock().up.iter().filter(|message| is(message, operation, resource)).count()
    }

    /// Waits for a matching message from the edge.
    pub async fn heard(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for_value(what, DEADLINE, async || {
            let shared = self.shared.lock();
            let routes = || shared.up.iter().map(|message| message["route"].to_string()).collect::<Vec<_>>();
            shared.up.iter().find(|message| wanted(message)).cloned().ok_or_else(|| format!("{:?}", routes()))
        })
        .await
    }

    /// Waits for a request with this operation and resource.
    pub async fn asked(&self, operation: &str, resource: &str) -> Value {
        self.heard(&format!("{operation} {resource}"), |message| is(message, operation, resource)).await
    }

    /// Waits for the acknowledgement of a message.
    pub async fn acknowledged(&self, id: &str) -> Value {
        self.heard("an acknowledgement", |message| message["header"]["parent_msg_id"] == id).await
    }
}

fn is(message: &Value, operation: &str, resource: &str) -> bool {
    message["route"]["operation"] == operation && message["route"]["resource"] == resource
}

impl KubeEdgeCloudState {
    fn message(&mut self, operation: &str, resource: &str, content: &Value) -> Value {
        self.sent += 1;
        json!({
            "header": {"msg_id": format!("00000000-0000-4000-8000-{:012}", self.sent), "timestamp": 1_790_000_000_000_u64},
            "route": {"source": "edgecontroller", "group": "resource", "operation": operation, "resource": resource},
            "content": content,
        })
    }

    fn send(&self, message: Value) {
        if let Some(down) = &self.down {
            // The connection may just have ended; the test waits for the effects of the message.
            let _ = down.send(message);
        }
    }

    /// Processes a message and answers it as KubeEdge does.
    fn take(&mut self, message: Value) {
        let text =
            |pointer: &str| message.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (operation, resource) = (text("/route/operation"), text("/route/resource"));
        let record = message["content"]["Key"].as_str().and_then(|key| self.objects.get(key)).cloned();
        if let Some(found) = record {
            let mut content = message["content"].clone();
            content["Status"] = json!("Approved");
            content["RespBody"] = json!(STANDARD.encode(found.to_string()));
            let mut reply = self.message("applicationResponse", "ignore/Application/ignore", &content);
            reply["route"]["source"] = json!("dynamiccontroller");
            reply["header"]["parent_msg_id"] = message["header"]["msg_id"].clone();
            self.send(reply);
        } else if let Some(content) = self.answer(&operation, &resource, &message["content"]) {
            let mut reply = self.message("response", &resource, &content);
            reply["header"]["parent_msg_id"] = message["header"]["msg_id"].clone();
            self.send(reply);
        }
        self.up.push(message);
    }

    fn answer(&mut self, operation: &str, resource: &str, content: &Value) -> Option<Value> {
        let word = resource.split('/').nth(1).unwrap_or_default();
        let gone = || json!({"ErrStatus": {"metadata": {}, "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404}});
        let wrapped = |object: Option<Value>| match object {
            Some(object) => json!({"Object": object, "Err": null}),
            None => json!({"Object": {"metadata": {}}, "Err": gone()}),
        };
        match (word, operation) {
            ("node" | "lease", "insert" | "update") => {
                let mut object = content.clone();
                object["metadata"]["uid"] = json!(format!("uid of {resource}"));
                object["metadata"]["resourceVersion"] = json!(self.sent.to_string());
                self.objects.insert(resource.to_owned(), object.clone());
                Some(wrapped(Some(object)))
            }
            ("lease", "query") => Some(wrapped(self.objects.get(resource).cloned())),
            ("nodepatch", _) => {
                let node = self.objects.get(&resource.replace("nodepatch", "node")).cloned();
                Some(wrapped(node))
            }
            ("podpatch", _) => Some(wrapped(self.objects.get(&resource.replace("podpatch", "pod")).cloned())),
            ("pod", "delete") => Some(json!("OK")),
            (_, "query") => Some(self.objects.get(resource).cloned().unwrap_or_else(gone)),
            _ => None,
        }
    }
}

async fn serve(stream: TlsStream<TcpStream>, shared: Arc<Mutex<KubeEdgeCloudState>>) -> Result<()> {
    let seen = Arc::clone(&shared);
    #[expect(clippy::result_large_err, reason = "the library's type")]
    let look = move |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
        let header = |name: &str| {
            let value = request.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let names = ["node_id", "project_id", "ConnectionUse"].map(header);
        let [node, project, usage] = names;
        seen.lock().upgrades.push([request.uri().path().to_owned(), node, project, usage]);
        Ok(response)
    };
    let mut socket = accept_hdr_async(stream, look).await?;
    let (down, mut messages) = mpsc::unbounded_channel();
    shared.lock().down = Some(down);
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { return Ok(()) };
                socket.send(Message::text(message.to_string())).await?;
            }
            received = socket.next() => match received.context("the edge has disconnected")?? {
                Message::Text(text) => shared.lock().take(serde_json::from_str(&text)?),
                Message::Binary(_) => anyhow::bail!("a binary message"),
                _ => {}
            },
        }
    }
}
