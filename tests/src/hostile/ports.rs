//! The ports of cloudcore, and how long honest clients wait there.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tombolo_link::client::Choice;

use super::peer::Hub;

/// The ports where clients connect, in the order of the table.
pub(crate) const PORTS: [&str; 5] = ["WebSocket", "QUIC", "join", "admin", "API"];

/// A client that is not served by then gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A connection with or without TLS.
pub(crate) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Does the TLS handshake on a connection if there is a configuration.
pub(crate) async fn handshake(stream: TcpStream, tls: Option<&Arc<ClientConfig>>) -> Result<Stream> {
    let Some(tls) = tls else { return Ok(Either::Left(stream)) };
    let connected = TlsConnector::from(Arc::clone(tls)).connect("127.0.0.1".try_into()?, stream).await?;
    Ok(Either::Right(Box::new(connected)))
}

/// The port of the API server, and the tokens of two ServiceAccounts of different namespaces.
pub(crate) struct ApiPort {
    pub(crate) port: u16,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) hostile: String,
    honest: String,
}

impl ApiPort {
    pub(crate) async fn prepare(kubeconfig: &Path, client: &kube::Client) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let mut roots = RootCertStore::empty();
        for certificate in config.root_cert.unwrap_or_default() {
            roots.add(certificate.into())?;
        }
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self {
            port: config.cluster_url.port_u16().context("the API server's address has no port")?,
            tls: Arc::new(tls),
            hostile: token(client, "default", "hostile").await?,
            honest: token(client, "kube-system", "newcomer").await?,
        })
    }
}

/// The token of a new ServiceAccount.
async fn token(client: &kube::Client, namespace: &str, name: &str) -> Result<String> {
    let accounts = kube::Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    let wanted: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
    let made = accounts.create_token_request(name, &PostParams::default(), &wanted).await?;
    made.status.and_then(|status| status.token).context("the token request has no status")
}

impl Hub {
    /// How long honest newcomers wait at each port; at most [`PATIENCE`].
    pub(crate) async fn newcomers(&self) -> [Duration; PORTS.len()] {
        let [_, _, join] = self.ports;
        let bare = Arc::new(self.bare.clone());
        let authorization = format!("Authorization: Bearer {}\r\n", self.api.honest);
        let node = async { (self.newcomer(Choice::WebSocket).await, self.newcomer(Choice::Quic).await) };
        let ((websocket, quic), join, admin, api) = tokio::join!(
            node,
            answered(join, Some(&bare), "/ca.crt", ""),
            answered(self.admin, None, "/livez", ""),
            answered(self.api.port, Some(&self.api.tls), "/version", &authorization),
        );
        [websocket, quic, join, admin, api]
    }
}

/// How long it takes until a request is answered.
async fn answered(port: u16, tls: Option<&Arc<ClientConfig>>, path: &str, header: &str) -> Duration {
    let begin = Instant::now();
    let asking = async {
        while ask(port, tls, path, header).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // A timeout shows in the measured time.
    let _ = tokio::time::timeout(PATIENCE, asking).await;
    begin.elapsed()
}

async fn ask(port: u16, tls: Option<&Arc<ClientConfig>>, path: &str, header: &str) -> Result<()> {
    const SUCCESS: &[u8] = b"HTTP/1.1 200";
    let mut stream = handshake(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?, tls).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = [0; SUCCESS.len()];
    stream.read_exact(&mut answer).await?;
    ensure!(answer == SUCCESS, "{}", String::from_utf8_lossy(&answer));
    Ok(())
}
