//! Peers of cloudcore made of the bare libraries: they can send what no real peer sends.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{SinkExt, StreamExt};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, RecvStream, SendStream};
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tombolo_link::{SUBPROTOCOL, tls};
use tombolo_proto::frame::Goodbye;
use tombolo_proto::package::{Header, Package, Reader};
use tombolo_proto::{Frame, Lane, codec};
use tombolo_testkit::wait_for_value;

use crate::world::{DEADLINE, World};

/// How long a peer waits for the reason why its connection ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// ALPN name of dialect `tombolo` (docs/protocol.md#two-dialects-one-model).
const ALPN: &[u8] = b"tombolo/1";

/// The names in a signing request. `Default` is empty: no names at all.
#[derive(Debug, Default)]
pub struct Names<'a> {
    /// Common name.
    pub common: &'a str,
    /// Organisations.
    pub organisations: &'a [&'a str],
    /// DNS names that it requests in addition.
    pub dns: &'a [&'a str],
}

/// Creates a signing request and its key.
///
/// # Errors
/// When a name is not valid.
pub fn signing_request(names: &Names<'_>) -> Result<(Vec<u8>, KeyPair)> {
    let key = KeyPair::generate()?;
    let dns: Vec<String> = names.dns.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(dns)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    for organisation in names.organisations {
        params.distinguished_name.push(DnType::OrganizationName, *organisation);
    }
    params.distinguished_name.push(DnType::CommonName, names.common);
    Ok((params.serialize_request(&key)?.der().to_vec(), key))
}

/// Requests a node's certificate from the join port, with any signing request. Returns the HTTP status code and the
/// body.
///
/// # Errors
/// When the hub does not answer.
pub async fn ask_certificate(world: &World, node: &str, request: &[u8]) -> Result<(u16, Vec<u8>)> {
    // A hub that has just started for the first time is still creating its authority.
    let token = wait_for_value("a join token", DEADLINE, || world.join_token()).await;
    let (_, jwt) = token.split_once('.').context("no dot")?;
    let ca = world.hub_secret("casecret", "cadata").await.map_err(anyhow::Error::msg)?;
    let config = verifying(ca.into())?.with_no_client_auth();
    let address = world.join_address();
    let stream = TcpStream::connect(&address).await?;
    let mut stream =
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("127.0.0.1")?, stream).await?;
    let head = format!(
        "GET /edge.crt HTTP/1.1\r\nHost: {address}\r\nNodeName: {node}\r\nAuthorization: Bearer {jwt}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        request.len()
    );
    stream.write_all(&[head.as_bytes(), request].concat()).await?;
    let mut answer = Vec::new();
    // A peer that does not close TLS properly may have answered nevertheless.
    let _ = stream.read_to_end(&mut answer).await;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("no head")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let code = head.split(' ').nth(1).context("no status code")?.parse()?;
    Ok((code, answer[end + 4..].to_vec()))
}

fn verifying(
    ca: CertificateDer<'static>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    roots.add(ca)?;
    let versions = [&rustls::version::TLS13];
    let config = ClientConfig::builder_with_provider(tls::provider()).with_protocol_versions(&versions)?;
    Ok(config.with_root_certificates(roots))
}

/// Joins as a node and returns a TLS configuration with its certificate.
///
/// # Errors
/// When cloudcore refuses.
pub async fn joined(world: &World, node: &str) -> Result<ClientConfig> {
    let common = format!("system:node:{node}");
    let (request, key) =
        signing_request(&Names { common: &common, organisations: &["system:nodes"], dns: &[] })?;
    let (code, certificate) = ask_certificate(world, node, &request).await?;
    ensure!(code == 200, "{code}: {}", String::from_utf8_lossy(&certificate));
    let ca = world.hub_secret("casecret", "cadata").await.map_err(anyhow::Error::msg)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok(verifying(ca.into())?.with_client_auth_cert(vec![certificate.into()], key)?)
}

/// An upgraded WebSocket of a node on which nothing was sent.
pub struct RawWebSocket(WebSocketStream<TlsStream<TcpStream>>);

