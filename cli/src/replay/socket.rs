//! The WebSocket of a stock edge (reference 2.1).

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};
use tombolo_edge::identity::Identity;
use tombolo_replay::Frame;
use tombolo_runtime::time::unix_millis;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Frames of the cloud that wait for the run; a cloud that sends more waits.
const HEARD_MAX: usize = 4096;

/// Frames of the run that wait for the socket.
const SAYING_MAX: usize = 4096;

/// What a connection has heard: a frame, or none at its end.
pub(super) type Heard = (u64, Option<Frame>);

/// One connection. A dropped one is cut without a word, as a killed edge does.
pub(super) struct Socket {
    saying: mpsc::Sender<String>,
    task: JoinHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where what is heard goes, and where it is taken.
pub(super) fn ears() -> (mpsc::Sender<Heard>, mpsc::Receiver<Heard>) {
    mpsc::channel(HEARD_MAX)
}

impl Socket {
    /// Connects as stock edges do.
    pub(super) async fn connect(
        address: &str,
        node: &str,
        identity: &Identity,
        conn: u64,
        ears: mpsc::Sender<Heard>,
    ) -> Result<Self> {
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, upgrade(address, node, identity)).await;
        let stream = stream.context("the connection took more than 30 s")??;
        let (saying, says) = mpsc::channel(SAYING_MAX);
        let task = tokio::spawn(drive(stream, says, conn, ears));
        Ok(Self { saying, task })
    }

    /// Says something.
    pub(super) async fn say(&self, frame: &Value) -> Result<()> {
        self.saying.send(frame.to_string()).await.ok().context("the cloud has closed the connection")
    }

    /// Says something without waiting for room.
    pub(super) fn try_say(&self, frame: &Value) -> Result<()> {
        match self.saying.try_send(frame.to_string()) {
            Err(mpsc::error::TrySendError::Full(_)) => {
                bail!("the cloud does not read: {SAYING_MAX} frames wait")
            }
            // The end of the connection is heard as such.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
        }
    }
}

/// The acknowledgement of a frame (reference, rule 6).
pub(super) fn acknowledgement(frame: &Frame) -> Value {
    json!({
        "header": {"msg_id": new_id(), "parent_msg_id": frame.id(), "timestamp": unix_millis()},
        "route": {"source": frame.source(), "group": frame.group(), "operation": "response", "resource": frame.resource()},
        "content": "OK",
    })
}

/// A new message id.
pub(super) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

type Stream = WebSocketStream<TlsStream<TcpStream>>;

async fn upgrade(address: &str, node: &str, identity: &Identity) -> Result<Stream> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).with_context(|| format!("{host} is no host"))?;
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot reach {address}"))?;
    stream.set_nodelay(true)?;
    let tls = TlsConnector::from(identity.client_tls()?.websocket()?);
    let stream = tls.connect(name, stream).await.with_context(|| format!("no TLS with {address}"))?;
    let project = "e632aba927ea4ac2b575ec1603d56f10";
    let mut request = format!("wss://{address}/{project}/{node}/events").into_client_request()?;
    let headers = request.headers_mut();
    headers.insert("node_id", node.parse()?);
    headers.insert("project_id", project.parse()?);
    headers.insert("ConnectionUse", "msg".parse()?);
    let (stream, _) =
        client_async(request, stream).await.with_context(|| format!("{address} refuses the upgrade"))?;
    Ok(stream)
}

async fn drive(mut stream: Stream, mut says: mpsc::Receiver<String>, conn: u64, ears: mpsc::Sender<Heard>) {
    let ended: Result<()> = async {
        loop {
            tokio::select! {
                text = says.recv() => match text {
                    Some(text) => stream.send(Message::text(text)).await?,
                    None => return Ok(()),
                },
                message = stream.next() => {
                    let bytes = match message.context("closed")?? {
                        Message::Text(text) => text.as_bytes().to_vec(),
                        Message::Binary(bytes) => bytes.to_vec(),
                        Message::Close(_) => bail!("closed"),
                        _ => continue,
                    };
                    let frame = serde_json::from_slice(&bytes).context("a document that is no JSON")?;
                    if ears.send((conn, Some(Frame::new(frame)))).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
    .await;
    if let Err(error) = ended {
        tracing::debug!(conn, error = %format!("{error:#}"), "the connection has ended");
    }
    // Fails only when the run is over.
    let _ = ears.send((conn, None)).await;
}
