//! A join port on a real socket with in-memory Secrets, and a client for it.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tombolo_link::identity::{PeerCertificate, certificate_of};
use tombolo_proto::NodeId;

use super::*;

/// The consequence of a lost answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The call fails.
    Failed,
    /// The call fails, and then the Secrets cannot be read.
    Unreadable,
    /// The call is repeated, and meets its own earlier write.
    Repeated,
}

/// Secrets in memory. Every operation yields first, so that races can happen.
#[derive(Default)]
pub(super) struct MemorySecrets {
    pub(super) secrets: Mutex<BTreeMap<String, StoredSecret>>,
    /// Writes of Secrets with this name prefix fail.
    pub(super) broken: Mutex<Option<&'static str>>,
    /// The next write of a Secret with this name prefix is made, but its answer is lost.
    pub(super) lost: Mutex<Option<(&'static str, Lost)>>,
    /// Secrets with this name prefix cannot be read.
    pub(super) unreadable: Mutex<Option<&'static str>>,
    pub(super) writes: Mutex<Vec<String>>,
    /// Number of reads.
    pub(super) reads: Mutex<usize>,
    /// This many of the next changes come too late, because another writer has changed the Secret.
    pub(super) overtaken: Mutex<usize>,
    /// While this is set, answers to reads are held back.
    held: tokio::sync::watch::Sender<bool>,
}

impl MemorySecrets {
    /// Holds back the answers of reads that were already made, or releases them.
    pub(super) fn hold_reads(&self, held: bool) {
        self.held.send_replace(held);
    }

    pub(super) fn value(&self, name: &str, key: &str) -> Vec<u8> {
        self.secrets.lock()[name].data[key].clone()
    }

    /// KubeEdge's shared token, as operators find it.
    pub(super) fn shared_token(&self) -> String {
        String::from_utf8(self.value("tokensecret", "tokendata")).expect("text")
    }

    async fn write(
        &self,
        name: &str,
        version: Option<&str>,
        data: SecretData,
    ) -> Result<String, SecretError> {
        tokio::task::yield_now().await;
        let name = name.to_owned();
        if self.broken.lock().is_some_and(|prefix| name.starts_with(prefix)) {
            return Err(SecretError::Unavailable { name, reason: "broken".to_owned(), passing: true });
        }
        let mut overtaken = self.overtaken.lock();
        if version.is_some() && *overtaken > 0 {
            *overtaken -= 1;
            return Err(SecretError::Conflict { name });
        }
        drop(overtaken);
        let mut secrets = self.secrets.lock();
        match (secrets.get(&name), version) {
            (Some(_), None) => return Err(SecretError::Exists { name }),
            (stored, Some(version)) if stored.is_none_or(|stored| stored.version != version) => {
                return Err(SecretError::Conflict { name });
            }
            _ => {}
        }
        let mut writes = self.writes.lock();
        writes.push(name.clone());
        let version = writes.len().to_string();
        secrets.insert(name.clone(), StoredSecret { data, version: version.clone() });
        let mut lost = self.lost.lock();
        match lost.take_if(|(prefix, _)| name.starts_with(*prefix)) {
            None => Ok(version),
            Some((_, Lost::Repeated)) => Err(SecretError::Conflict { name }),
            Some((prefix, lost)) => {
                *self.unreadable.lock() = (lost == Lost::Unreadable).then_some(prefix);
                Err(SecretError::Unavailable { name, reason: "no answer".to_owned(), passing: true })
            }
        }
    }
}

impl SecretStore for MemorySecrets {
    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<StoredSecret>, SecretError>> {
        async move {
            *self.reads.lock() += 1;
            tokio::task::yield_now().await;
            let found = self.secrets.lock().get(name).cloned();
            let _ = self.held.subscribe().wait_for(|held| !held).await;
            if self.unreadable.lock().is_some_and(|prefix| name.starts_with(prefix)) {
                return Err(SecretError::Unavailable {
                    name: name.to_owned(),
                    reason: "no answer".to_owned(),
                    passing: true,
                });
            }
            Ok(found)
        }
        .boxed()
    }

    fn create<'a>(&'a self, name: &'a str, data: SecretData) -> BoxFuture<'a, Result<String, SecretError>> {
        self.write(name, None, data).boxed()
    }

    fn update<'a>(
        &'a self,
        name: &'a str,
        version: &'a str,
        data: SecretData,
    ) -> BoxFuture<'a, Result<String, SecretError>> {
        self.write(name, Some(version), data).boxed()
    }
}

/// Nodes that are not listed are absent; `None` means that the API does not answer. The number counts the questions.
#[derive(Default)]
pub(super) struct Nodes(pub(super) Mutex<BTreeMap<String, Option<NodeState>>>, pub(super) Mutex<usize>);

impl NodeLookup for Nodes {
    fn state<'a>(&'a self, node: &'a NodeId) -> BoxFuture<'a, Result<NodeState, NodeLookupError>> {
        let state = self.0.lock().get(node.as_str()).cloned().unwrap_or(Some(NodeState::Absent));
        let error = || NodeLookupError { node: node.clone(), reason: "no answer".to_owned() };
        *self.1.lock() += 1;
        std::future::ready(state.ok_or_else(error)).boxed()
    }
}

