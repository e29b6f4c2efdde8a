//! A peer that behaves as a stock KubeEdge node does on the wire, written against the reference alone: none of the
//! product's message types, so that a mistake in those shows.

mod store;

pub use store::{Delivery, Store};

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use sha2::Digest as _;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tombolo_testkit::wait_for;

use crate::raw;
use crate::world::{DEADLINE, World};

/// Project of every stock edge, unless configured otherwise.
const PROJECT: &str = "e632aba927ea4ac2b575ec1603d56f10";

/// Interval of keepalives (reference 8.2).
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How long a request waits for its answer: less than a stock edge does.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// A stock node. Its store outlives its connections, as a database does.
pub struct StockNode {
    /// Its name.
    pub name: String,
    tls: Arc<ClientConfig>,
    port: u16,
    store: Arc<parking_lot::Mutex<Store>>,
    connection: Option<Connection>,
}

/// One connection; the edge notices its end when it writes next.
struct Connection {
    asks: mpsc::Sender<Ask>,
    task: JoinHandle<()>,
}

struct Ask {
    message: Value,
    answer: Option<oneshot::Sender<Value>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StockNode {
    /// Gets a certificate. Nothing is connected yet.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn join(world: &World, name: &str) -> Result<Self> {
        let tls = Arc::new(raw::joined(world, name).await?);
        let [port, ..] = world.hub_ports();
        let store = Arc::default();
        Ok(Self { name: name.to_owned(), tls, port, store, connection: None })
    }

    /// Connects; a former connection ends first.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn connect(&mut self) -> Result<()> {
        self.connection = None;
        self.connection = Some(self.another_connection().await?);
        Ok(())
    }

    /// Connects without ending the former connection, whose socket stays open and is not read any more.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn connect_beside(&mut self) -> Result<Forgotten> {
        let connection = self.another_connection().await?;
        let old = self.connection.replace(connection).context("no former connection")?;
        Ok(Forgotten(old))
    }

    async fn another_connection(&self) -> Result<Connection> {
        let headers = [("node_id", &*self.name), ("project_id", PROJECT), ("ConnectionUse", "msg")];
        let socket = self.upgrade(&format!("/{PROJECT}/{}/events", self.name), &headers).await?;
        self.store.lock().connected = true;
        let (asks, questions) = mpsc::channel(64);
        let task = tokio::spawn(run(socket, Arc::clone(&self.store), questions));
        Ok(Connection { asks, task })
    }

    /// Asks for an upgrade with this path and these headers.
    ///
    /// # Errors
    /// What the library says, refusals included.
    pub async fn upgrade(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<Socket> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        let name = ServerName::try_from("127.0.0.1")?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?;
        let mut request = format!("wss://127.0.0.1:{}{path}", self.port).into_client_request()?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse()?);
        }
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(WsError::Http(response)) => {
                let body = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
                bail!("{}: {body}", response.status().as_u16())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) {
        self.connection = None;
        self.store.lock().connected = false;
    }

    /// Looks into the store.
    pub fn look<T>(&self, look: impl FnOnce(&mut Store) -> T) -> T {
        look(&mut self.store.lock())
    }

    /// Waits until the store is as it should be.
    ///
    /// # Panics
    /// When it is not in time.
    pub async fn until(&self, what: &str, condition: impl Fn(&Store) -> bool) {
        self.until_within(DEADLINE, what, condition).await;
    }

    /// The same with a time of its own.
    ///
    /// # Panics
    /// When it is not in time.
    pub async fn until_within(&self, limit: Duration, what: &str, condition: impl Fn(&Store) -> bool) {
        let what = format!("{}: {what}", self.name);
        wait_for(&what, limit, || async {
            let store = self.store.lock();
            if condition(&store) { Ok(()) } else { Err(format!("{:?}", store.describe())) }
        })
        .await;
    }

    /// Sends a message of the kubelet and gives the answer, whole.
    ///
    /// # Errors
    /// When none comes.
    pub async fn ask(&self, operation: &str, resource: &str, content: Value) -> Result<Value> {
        self.ask_as("edged", "meta", operation, resource, content).await
    }

    /// The same for other parts of the edge.
    ///
    /// # Errors
    /// When none comes.
    pub async fn ask_as(
        &self,
        source: &str,
        group: &str,
        operation: &str,
        resource: &str,
        content: Value,
    ) -> Result<Value> {
        let (answer, answered) = oneshot::channel();
        self.send(message(source, group, operation, resource, &content), Some(answer)).await?;
        Ok(tokio::time::timeout(ANSWER_LIMIT, answered)
            .await
            .with_context(|| format!("{operation} {resource} was not answered"))??)
    }

    /// Sends a message that nobody answers.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn tell(&self, operation: &str, resource: &str, content: Value) -> Result<()> {
        self.send(message("edged", "meta", operation, resource, &content), None).await
    }

    async fn send(&self, message: Value, answer: Option<oneshot::Sender<Value>>) -> Result<()> {
        let connection = self.connection.as_ref().context("not connected")?;
        connection.asks.send(Ask { message, answer }).await.ok().context("the connection is over")
    }

    /// What the kubelet does at its start: Node, lease, status (reference 10.2). Gives the Node.
    ///
    /// # Errors
    /// When one of the steps fails.
    pub async fn register(&self) -> Result<Value> {
        let name = &self.name;
        let inserted = self.ask("insert", &format!("null/node/{name}"), node_object(name)).await?;
        let reason = inserted.pointer("/content/Err/ErrStatus/reason").and_then(Value::as_str);
        if reason == Some("AlreadyExists") {
            self.until("its Node", |store| store.row(&format!("null/node/{name}")).is_some()).await;
        } else {
            done(&inserted)?;
        }
        let path = format!("kube-node-lease/lease/{name}");
        let found = self.ask("query", &path, Value::Null).await?;
        if found.pointer("/content/Err/ErrStatus/code") == Some(&json!(404)) {
            let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}});
            done(&self.ask("insert", &path, lease).await?)?;
        }
        let patch =
            json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "EdgeReady"}]}});
        done(&self.ask("patch", &format!("null/nodepatch/{name}"), patch.to_string().into()).await?)
    }
}

