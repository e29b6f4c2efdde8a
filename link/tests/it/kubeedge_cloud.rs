//! A cloud of dialect `kubeedge` that is not ours.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tombolo_link::client::{Choice, Target, connect_documents};
use tombolo_link::{DocumentEvent, tls};
use tombolo_proto::NodeId;

use crate::pki::Ca;
use crate::world::soon;

/// An unmasked text frame, as servers send them (RFC 6455, section 5.2).
const FRAME: &[u8] = b"\x81\x02{}";

/// Accepts one upgrade and writes a frame together with the answer.
async fn eager(listener: TcpListener, acceptor: TlsAcceptor) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufStream::new(acceptor.accept(stream).await.unwrap());
    let mut key = String::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("sec-websocket-key") => {
                value.clone_into(&mut key);
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let accept = derive_accept_key(key.as_bytes());
    let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    let answer = format!("{head}Sec-WebSocket-Accept: {accept}\r\n\r\n");
    stream.write_all(&[answer.as_bytes(), FRAME].concat()).await.unwrap();
    stream.flush().await.unwrap();
    // Stays until the edge disconnects.
    let _ = stream.read(&mut [0]).await;
}

#[tokio::test]
async fn data_arriving_with_the_upgrade_answer_is_read() {
    let ca = Ca::new("ours");
    let config = ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(ca.server_tls().certificate_resolver());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let cloud = tokio::spawn(eager(listener, TlsAcceptor::from(Arc::new(config))));
    let host = "127.0.0.1".to_owned();
    let target = Target { host, websocket_port: port, quic_port: port, choice: Choice::WebSocket };
    let node = NodeId::parse("edge-1").unwrap();
    let mut link =
        soon("the upgrade", connect_documents(&target, &node, &ca.client_tls("edge-1"))).await.unwrap();
    match soon("the document", link.next()).await {
        DocumentEvent::Document(document) => assert_eq!(&document[..], b"{}"),
        other => panic!("{other:?}"),
    }
    drop(link);
    soon("the cloud's end", cloud).await.unwrap();
}
