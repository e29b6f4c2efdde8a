//! Peers that violate the protocol.

use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::{SinkExt, StreamExt};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::Message;
use tombolo_link::{Link, LinkError};
use tombolo_proto::frame::GoodbyeReason;
use tombolo_proto::package::{Header, Package, PackageError};
use tombolo_proto::{Frame, Lane, codec};

use crate::pki::Ca;
use crate::upgrades::{Bare, OURS};
use crate::world::{Hub, ending, large};

struct Socket {
    client: tokio_tungstenite::WebSocketStream<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>,
    link: Link,
    _hub: Hub,
}

async fn websocket() -> Socket {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let client = Bare::default().websocket(&ca, hub.websocket, &[OURS]).await.unwrap();
    let link = hub.accept().await.link;
    Socket { client, link, _hub: hub }
}

fn package(lane: Lane, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Header { lane, more, len: u32::try_from(payload.len()).unwrap() }.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_messages_end_a_websocket_link_with_the_reason() {
    let huge = Header { lane: Lane::Control, more: false, len: u32::MAX }.encode().to_vec();
    let cases: [(Message, &str); 7] = [
        (Message::binary(vec![0xff; 100]), "speaks another protocol"),
        (Message::binary(Vec::new()), "WebSocket message of 0 bytes"),
        (Message::binary(huge), "exceeds the limit"),
        (Message::binary(package(Lane::Bulk, true, b"")), "empty piece"),
        (Message::binary(package(Lane::Control, false, &[0xff; 40])), "undecodable frame in lane Control"),
        (Message::text("{}"), "received a text message"),
        (Message::binary(vec![0; 17 * 1024]), "exceeds the limit"),
    ];
    for (message, expected) in cases {
        let mut socket = websocket().await;
        socket.client.send(message).await.unwrap();
        let error = ending(&mut socket.link).await.to_string();
        assert!(error.contains(expected), "{error} lacks {expected}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_frame_that_declares_4_gib_is_refused_before_its_bytes() {
    let mut socket = websocket().await;
    // FIN and binary; masked with a 64-bit length of 4 GiB; the mask. No payload follows.
    let mut header = vec![0x82, 0xff];
    header.extend_from_slice(&(4_u64 << 30).to_be_bytes());
    header.extend_from_slice(&[0; 4]);
    socket.client.get_mut().write_all(&header).await.unwrap();
    socket.client.get_mut().flush().await.unwrap();
    let error = ending(&mut socket.link).await;
    assert!(
        matches!(&error, LinkError::Package(PackageError::TooLarge { len, .. }) if *len == 4 << 30),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn violating_peer_still_gets_a_goodbye() {
    let mut socket = websocket().await;
    socket.client.send(Message::binary(vec![0xff; 100])).await.unwrap();
    let goodbye = ending(&mut socket.link).await.goodbye().expect("the link ended without a goodbye");
    assert!(socket.link.can_send(Lane::Control));
    socket.link.send(Lane::Control, Frame::Goodbye(goodbye.clone())).unwrap();
    let closing = tokio::spawn(socket.link.close(std::time::Duration::from_secs(5)));
    let Some(Ok(Message::Binary(answer))) = socket.client.next().await else { panic!("no answer") };
    let package = Package::parse(&answer).unwrap();
    assert_eq!(codec::decode(package.payload).unwrap(), Frame::Goodbye(goodbye.clone()));
    assert_eq!(goodbye.reason, GoodbyeReason::ProtocolError);
    assert!(goodbye.message.contains("speaks another protocol"), "{}", goodbye.message);
    drop(socket.client);
    closing.await.unwrap();

    let mut socket = websocket().await;
    drop(socket.client);
    assert_eq!(ending(&mut socket.link).await.goodbye(), None, "a closed connection needs no goodbye");
    assert!(!socket.link.can_send(Lane::Control));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_instead_of_websocket_frames() {
    let mut socket = websocket().await;
    socket.client.get_mut().write_all(&[0xff; 64]).await.unwrap();
    socket.client.get_mut().flush().await.unwrap();
    let error = ending(&mut socket.link).await;
    assert!(matches!(error, LinkError::WebSocket(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_that_ends_inside_a_frame() {
    let frame = codec::encode(&large(1, 1000), false);
    let piece = package(Lane::Bulk, true, &frame[..500]);

    let mut socket = websocket().await;
    socket.client.send(Message::binary(piece.clone())).await.unwrap();
    socket.client.close(None).await.unwrap();
    let error = ending(&mut socket.link).await;
    assert!(matches!(error, LinkError::Truncated(Lane::Bulk)), "{error:?}");

    let mut socket = websocket().await;
    socket.client.send(Message::binary(piece)).await.unwrap();
    drop(socket.client);
    let error = ending(&mut socket.link).await;
    assert!(matches!(error, LinkError::Io(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_instead_of_tls_is_counted_and_dropped() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let mut stream = tokio::net::TcpStream::connect(hub.websocket).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    datagrams.send_to(&[0xc0; 1200], hub.quic).unwrap();
    for choice in crate::world::BOTH {
        let _link = hub.dial(ca.client_tls("edge-1"), choice).await.unwrap();
        hub.accept().await;
    }
    let stats = hub.incoming.stats();
    crate::world::soon("the count", async {
        while stats.failed() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

struct Quic {
    lanes: Vec<(SendStream, RecvStream)>,
    connection: Connection,
    link: Link,
    _hub: Hub,
    _endpoint: Endpoint,
}

async fn quic() -> Quic {
    let ca = Ca::new("ours");
    let mut hub = Hub::start(&ca.server_tls()).await;
    let config = Bare { alpn: vec!["tombolo/1"], ..Bare::default() }.config(&ca);
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()));
    let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let connection = endpoint.connect_with(config, hub.quic, "127.0.0.1").unwrap().await.unwrap();
    let mut lanes = Vec::new();
    for lane in Lane::ALL {
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(&package(lane, false, b"")).await.unwrap();
        lanes.push((send, receive));
    }
    let link = hub.accept().await.link;
    Quic { lanes, connection, link, _hub: hub, _endpoint: endpoint }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_end_a_quic_link_with_the_reason() {
    let huge = Header { lane: Lane::Bulk, more: false, len: u32::MAX }.encode().to_vec();
    let cases: [(Lane, Vec<u8>, &str); 5] = [
        (Lane::Control, vec![0xff; 100], "speaks another protocol"),
        (Lane::Bulk, huge, "exceeds the limit"),
        (Lane::Delivery, package(Lane::Bulk, false, b"x"), "arrived on the stream of lane Delivery"),
        (Lane::Control, package(Lane::Control, false, &[0xff; 40]), "undecodable frame in lane Control"),
        (Lane::Control, package(Lane::Control, false, b"").repeat(5), "empty piece"),
    ];
    for (lane, bytes, expected) in cases {
        let mut quic = quic().await;
        quic.lanes[lane.index()].0.write_all(&bytes).await.unwrap();
        let error = ending(&mut quic.link).await.to_string();
        assert!(error.contains(expected), "{error} lacks {expected}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quic_stream_that_ends_inside_a_package_or_a_frame() {
    let frame = codec::encode(&large(1, 1000), false);
    let whole = package(Lane::Bulk, false, &frame);
    let piece = package(Lane::Bulk, true, &frame[..500]);
    for bytes in [&whole[..300], &piece[..]] {
        let mut quic = quic().await;
        quic.lanes[Lane::Bulk.index()].0.write_all(bytes).await.unwrap();
        for (send, _) in &mut quic.lanes {
            send.finish().unwrap();
        }
        let error = ending(&mut quic.link).await;
        assert!(matches!(error, LinkError::Truncated(Lane::Bulk)), "{error:?}");
    }

    let mut quic = quic().await;
    quic.connection.close(77_u32.into(), b"gone");
    let error = ending(&mut quic.link).await;
    assert!(matches!(error, LinkError::Quic(_)), "{error:?}");
}

/// The unfinished data of an edge in all lanes together is bounded, over both transports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_frames_are_bounded() {
    let mut socket = websocket().await;
    let piece = vec![7; 16 * 1024];
    let sending = async {
        // Eleven times the limit; the link ends long before.
        for number in 0..3 * 1024_usize {
            let lane = Lane::ALL[number % 3];
            if socket.client.send(Message::binary(package(lane, true, &piece))).await.is_err() {
                return;
            }
        }
    };
    let over_websocket = tokio::select! {
        error = ending(&mut socket.link) => error,
        () = async { sending.await; std::future::pending().await } => unreachable!("never done"),
    };
    let mut quic = quic().await;
    let sending = async {
        for number in 0..3 * 1024_usize {
            let lane = Lane::ALL[number % 3];
            if quic.lanes[lane.index()].0.write_all(&package(lane, true, &piece)).await.is_err() {
                return;
            }
        }
    };
    let over_quic = tokio::select! {
        error = ending(&mut quic.link) => error,
        () = async { sending.await; std::future::pending().await } => unreachable!("never done"),
    };
    let max = tombolo_proto::limits::EDGE_FRAME_LEN_MAX;
    for error in [over_websocket, over_quic] {
        assert!(
            matches!(&error, LinkError::Package(PackageError::TooLarge { max: limit, .. }) if *limit == max),
            "{error:?}"
        );
        assert!(error.goodbye().is_some_and(|goodbye| goodbye.message.contains("exceeds the limit")));
    }
}

/// Memory for pieces counts against the node's share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_beyond_the_share_of_a_node_end_its_link() {
    let mut socket = websocket().await;
    let share = tombolo_runtime::Budget::new(1024 * 1024).share(64 * 1024);
    socket.link.set_share(&share);
    for _ in 0..5 {
        let piece = package(Lane::Bulk, true, &[7; 16 * 1024]);
        socket.client.send(Message::binary(piece)).await.unwrap();
    }
    let error = ending(&mut socket.link).await;
    assert!(matches!(&error, LinkError::Overloaded(_)), "{error:?}");
    let goodbye = error.goodbye().expect("the link ended without a goodbye");
    assert_eq!(goodbye.reason, GoodbyeReason::Overloaded);
    drop(socket);
    assert_eq!(share.used(), 0);
}

/// One frame arrives byte by byte, and one answer is never read: both links end when there is no progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_sends_or_reads_too_slowly_is_disconnected() {
    use tokio::time::Instant;
    use tombolo_link::PROGRESS_INTERVAL;

    let mut socket = websocket().await;
    socket.client.send(Message::binary(package(Lane::Bulk, true, b"x"))).await.unwrap();
    crate::world::soon("the piece", async {
        while socket.link.watch_progress(Instant::now()).is_none() {
            let wait = std::time::Duration::from_millis(10);
            let _ = tokio::time::timeout(wait, socket.link.next()).await;
        }
    })
    .await;
    assert!(socket.link.check_progress(Instant::now()).is_none(), "the piece has just begun");
    let later = Instant::now() + PROGRESS_INTERVAL;
    let error = socket.link.check_progress(later).expect("stalled");
    assert_eq!(error.goodbye().expect("the link ended without a goodbye").reason, GoodbyeReason::Timeout);

    let mut socket = websocket().await;
    // More than both kernels can buffer.
    for id in 0..40 {
        while !socket.link.can_send(Lane::Bulk) {
            let wait = std::time::Duration::from_millis(300);
            if tokio::time::timeout(wait, socket.link.next()).await.is_err() {
                break;
            }
        }
        if !socket.link.can_send(Lane::Bulk) {
            break;
        }
        socket.link.send(Lane::Bulk, large(id, 3 * 1024 * 1024)).unwrap();
    }
    assert!(socket.link.watch_progress(Instant::now()).is_some(), "the link must wait");
    let error = socket.link.check_progress(Instant::now() + 2 * PROGRESS_INTERVAL).expect("stalled");
    assert!(error.to_string().contains("does not read"), "{error}");
}
