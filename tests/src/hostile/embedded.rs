//! Attacks on the port of the embedded API server, by strangers and by clients that have nothing but a ServiceAccount.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::Empty;
use hyper::Request;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::attacks::Attack;
use super::peer::{Heard, Hub, Took};
use super::ports::handshake;
use super::strangers::{HALF, dial, open, slow};

/// Every attack, in the order of the table.
pub(crate) const ALL: [Attack; 6] = [
    ("256 silent connections a second, API", |hub, limit| Box::pin(open(hub.api.port, limit, b""))),
    ("256 half TLS handshakes a second, API", |hub, limit| Box::pin(open(hub.api.port, limit, HALF))),
    ("200 slow headers, API", |hub, limit| {
        let head = b"GET /version HTTP/1.1\r\nHost: api\r\nX-Slow: ";
        Box::pin(slow(hub.api.port, Some(&hub.api.tls), limit, b"", head))
    }),
    ("200 objects a byte at a time, API", |hub, limit| Box::pin(slow_objects(hub, limit))),
    ("4000 answers over HTTP/2 without a window, stranger, API", |hub, limit| {
        Box::pin(no_window(hub, limit, "/version", None))
    }),
    ("4000 answers over HTTP/2 without a window, ServiceAccount, API", |hub, limit| {
        Box::pin(no_window(hub, limit, "/openapi/v2", Some(&hub.api.hostile)))
    }),
];

async fn slow_objects(hub: &Hub, limit: Duration) -> Result<Took> {
    let head = format!(
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1\r\nHost: api\r\n\
         Authorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n",
        hub.api.hostile
    );
    slow(hub.api.port, Some(&hub.api.tls), limit, head.as_bytes(), b"{\"x\":\"").await
}

/// Number of connections, and requests on each of them.
const CONNECTIONS: usize = 40;
const QUESTIONS: usize = 100;

/// Sends requests on streams whose windows stay closed from the start: no byte of an answer's body can leave.
async fn no_window(hub: &Hub, limit: Duration, path: &str, token: Option<&str>) -> Result<Took> {
    let mut tls = rustls::ClientConfig::clone(&hub.api.tls);
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let tls = Arc::new(tls);
    let (end, mut heard, mut asked) = (Instant::now() + limit, Heard::default(), 0);
    // The answers are kept, and their streams with them.
    let (mut running, mut senders, mut kept) = (JoinSet::new(), Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let stream = handshake(dial(hub.api.port).await?, Some(&tls)).await.context("handshake")?;
        let mut builder = Builder::new(TokioExecutor::new());
        let handshake = builder.initial_stream_window_size(0).handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.context("HTTP/2")?;
        running.spawn(connection);
        let mut answers = Vec::new();
        for _ in 0..QUESTIONS {
            let mut request = Request::get(format!("https://127.0.0.1{path}"));
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            answers.push(sender.send_request(request.body(Empty::<Bytes>::new())?));
            asked += 1;
        }
        let answers = tokio::time::timeout(Duration::from_secs(2), join_all(answers)).await;
        for answer in answers.unwrap_or_default() {
            match answer {
                Ok(answer) => {
                    heard.count(format!("answer {}", answer.status().as_u16()));
                    kept.push(answer);
                }
                Err(_) => heard.count("no answer"),
            }
        }
        senders.push(sender);
    }
    tokio::time::sleep_until(end).await;
    let closed = senders.iter().filter(|sender| sender.is_closed()).count();
    let took = Took::place(format!("{}; {closed} connections closed", heard.text()));
    // As many as there are slots for answers.
    Ok(took.least("question", asked, 1024).least("head of an answer", heard.times("answer"), 1024))
}