pub(super) struct World {
    pub(super) bootstrap: Bootstrap,
    pub(super) nodes: Arc<Nodes>,
    pub(super) secrets: Arc<MemorySecrets>,
    ahead: Arc<Mutex<Duration>>,
    address: std::net::SocketAddr,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A node's certificate and key.
#[derive(Clone)]
pub(super) struct NodeIdentity {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl NodeIdentity {
    /// The certificate as the hub knows it.
    pub(super) fn facts(&self) -> PeerCertificate {
        certificate_of(&[CertificateDer::from(self.certificate.clone())]).expect("DER")
    }
}

/// A Node that exists.
#[allow(clippy::unnecessary_wraps)] // as `set_node` takes it
pub(super) fn present(uid: &str) -> Option<NodeState> {
    Some(NodeState::Present { uid: uid.to_owned(), control_plane: false })
}

pub(super) fn parts(secrets: &Arc<MemorySecrets>) -> Parts {
    Parts {
        secrets: Arc::<MemorySecrets>::clone(secrets),
        nodes: Arc::new(Nodes::default()),
        clock: Arc::new(SystemTime::now),
    }
}

pub(super) fn options() -> Options {
    let advertise = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    Options { shared_token: true, ..Options::new(advertise) }
}

impl World {
    pub(super) async fn start() -> Self {
        Self::start_with(options()).await
    }

    pub(super) async fn start_with(options: Options) -> Self {
        let (secrets, nodes) = (Arc::new(MemorySecrets::default()), Arc::new(Nodes::default()));
        let ahead = Arc::new(Mutex::new(Duration::ZERO));
        let clock = Arc::clone(&ahead);
        let parts = Parts {
            secrets: Arc::<MemorySecrets>::clone(&secrets),
            nodes: Arc::<Nodes>::clone(&nodes),
            clock: Arc::new(move || SystemTime::now() + *clock.lock()),
        };
        let bootstrap = Bootstrap::with_parts(parts, options).await.expect("ready");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(bootstrap.serve(listener, Drain::never()));
        Self { bootstrap, nodes, secrets, ahead, address, server }
    }

    /// Another replica of the same cloud, or the same one after a crash.
    pub(super) async fn replica(&self) -> Bootstrap {
        let nodes: Arc<dyn NodeLookup> = Arc::<Nodes>::clone(&self.nodes);
        Bootstrap::with_parts(Parts { nodes, ..parts(&self.secrets) }, options()).await.expect("ready")
    }

    /// Moves the cloud's clock ahead of the test's clock.
    pub(super) fn skip(&self, time: Duration) {
        *self.ahead.lock() += time;
    }

    pub(super) fn set_node(&self, name: &str, state: Option<NodeState>) {
        self.nodes.0.lock().insert(name.to_owned(), state);
    }

    pub(super) fn jwt(&self) -> String {
        let token = self.secrets.shared_token();
        token.split_once('.').expect("a hash and a JWT").1.to_owned()
    }

    pub(super) fn bearer(&self) -> (&'static str, String) {
        ("authorization", format!("Bearer {}", self.jwt()))
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("listening")
    }

    /// A TLS connection that verifies the server's certificate.
    pub(super) async fn secured(&self, identity: Option<&NodeIdentity>) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.bootstrap.authority()).expect("a CA");
        let config = ClientConfig::builder_with_provider(tombolo_link::tls::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = match identity {
            Some(NodeIdentity { certificate, key }) => config
                .with_client_auth_cert(
                    vec![CertificateDer::from(certificate.clone())],
                    PrivateKeyDer::try_from(key.clone()).expect("a key"),
                )
                .expect("a pair"),
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, self.connect().await).await.expect("TLS")
    }

    /// One request on a separate connection.
    pub(super) async fn ask(
        &self,
        identity: Option<&NodeIdentity>,
        request: Request<Bytes>,
    ) -> (StatusCode, Bytes) {
        let response = self.answer(identity, request).await;
        (response.status(), response.into_body())
    }

    /// The same, with the headers of the answer.
    pub(super) async fn answer(
        &self,
        identity: Option<&NodeIdentity>,
        request: Request<Bytes>,
    ) -> Response<Bytes> {
        let stream = self.secured(identity).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        let driver = tokio::spawn(connection);
        let response = sender.send_request(request.map(Full::new)).await.expect("an answer");
        let (head, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        driver.abort();
        Response::from_parts(head, body)
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, String) {
        let (status, body) = self.ask(None, request(Method::GET, path, &[], Vec::new())).await;
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// `GET /edge.crt` with these headers and body. Returns text or a certificate.
    pub(super) async fn enroll(
        &self,
        identity: Option<&NodeIdentity>,
        headers: &[(&str, String)],
        body: Vec<u8>,
    ) -> (StatusCode, Bytes) {
        self.ask(identity, request(Method::GET, "/edge.crt", headers, body)).await
    }

    /// Joins with KubeEdge's token, as an edge does.
    pub(super) async fn joined(&self, node: &str) -> NodeIdentity {
        let token = self.secrets.shared_token();
        self.joined_with(node, &token).await
    }

    /// Joins with this token.
    pub(super) async fn joined_with(&self, node: &str, token: &str) -> NodeIdentity {
        let key = KeyPair::generate().expect("a key");
        let bearer = token.split_once('.').expect("a hash first").1;
        let headers = [("nodename", node.to_owned()), ("authorization", format!("Bearer {bearer}"))];
        let (status, body) = self.enroll(None, &headers, csr(node, &key)).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        NodeIdentity { certificate: body.to_vec(), key: key.serialize_der() }
    }
}

pub(super) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, String)],
    body: Vec<u8>,
) -> Request<Bytes> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    request.body(body.into()).expect("a request")
}

/// The subject that a KubeEdge edge requests.
pub(super) fn csr_params(node: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let name = &mut params.distinguished_name;
    name.push(DnType::CountryName, "CN");
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::StateOrProvinceName, "Zhejiang");
    name.push(DnType::LocalityName, "Hangzhou");
    name.push(DnType::CommonName, format!("system:node:{node}"));
    params
}

pub(super) fn csr(node: &str, key: &KeyPair) -> Vec<u8> {
    csr_params(node).serialize_request(key).expect("a request").der().to_vec()
}
