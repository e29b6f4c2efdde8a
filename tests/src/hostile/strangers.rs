//! Attacks without a certificate, or before the hub has checked one.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::SinkExt as _;
use futures::future::join_all;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tombolo_link::SUBPROTOCOL;
use tombolo_proto::Lane;
use tombolo_proto::package::Header;
use tombolo_tests::raw::first_flights;

use super::attacks::Attack;
use super::peer::{HOSTILE_BARE, Hub, Took};
use super::ports::{Stream, handshake};

/// Source address of strangers; honest nodes are at 127.0.0.1.
const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// Connections that a stranger opens in a second.
const A_SECOND: u32 = 256;

/// The first bytes of a record that would hold a ClientHello.
pub(crate) const HALF: &[u8] = &[22, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3];

/// The head of a request for the join port and for the hub's own port. Its last header never ends.
const HEAD: &[u8] = b"GET /ca.crt HTTP/1.1\r\nHost: hub\r\nX-Slow: ";

/// Every attack, in the order of the table.
pub(crate) const ALL: [Attack; 9] = [
    ("256 silent connections a second, WebSocket", |hub, limit| Box::pin(open(hub.ports[0], limit, b""))),
    ("256 silent connections a second, join", |hub, limit| Box::pin(open(hub.ports[2], limit, b""))),
    ("256 silent connections a second, admin", |hub, limit| Box::pin(open(hub.admin, limit, b""))),
    ("256 half TLS handshakes a second, WebSocket", |hub, limit| Box::pin(open(hub.ports[0], limit, HALF))),
    ("256 half TLS handshakes a second, join", |hub, limit| Box::pin(open(hub.ports[2], limit, HALF))),
    ("256 half QUIC handshakes a second", |hub, limit| Box::pin(half_quic(hub, hub.ports[1], limit))),
    ("200 slow headers, join", |hub, limit| Box::pin(slow_headers(hub, hub.ports[2], limit))),
    ("200 slow upgrades, WebSocket", |hub, limit| Box::pin(slow_headers(hub, hub.ports[0], limit))),
    ("200 slow headers, admin", |hub, limit| Box::pin(slow(hub.admin, None, limit, b"", HEAD))),
];

/// The minimum count for an attack with so many events per second; the rest is a margin for a busy machine.
fn nearly(limit: Duration) -> u64 {
    limit.as_secs() * u64::from(A_SECOND) * 9 / 10
}

pub(crate) async fn dial(port: u16) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((SOURCE, 0).into())?;
    let connecting = socket.connect((Ipv4Addr::LOCALHOST, port).into());
    tokio::time::timeout(Duration::from_secs(2), connecting).await?
}

/// Opens connections, sends these bytes on each, and keeps them open.
pub(crate) async fn open(port: u16, limit: Duration, say: &[u8]) -> Result<Took> {
    let (begin, mut held) = (Instant::now(), Vec::new());
    let (mut opened, mut failed) = (0, 0);
    while begin.elapsed() < limit {
        match dial(port).await {
            Ok(mut stream) => {
                opened += 1;
                let _ = stream.write_all(say).await;
                held.push(stream);
            }
            Err(_) => failed += 1,
        }
        tokio::time::sleep_until(begin + Duration::from_secs(1) * (opened + failed) / A_SECOND).await;
    }
    let closed = held.iter().filter(|stream| is_closed(stream)).count();
    let took = Took::place(format!("{failed} not opened, {closed} closed by the hub"));
    Ok(took.least("connection", u64::from(opened), nearly(limit)))
}

fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    !matches!(stream.try_read(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// First flights of clients that ignore all answers and repeat the flight once after a second, as clients do. They are
/// created in advance: creating them during the attack would take processor time from the honest nodes.
async fn half_quic(hub: &Hub, port: u16, limit: Duration) -> Result<Took> {
    let (tls, count) = (hub.bare.clone(), usize::try_from(limit.as_secs() * u64::from(A_SECOND))?);
    let flights = tokio::task::spawn_blocking(move || first_flights(tls, port, count)).await??;
    let socket = UdpSocket::bind((SOURCE, 0)).await?;
    socket.connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (begin, mut sent, mut answers, mut answer) = (Instant::now(), 0_u64, 0_u64, [0; 2048]);
    let again = std::iter::repeat_n(None, usize::try_from(A_SECOND)?).chain(flights.iter().map(Some));
    for (number, (first, again)) in (1..).zip(flights.iter().zip(again)) {
        for datagram in again.into_iter().chain([first]).flatten() {
            sent += u64::from(socket.send(datagram).await.is_ok());
        }
        while socket.try_recv(&mut answer).is_ok() {
            answers += 1;
        }
        tokio::time::sleep_until(begin + Duration::from_secs(1) * number / A_SECOND).await;
    }
    let took = Took::place(String::new()).least("datagram", sent, u64::try_from(flights.len())?);
    // The hub has processed at least some of them.
    Ok(took.least("answer", answers, 1))
}

async fn slow_headers(hub: &Hub, port: u16, limit: Duration) -> Result<Took> {
    slow(port, Some(&Arc::new(hub.bare.clone())), limit, b"", HEAD).await
}

/// Completes the handshake, sends some bytes at once and then single bytes, and repeats the last byte forever.
pub(crate) async fn slow(
    port: u16,
    tls: Option<&Arc<rustls::ClientConfig>>,
    limit: Duration,
    at_once: &[u8],
    slowly: &[u8],
) -> Result<Took> {
    const CONNECTIONS: u64 = 200;
    let begin = Instant::now();
    let opening = (0..CONNECTIONS).map(|_| async {
        let opening = async {
            let mut stream = handshake(dial(port).await?, tls).await?;
            stream.write_all(at_once).await?;
            anyhow::Ok(stream)
        };
        tokio::time::timeout(limit, opening).await.ok()?.ok()
    });
    let mut held: Vec<Stream> = join_all(opening).await.into_iter().flatten().collect();
    let opened = held.len();
    for at in 0..usize::MAX {
        if begin.elapsed() >= limit + Duration::from_secs(12) {
            break;
        }
        let byte = [slowly.get(at).copied().unwrap_or(b'x')];
        let mut left = Vec::new();
        for mut stream in held {
            if stream.write_all(&byte).await.is_ok() && stream.flush().await.is_ok() {
                left.push(stream);
            }
        }
        held = left;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let took = Took::place(format!("{CONNECTIONS} tried, {} closed by the hub", opened - held.len()));
    // About as many handshakes as the hub allows one address at a time.
    Ok(took.least("connection opened", u64::try_from(opened)?, 90))
}

/// A WebSocket of the hostile node that can send anything.
pub(crate) struct Raw(WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>>);

pub(crate) async fn raw_websocket(hub: &Hub) -> Result<Raw> {
    let connector = tokio_rustls::TlsConnector::from(Arc::new(hub.bare.clone()));
    let [port, ..] = hub.ports;
    let stream = connector.connect("127.0.0.1".try_into()?, dial(port).await?).await?;
    let mut request = format!("wss://127.0.0.1:{port}/").into_client_request()?;
    request.headers_mut().insert("sec-websocket-protocol", SUBPROTOCOL.parse()?);
    Ok(Raw(tokio_tungstenite::client_async(request, stream).await?.0))
}

/// A WebSocket of the hostile node as a KubeEdge edge opens it.
pub(crate) async fn kubeedge_websocket(hub: &Hub) -> Result<Raw> {
    let connector = tokio_rustls::TlsConnector::from(Arc::new(hub.bare.clone()));
    let [port, ..] = hub.ports;
    let stream = connector.connect("127.0.0.1".try_into()?, dial(port).await?).await?;
    let mut request = format!("wss://127.0.0.1:{port}/p/{HOSTILE_BARE}/events").into_client_request()?;
    request.headers_mut().insert("node_id", HOSTILE_BARE.parse()?);
    request.headers_mut().insert("connectionuse", "msg".parse()?);
    Ok(Raw(tokio_tungstenite::client_async(request, stream).await?.0))
}

impl Raw {
    /// Sends a complete document.
    pub(crate) async fn document(&mut self, text: String) -> Result<()> {
        Ok(self.0.send(Message::text(text)).await?)
    }

    /// Sends a part of a document that is not finished.
    pub(crate) async fn fragment(&mut self, first: bool, bytes: &[u8]) -> Result<()> {
        let code = OpCode::Data(if first { Data::Text } else { Data::Continue });
        Ok(self.0.send(Message::Frame(Frame::message(bytes.to_vec(), code, false))).await?)
    }

    /// Sends a piece of a frame that is not finished.
    pub(crate) async fn piece(&mut self, lane: Lane, bytes: &[u8]) -> Result<()> {
        let header = Header { lane, more: true, len: u32::try_from(bytes.len())? }.encode();
        Ok(self.0.send(Message::binary([&header[..], bytes].concat())).await?)
    }
}
