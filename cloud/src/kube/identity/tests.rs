use std::process::Command;
use std::sync::mpsc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::kube::Kube;

/// An API server that accepts one client certificate. It answers 401 on connections of any other, as kube-apiserver
/// does once the certificate of an open connection has expired.
struct OneCertificate {
    authority: CertifiedIssuer<'static, KeyPair>,
    address: std::net::SocketAddr,
    accepted: Arc<Mutex<CertificateDer<'static>>>,
}

impl OneCertificate {
    async fn start() -> Self {
        // Installing the same provider a second time is refused, which is fine.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let (own, key) = issued(&authority, ExtendedKeyUsagePurpose::ServerAuth);
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("a root");
        let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build().expect("a verifier");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let tls = rustls::ServerConfig::builder().with_client_cert_verifier(clients);
        let tls = tls.with_single_cert(vec![own.der().clone()], key).expect("a configuration");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let accepted = Arc::new(Mutex::new(authority.der().clone()));
        tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), Arc::clone(&accepted)));
        Self { authority, address, accepted }
    }

    /// A kubeconfig with a new certificate, the only one that is accepted from now on.
    fn renew(&self) -> String {
        let (certificate, key) = issued(&self.authority, ExtendedKeyUsagePurpose::ClientAuth);
        *self.accepted.lock() = certificate.der().clone();
        let user = json!({
            "client-certificate-data": STANDARD.encode(certificate.pem()),
            "client-key-data": STANDARD.encode(key.serialize_pem()),
        });
        let cluster = json!({
            "server": format!("https://{}", self.address),
            "certificate-authority-data": STANDARD.encode(self.authority.pem()),
        });
        let config = json!({
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        config.to_string()
    }
}

/// A certificate for 127.0.0.1 and its key.
fn issued(
    authority: &CertifiedIssuer<'static, KeyPair>,
    usage: ExtendedKeyUsagePurpose,
) -> (rcgen::Certificate, KeyPair) {
    let (mut params, key) = (CertificateParams::default(), KeyPair::generate().expect("a key"));
    params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    params.extended_key_usages = vec![usage];
    (params.signed_by(&key, authority).expect("signed"), key)
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, accepted: Arc<Mutex<CertificateDer<'static>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer(stream, tls.clone(), Arc::clone(&accepted)));
    }
}

async fn answer(stream: TcpStream, tls: TlsAcceptor, accepted: Arc<Mutex<CertificateDer<'static>>>) {
    let stream = tls.accept(stream).await.expect("a handshake");
    let shown = stream.get_ref().1.peer_certificates().expect("a certificate")[0].clone().into_owned();
    let service = hyper::service::service_fn(move |_: Request<Incoming>| {
        let code = if *accepted.lock() == shown { 200 } else { 401 };
        let status = json!({"kind": "Status", "status": "Failure", "reason": "Unauthorized", "code": code});
        std::future::ready(Response::builder().status(code).body(status.to_string()))
    });
    // The client ends the connection.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The file is on a disk that does not answer: a reader waits until something is written. The test runs on one thread,
/// so a call that waited would block everything.
#[tokio::test(start_paused = true)]
async fn hanging_disk_delays_no_call() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("kubeconfig");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let config = Config::new("http://127.0.0.1:1".parse().expect("an address"));
    let connections = Connections::new(config, Some(path.clone())).expect("connections");
    let (done, is_done) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let in_time = is_done.recv_timeout(Duration::from_secs(20)).is_ok();
        std::fs::write(path, "{").map(|()| in_time)
    });
    tokio::time::advance(LOOK_INTERVAL).await;
    let _pool = connections.current();
    done.send(()).expect("it waits");
    let in_time = tokio::task::spawn_blocking(|| writer.join()).await.expect("a thread").expect("no panic");
    assert!(in_time.expect("it is written"), "the copy never replaces a call");
}

/// The status code of a request.
async fn code(kube: &Kube) -> u16 {
    let request = http::Request::get("/api/v1/namespaces").body(Vec::new()).expect("a request");
    match kube.client().request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

/// Makes the next call look at the files again.
async fn look_again() {
    tokio::time::pause();
    tokio::time::advance(LOOK_INTERVAL).await;
    tokio::time::resume();
}

#[tokio::test]
async fn kubeconfig_access_outlives_the_certificate_in_it() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let server = OneCertificate::start().await;
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.renew()).expect("written");
    let parsed = kube::config::Kubeconfig::read_from(&path).expect("a kubeconfig");
    let config = kube::Config::try_from(parsed).expect("a configuration");
    let once = Kube::from_config(config.clone()).expect("a client");
    let own = Kube::following(config, Some(&path)).expect("a client");
    assert_eq!((code(&once).await, code(&own).await), (200, 200));
    // Both now have connections with the first certificate.
    std::fs::write(&path, server.renew()).expect("written");
    assert_eq!((code(&once).await, code(&own).await), (401, 401));
    look_again().await;
    // The call that starts the look at the files does not wait for it.
    let accepted = async {
        while code(&own).await != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), accepted).await.expect("the certificate that was renewed");
    assert_eq!(code(&once).await, 401);
    // A file that is being written.
    std::fs::write(&path, "{").expect("written");
    look_again().await;
    assert_eq!(code(&own).await, 200);
}
