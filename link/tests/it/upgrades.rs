//! How the WebSocket listener handles upgrade requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, ProtocolVersion, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use tombolo_link::server::{Arrival, Limits};
use tombolo_link::{DocumentEvent, DocumentLink, LinkError, SUBPROTOCOL, tls};
use tombolo_proto::message::{Content, Group, MessageId, Operation, ResourcePath, Route, Source};
use tombolo_proto::session::kubeedge::Outgoing;

use crate::pki::Ca;
use crate::world::{Hub, PATIENCE, soon};

/// A client made of the bare libraries, as a foreign peer would be.
pub(crate) struct Bare {
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    pub(crate) alpn: Vec<&'static str>,
}

impl Default for Bare {
    fn default() -> Self {
        Self { versions: vec![&rustls::version::TLS13], alpn: Vec::new() }
    }
}

impl Bare {
    pub(crate) fn config(&self, ca: &Ca) -> ClientConfig {
        let (chain, key) = ca.node_pem("edge-1");
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&self.versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone))
            .with_client_auth_cert(chain, key)
            .unwrap();
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    pub(crate) async fn tls(&self, ca: &Ca, hub: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(hub).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(self.config(ca))).connect(name, stream).await
    }

    pub(crate) async fn websocket(
        &self,
        ca: &Ca,
        hub: SocketAddr,
        headers: &[(&'static str, &'static str)],
    ) -> Result<WebSocketStream<TlsStream<TcpStream>>, WsError> {
        let stream = self.tls(ca, hub).await?;
        let mut request = format!("wss://{hub}/e632aba927ea4ac2b575ec1603d56f10/edge-1/events")
            .into_client_request()
            .unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        Ok(client_async(request, stream).await?.0)
    }
}

pub(crate) const OURS: (&str, &str) = ("sec-websocket-protocol", SUBPROTOCOL);

/// Accepts any hub certificate, which these tests do not check.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        tls::provider().signature_verification_algorithms.supported_schemes()
    }
}