/// A connection that its edge has forgotten without closing it.
pub struct Forgotten(Connection);

impl Forgotten {
    /// Waits until the cloud has ended it.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(mut self) -> Result<()> {
        Ok(tokio::time::timeout(ANSWER_LIMIT, &mut self.0.task).await??)
    }
}

/// The object of a wrapper.
///
/// # Errors
/// When the wrapper holds an error, or no object.
pub fn done(reply: &Value) -> Result<Value> {
    let content = &reply["content"];
    ensure!(content["Err"].is_null(), "{}", content["Err"]);
    ensure!(content["Object"].is_object(), "no object: {reply}");
    Ok(content["Object"].clone())
}

/// A record of MetaServer (reference 7.2).
#[must_use]
pub fn application(node: &str, verb: &str, key: &str, option: &Value, body: Option<&Value>) -> Value {
    let base64 = |value: &Value| STANDARD.encode(value.to_string());
    let identity = format!("{node}{key}{verb}{option}{}", body.map(Value::to_string).unwrap_or_default());
    json!({
        "ID": hex::encode(sha2::Sha256::digest(identity)), "Key": key, "Verb": verb, "Nodename": node,
        "Option": base64(option), "ReqBody": body.map(base64), "Subresource": "", "RespBody": null,
        "Status": "InApplying", "Reason": "", "Error": {"ErrStatus": {"metadata": {}}},
        "Timestamp": "0001-01-01T00:00:00Z"
    })
}

/// The result in a record.
///
/// # Errors
/// When there is none.
pub fn application_result(record: &Value) -> Result<Value> {
    let body = record["RespBody"].as_str().with_context(|| format!("no result: {record}"))?;
    Ok(serde_json::from_slice(&STANDARD.decode(body)?)?)
}

fn message(source: &str, group: &str, operation: &str, resource: &str, content: &Value) -> Value {
    json!({
        "header": {"msg_id": id(), "timestamp": jiff::Timestamp::now().as_millisecond()},
        "route": {"source": source, "group": group, "operation": operation, "resource": resource},
        "content": content
    })
}

fn id() -> String {
    let bytes: [u8; 16] = rand::random();
    let hex = hex::encode(bytes);
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

fn node_object(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "creationTimestamp": null, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
            "node-role.kubernetes.io/edge": "", "node-role.kubernetes.io/agent": ""}},
        "spec": {},
        "status": {"capacity": {"cpu": "1", "memory": "3840Mi", "pods": "110"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10350}}}
    })
}

async fn run(socket: Socket, store: Arc<parking_lot::Mutex<Store>>, questions: mpsc::Receiver<Ask>) {
    let (sink, stream) = socket.split();
    // Either end ends the connection; why is the cloud's log's to say.
    let outcome = serve(sink, stream, &store, questions).await;
    store.lock().ended = outcome.err().map(|error| error.to_string());
    store.lock().connected = false;
}

async fn serve(
    mut sink: SplitSink<Socket, Message>,
    mut stream: SplitStream<Socket>,
    store: &parking_lot::Mutex<Store>,
    mut questions: mpsc::Receiver<Ask>,
) -> Result<()> {
    let mut waiting = std::collections::HashMap::new();
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    loop {
        tokio::select! {
            _ = heartbeat.tick() => {
                let beat = message("websocket", "resource", "keepalive", "node", &json!("ping"));
                sink.send(Message::text(beat.to_string())).await?;
            }
            asked = questions.recv() => {
                let Some(Ask { message, answer }) = asked else { return Ok(()) };
                if let (Some(answer), Some(id)) = (answer, message["header"]["msg_id"].as_str()) {
                    waiting.insert(id.to_owned(), answer);
                }
                sink.send(Message::text(message.to_string())).await?;
            }
            received = stream.next() => {
                let Some(received) = received else { return Ok(()) };
                let Message::Text(text) = received? else { continue };
                let document: Value = serde_json::from_str(&text)?;
                let answer = store.lock().take(&document);
                if let Some(parent) = document["header"]["parent_msg_id"].as_str()
                    && let Some(asked) = waiting.remove(parent)
                {
                    // A test that stopped waiting needs no answer.
                    let _ = asked.send(document);
                }
                if let Some(answer) = answer {
                    sink.send(Message::text(answer.to_string())).await?;
                }
            }
        }
    }
}

/// What acknowledges a message (reference 1, rule 6).
fn acknowledgement(document: &Value) -> Value {
    let route = &document["route"];
    let text = |name: &str| route[name].as_str().unwrap_or_default().to_owned();
    let mut ack = message(&text("source"), &text("group"), "response", &text("resource"), &json!("OK"));
    ack["header"]["parent_msg_id"] = document["header"]["msg_id"].clone();
    ack
}
