//! QUIC first, and WebSocket where UDP is blocked.

use std::collections::BTreeSet;

use tombolo_link::client::{Choice, Connector, QuicSocket};
use tombolo_link::{ConnectError, Transport};

use crate::pki::Ca;
use crate::world::{Hub, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_is_preferred() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    // A lost packet on a busy machine can let WebSocket win, so one failure proves nothing.
    for last in [false, true] {
        let link = hub.dial(ca.client_tls("edge-1"), Choice::Auto).await.unwrap();
        assert_eq!(hub.accept().await.transport, link.peer().transport);
        if last || link.peer().transport == Transport::Quic {
            assert_eq!(link.peer().transport, Transport::Quic);
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_datagrams_fall_back_to_websocket_and_are_remembered() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let swallow = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut target = hub.target(Choice::Auto);
    target.quic_port = swallow.local_addr().unwrap().port();
    let mut connector = Connector::new(target, ca.client_tls("edge-1"));

    let link = soon("the fallback", connector.connect()).await.unwrap();
    assert_eq!(link.peer().transport, Transport::WebSocket);
    hub.accept().await;
    assert_eq!(attempts(&swallow).len(), 1, "QUIC was tried first");

    let link = soon("the second link", connector.connect()).await.unwrap();
    assert_eq!(link.peer().transport, Transport::WebSocket);
    hub.accept().await;
    // Late packets of the first attempt may still arrive; a second attempt would have another connection id.
    assert!(attempts(&swallow).len() <= 1, "a blocked path is not tried again at once");
}

/// Destination connection ids of the queued QUIC packets with a long header (RFC 9000, 17.2).
fn attempts(socket: &tokio::net::UdpSocket) -> BTreeSet<Vec<u8>> {
    let mut packet = [0; 2048];
    let mut ids = BTreeSet::new();
    while let Ok(len) = socket.try_recv(&mut packet) {
        if len > 6 && packet[0] & 0x80 != 0 {
            ids.insert(packet[6..6 + usize::from(packet[5])].to_vec());
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_udp_port_falls_back_to_websocket() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let mut target = hub.target(Choice::Auto);
    target.quic_port = {
        let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        gone.local_addr().unwrap().port()
    };
    let mut connector = Connector::new(target, ca.client_tls("edge-1"));
    let link = soon("the fallback", connector.connect()).await.unwrap();
    assert_eq!(link.peer().transport, Transport::WebSocket);
    hub.accept().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_connection_errors_are_reported() {
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let hub = Hub::start(&theirs.server_tls()).await;
    let error = hub.dial(ours.client_tls("edge-1"), Choice::Auto).await.unwrap_err();
    let ConnectError::Both { quic, websocket } = error else { panic!("{error:?}") };
    assert!(matches!(*quic, ConnectError::Tls { .. }), "{quic:?}");
    assert!(matches!(*websocket, ConnectError::Tls { .. }), "{websocket:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_edges_share_one_socket() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let socket = QuicSocket::bind().unwrap();
    let mut links = Vec::new();
    for number in 0..20 {
        let tls = ca.client_tls(&format!("edge-{number}"));
        let mut connector = Connector::new(hub.target(Choice::Quic), tls).with_socket(socket.clone());
        links.push(soon("a link", connector.connect()).await.unwrap());
        assert_eq!(hub.accept().await.node.as_str(), format!("edge-{number}"));
    }
    assert_eq!(hub.incoming.stats().accepted(Transport::Quic), 20);
}