impl RawWebSocket {
    /// Joins and connects.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn connect(world: &World, node: &str) -> Result<Self> {
        let config = joined(world, node).await?;
        let [port, ..] = world.hub_ports();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let name = ServerName::try_from("127.0.0.1")?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let mut request = format!("wss://127.0.0.1:{port}/").into_client_request()?;
        request.headers_mut().insert("sec-websocket-protocol", SUBPROTOCOL.parse()?);
        Ok(Self(tokio_tungstenite::client_async(request, stream).await?.0))
    }

    /// Sends one binary message.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn message(&mut self, bytes: Vec<u8>) -> Result<()> {
        Ok(self.0.send(Message::binary(bytes)).await?)
    }

    /// Sends bytes that are not WebSocket frames.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.get_mut().write_all(bytes).await?;
        Ok(self.0.get_mut().flush().await?)
    }

    /// Waits for cloudcore's goodbye.
    ///
    /// # Errors
    /// When the connection ends without one.
    pub async fn goodbye(mut self) -> Result<Goodbye> {
        let listen = async {
            while let Some(message) = self.0.next().await {
                if let Message::Binary(bytes) = message?
                    && let Some(goodbye) = goodbye_in(Package::parse(&bytes)?)?
                {
                    return Ok(goodbye);
                }
            }
            bail!("the connection ended without a goodbye")
        };
        tokio::time::timeout(PATIENCE, listen).await?
    }
}

fn quic_config(mut config: ClientConfig) -> Result<quinn::ClientConfig> {
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?)))
}

/// The first datagrams that QUIC clients send to a hub before they receive an answer, grouped by client.
///
/// # Errors
/// When the configuration does not support QUIC.
pub fn first_flights(config: ClientConfig, port: u16, count: usize) -> Result<Vec<Vec<Vec<u8>>>> {
    let config = quic_config(config)?;
    let hub = (Ipv4Addr::LOCALHOST, port).into();
    let flight = |_| {
        // One endpoint each: an endpoint keeps the state of its connections.
        let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, true, None);
        let now = Instant::now();
        let (_, mut connection) = endpoint.connect(now, config.clone(), hub, "127.0.0.1")?;
        let (mut flight, mut datagram) = (Vec::new(), Vec::new());
        while connection.poll_transmit(now, 1, &mut datagram).is_some() {
            flight.push(std::mem::take(&mut datagram));
        }
        Ok(flight)
    };
    (0..count).map(flight).collect()
}

/// A QUIC connection of a node with open lanes, on which nothing was sent.
pub struct RawQuic {
    lanes: Vec<(SendStream, RecvStream)>,
    _endpoint: Endpoint,
}

impl RawQuic {
    /// Joins and connects.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn connect(world: &World, node: &str) -> Result<Self> {
        let [_, port, _] = world.hub_ports();
        Self::with(joined(world, node).await?, port).await
    }

    /// Connects as the node whose certificate the configuration has.
    ///
    /// # Errors
    /// When cloudcore refuses.
    pub async fn with(config: ClientConfig, port: u16) -> Result<Self> {
        let config = quic_config(config)?;
        let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
        let hub = (Ipv4Addr::LOCALHOST, port).into();
        let connection = endpoint.connect_with(config, hub, "127.0.0.1")?.await?;
        let mut lanes = Vec::new();
        for lane in Lane::ALL {
            let (mut send, receive) = connection.open_bi().await?;
            send.write_all(&Header { lane, more: false, len: 0 }.encode()).await?;
            lanes.push((send, receive));
        }
        Ok(Self { lanes, _endpoint: endpoint })
    }

    /// Sends bytes in a lane.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn bytes(&mut self, lane: Lane, bytes: &[u8]) -> Result<()> {
        Ok(self.lanes[lane.index()].0.write_all(bytes).await?)
    }

    /// Waits for cloudcore's goodbye.
    ///
    /// # Errors
    /// When the connection ends without one.
    pub async fn goodbye(mut self) -> Result<Goodbye> {
        let control = &mut self.lanes[Lane::Control.index()].1;
        let listen = async {
            let mut reader = Reader::new();
            while let Some(chunk) = control.read_chunk(4096, true).await? {
                reader.push(&chunk.bytes);
                while let Some(package) = reader.pop()? {
                    if let Some(goodbye) = goodbye_in(package)? {
                        return Ok(goodbye);
                    }
                }
            }
            bail!("the connection ended without a goodbye")
        };
        tokio::time::timeout(PATIENCE, listen).await?
    }
}

/// The goodbye in a package, if it is one. A goodbye fits into one package.
fn goodbye_in(package: Package) -> Result<Option<Goodbye>> {
    if package.payload.is_empty() {
        return Ok(None);
    }
    Ok(match codec::decode(package.payload)? {
        Frame::Goodbye(goodbye) => Some(goodbye),
        _ => None,
    })
}