async fn status(ca: &Ca, hub: &Hub, bare: Bare, headers: &[(&'static str, &'static str)]) -> (u16, String) {
    match soon("the upgrade", bare.websocket(ca, hub.websocket, headers)).await {
        Err(WsError::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            (response.status().as_u16(), String::from_utf8(body).unwrap())
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_is_never_chosen() {
    let ca = Ca::new("ours");
    let hub = Hub::start(&ca.server_tls()).await;
    let both = Bare { alpn: vec!["h2", "http/1.1"], ..Bare::default() };
    let stream = both.tls(&ca, hub.websocket).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let only = Bare { alpn: vec!["h2"], ..Bare::default() };
    let error = only.tls(&ca, hub.websocket).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("applicationprotocol"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_without_the_subprotocol_is_refused() {
    let ca = Ca::new("ours");
    let hub = Hub::start(&ca.server_tls()).await;
    let (code, body) = status(&ca, &hub, Bare::default(), &[]).await;
    assert_eq!(code, 400);
    assert!(body.contains("tombolo.v1"), "{body}");
    let (code, _) = status(&ca, &hub, Bare::default(), &[("sec-websocket-protocol", "tombolo.v9")]).await;
    assert_eq!(code, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubeedge_edges_are_served_over_both_versions_of_tls() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start_with(&ca.server_tls(), true, Limits::default()).await;
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let bare = Bare { versions: vec![version], ..Bare::default() };
        let mut client = bare.websocket(&ca, hub.websocket, &KUBEEDGE).await.unwrap();
        let mut link = kubeedge(&mut hub).await;

        let text = "x".repeat(200_000);
        client.send(Message::text(&text)).await.unwrap();
        let DocumentEvent::Document(read) = soon("text", link.next()).await else { panic!("no document") };
        assert_eq!(read, text.as_bytes());
        client.send(Message::Ping("p".into())).await.unwrap();
        assert!(matches!(soon("a ping", link.next()).await, DocumentEvent::Heard));

        let documents = [document(1, "small"), document(2, &text)];
        let expected = documents.each_ref().map(Outgoing::to_bytes);
        for document in documents {
            link.send(document).unwrap();
        }
        assert!(!link.can_send(), "the queue must be bounded");
        let reading = tokio::spawn(async move {
            let mut texts = Vec::new();
            while let Some(Ok(message)) = soon("a message", client.next()).await {
                texts.extend(message.is_text().then(|| message.into_data()));
            }
            texts
        });
        let mut transmitted = 0;
        while transmitted < 2 {
            match soon("the socket", link.next()).await {
                DocumentEvent::Transmitted(number) => transmitted = number,
                other => panic!("{other:?}"),
            }
        }
        assert!(link.can_send());
        link.close(Duration::from_secs(5)).await;
        assert_eq!(reading.await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn document_counts_as_sent_once_a_slow_peer_has_read_it() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start_with(&ca.server_tls(), true, Limits::default()).await;
    let mut client = Bare::default().websocket(&ca, hub.websocket, &KUBEEDGE).await.unwrap();
    let mut link = kubeedge(&mut hub).await;
    // More than the buffers of both kernels hold.
    link.send(document(1, &"x".repeat(16_000_000))).unwrap();
    // The link works in the meantime: something that the peer sends now arrives first.
    client.send(Message::text("later")).await.unwrap();
    loop {
        match soon("the peer's document", link.next()).await {
            DocumentEvent::Document(_) => break,
            DocumentEvent::Heard => {}
            other => panic!("{other:?}"),
        }
    }
    let reading = tokio::spawn(async move { client.next().await.unwrap().unwrap().len() });
    assert!(matches!(soon("the socket", link.next()).await, DocumentEvent::Transmitted(1)));
    assert!(reading.await.unwrap() > 16_000_000);
}

/// Memory for an incomplete document counts against the node's share, and pings between its frames do not hide it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_document_counts_towards_the_share_of_its_node() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start_with(&ca.server_tls(), true, Limits::default()).await;
    let mut client = Bare::default().websocket(&ca, hub.websocket, &KUBEEDGE).await.unwrap();
    let mut link = kubeedge(&mut hub).await;
    let share = tombolo_runtime::Budget::new(usize::MAX).share(600 * 1024);
    link.set_share(&share);
    let text = "x".repeat(200 * 1024);
    for _ in 0..4 {
        client.send(Message::text(&text)).await.unwrap();
        let DocumentEvent::Document(read) = soon("text", link.next()).await else { panic!("no document") };
        assert_eq!((read.len(), share.used()), (text.len(), 0), "a complete document belongs to its reader");
    }
    let sending = tokio::spawn(async move {
        for number in 0..1000 {
            let code = if number == 0 { Data::Text } else { Data::Continue };
            let frame = Frame::message(vec![b'x'; 4096], OpCode::Data(code), false);
            if client.send(Message::Frame(frame)).await.is_err()
                || client.send(Message::Ping("p".into())).await.is_err()
            {
                return;
            }
        }
    });
    let error = loop {
        match soon("the end", link.next()).await {
            DocumentEvent::Heard | DocumentEvent::Transmitted(_) => {}
            DocumentEvent::Closed(error) => break error,
            DocumentEvent::Document(_) => panic!("an unfinished document was delivered"),
        }
    };
    assert!(matches!(error, LinkError::Overloaded(_)), "{error:?}");
    drop(link);
    sending.await.unwrap();
    assert_eq!(share.used(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeedge_edge_with_another_name_is_refused_before_the_upgrade() {
    let ca = Ca::new("ours");
    let hub = Hub::start_with(&ca.server_tls(), true, Limits::default()).await;
    let (code, body) =
        status(&ca, &hub, Bare::default(), &[("node_id", "edge-2"), ("ConnectionUse", "msg")]).await;
    assert_eq!(code, 403);
    assert!(body.contains("edge-1") && body.contains("edge-2"), "{body}");
    let (code, body) = status(&ca, &hub, Bare::default(), &[("node_id", "edge-1")]).await;
    assert_eq!(code, 400);
    assert!(body.contains("ConnectionUse"), "{body}");
}

/// A replaced connection: only a process that is still alive answers on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_reader_of_a_link_answers_a_ping() {
    let ca = Ca::new("ours");
    let mut hub = Hub::start_with(&ca.server_tls(), true, Limits::default()).await;
    let (client, mut link) = talkative(&ca, &mut hub).await;
    let reading = tokio::spawn(read_all(client));
    assert!(link.is_read(PATIENCE).await);
    drop(link);
    soon("its end", reading).await.unwrap();

    // What the client has sent arrives before the end of its side.
    let (mut client, mut link) = talkative(&ca, &mut hub).await;
    client.get_mut().shutdown().await.unwrap();
    assert!(!link.is_read(PATIENCE).await, "the client has read nothing");

    let client = Bare::default().websocket(&ca, hub.websocket, &KUBEEDGE).await.unwrap();
    let mut link = kubeedge(&mut hub).await;
    drop(client);
    assert!(!link.is_read(PATIENCE).await, "the client has disconnected");
}

/// A client that has sent something of every form, but no answer to a ping, and has read nothing.
async fn talkative(ca: &Ca, hub: &mut Hub) -> (WebSocketStream<TlsStream<TcpStream>>, DocumentLink) {
    let mut client = Bare::default().websocket(ca, hub.websocket, &KUBEEDGE).await.unwrap();
    let link = kubeedge(hub).await;
    client.send(Message::text("something before")).await.unwrap();
    client.send(Message::Ping("a question".into())).await.unwrap();
    client.send(Message::Pong("something else".into())).await.unwrap();
    (client, link)
}

async fn read_all(mut client: WebSocketStream<TlsStream<TcpStream>>) {
    while client.next().await.is_some_and(|read| read.is_ok()) {}
}

const KUBEEDGE: [(&str, &str); 3] = [("node_id", "edge-1"), ("project_id", "p"), ("ConnectionUse", "msg")];

async fn kubeedge(hub: &mut Hub) -> DocumentLink {
    match soon("an arrival", hub.incoming.next()).await {
        Some(Arrival::KubeEdge(accepted)) => {
            assert_eq!(accepted.node.as_str(), "edge-1");
            accepted.link
        }
        other => panic!("expected a KubeEdge edge, got {other:?}"),
    }
}

fn document(number: u64, text: &str) -> Outgoing {
    let resource = ResourcePath::CaCertificate;
    let route = Route::new(Source::CloudHub, Group::Resource, Operation::Response, resource);
    let id = MessageId::parse("m").unwrap();
    Outgoing::message(number, &tombolo_proto::message::Message::new(id, 1, route, Content::text(text)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_dialect_needs_tls_13_even_beside_kubeedge_peers() {
    let ca = Ca::new("ours");
    let hub = Hub::start_with(&ca.server_tls(), true, Limits::default()).await;
    let old = || Bare { versions: vec![&rustls::version::TLS12], ..Bare::default() };
    let stream = old().tls(&ca, hub.websocket).await.unwrap();
    assert_eq!(stream.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_2));
    let (code, body) = status(&ca, &hub, old(), &[OURS]).await;
    assert_eq!(code, 426);
    assert!(body.contains("needs TLS 1.3"), "{body}");

    let strict = Hub::start(&ca.server_tls()).await;
    assert!(old().tls(&ca, strict.websocket).await.is_err(), "without KubeEdge peers there is no TLS 1.2");
}
