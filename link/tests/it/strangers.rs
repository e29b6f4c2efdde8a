//! Connections that never authenticate.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tombolo_link::client::Choice;
use tombolo_link::server::{CONNECTION_LIMITS, Limits};
use tombolo_runtime::connection_limiter::ConnectionLimits;
use tombolo_testkit::{Growth, alone};

use crate::pki::Ca;
use crate::world::{Hub, soon};

const FEW: ConnectionLimits =
    ConnectionLimits { waiting: 16, waiting_per_source: 8, working: 4, working_per_source: 2 };

fn limits(connection_limits: ConnectionLimits) -> Limits {
    Limits {
        handshake_timeout: Duration::from_secs(120),
        silence_timeout: Duration::from_secs(120),
        connection_limits,
        ..Limits::default()
    }
}

async fn from(source: [u8; 4], hub: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::from(source), 0).into()).unwrap();
    socket.connect(hub).await.unwrap()
}

async fn is_closed(stream: &mut TcpStream) {
    let mut byte = [0];
    let read = soon("the end of a silent connection", stream.read(&mut byte)).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

/// Connections that stay silent for two minutes occupy every slot of their source, and a node from the same address
/// still connects at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_lock_nobody_out() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start_with(&ca.server_tls(), false, limits(FEW)).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(from([127, 0, 0, 1], hub.websocket).await);
    }
    is_closed(&mut silent[0]).await;
    let _link = hub.dial(ca.client_tls("edge-1"), Choice::WebSocket).await.unwrap();
    hub.accept().await;
    let stats = hub.incoming.stats();
    assert!(stats.silent() >= 32, "{}", stats.silent());
    assert!(stats.strangers() <= 8, "{}", stats.strangers());
}

/// Unfinished handshakes occupy the slots of their own source, but not those of other sources.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_handshakes_leave_slots_for_other_sources() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start_with(&ca.server_tls(), false, limits(FEW)).await;
    let mut half = Vec::new();
    for _ in 0..20 {
        let mut stream = from([127, 0, 0, 66], hub.websocket).await;
        // The head of a record that would contain a ClientHello. A connection without a slot is closed.
        let _ = stream.write_all(&[22, 3, 1, 1, 0]).await;
        half.push(stream);
    }
    let _link = hub.dial(ca.client_tls("edge-1"), Choice::WebSocket).await.unwrap();
    hub.accept().await;
    let stats = hub.incoming.stats();
    assert!(stats.strangers() <= 10, "{}", stats.strangers());
    soon("the others of that source to be closed", async {
        // Refused, or closed before they have sent anything.
        while stats.crowded() + stats.silent() < 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Adds half handshakes from one address to the existing ones.
async fn more_half_handshakes(hub: &Hub, half: &mut Vec<TcpStream>, count: usize) {
    for _ in 0..count {
        let mut stream = from([127, 0, 0, 66], hub.websocket).await;
        stream.write_all(&[22, 3, 1, 1, 0]).await.unwrap();
        half.push(stream);
    }
    let stats = hub.incoming.stats();
    soon("all of them to be received", async {
        let working = half.len().min(CONNECTION_LIMITS.working_per_source);
        while (stats.strangers(), stats.handshakes()) != (half.len(), working) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// A connection that has sent little takes little memory, with and without a working slot.
#[test]
fn half_handshakes_take_little_memory() {
    if !alone(module_path!(), "half_handshakes_take_little_memory") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ca = Ca::new("ours");
        let hub = Hub::start_with(&ca.server_tls(), false, limits(CONNECTION_LIMITS)).await;
        let mut half = Vec::new();
        // The first use loads code.
        more_half_handshakes(&hub, &mut half, 8).await;
        for (what, count, bytes) in [
            ("with a working slot", CONNECTION_LIMITS.working_per_source - half.len(), 24 * 1024),
            ("that waits", 400, 4096),
        ] {
            let growth = Growth::begin();
            more_half_handshakes(&hub, &mut half, count).await;
            let grown = growth.most() / count;
            assert!(grown < bytes, "each one {what} takes {grown} bytes");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_silent_for_too_long_is_closed() {
    let ca = Ca::new("ours");
    let limits = Limits { silence_timeout: Duration::from_millis(200), ..Limits::default() };
    let hub = Hub::start_with(&ca.server_tls(), false, limits).await;
    is_closed(&mut from([127, 0, 0, 1], hub.websocket).await).await;
    assert_eq!(hub.incoming.stats().silent(), 1);
}

/// First packets whose senders read nothing: their state is bounded, and a node can still connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_quic_handshakes_leave_slots() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start_with(&ca.server_tls(), false, limits(CONNECTION_LIMITS)).await;
    // Forwards first flights but no answers: each handshake stays unfinished.
    let relay = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (address, quic) = (relay.local_addr().unwrap(), hub.quic);
    let passing = tokio::spawn(async move {
        let out = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 66), 0)).await.unwrap();
        let mut buffer = [0; 2048];
        while let Ok(len) = relay.recv(&mut buffer).await {
            let _ = out.send_to(&buffer[..len], quic).await;
        }
    });
    let tls = ca.client_tls("edge-2");
    let target = tombolo_link::client::Target {
        host: "127.0.0.1".to_owned(),
        websocket_port: 1,
        quic_port: address.port(),
        choice: Choice::Quic,
    };
    let dialling: Vec<_> =
        (0..100).map(|_| tokio::spawn(tombolo_link::client::connect(target.clone(), tls.clone()))).collect();
    let stats = hub.incoming.stats();
    soon("the slots for unvalidated addresses to be taken", async {
        while stats.strangers() < 32 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let _link = hub.dial(ca.client_tls("edge-1"), Choice::Quic).await.unwrap();
    assert_eq!(hub.accept().await.node.as_str(), "edge-1");
    assert!(stats.strangers() <= 32, "none of them has a validated address: {}", stats.strangers());
    dialling.iter().for_each(tokio::task::JoinHandle::abort);
    passing.abort();
}
