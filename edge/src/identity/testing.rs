//! Certificates and requests for tests.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tombolo_proto::ids::NodeId;

use super::Identity;
use super::clock::WallClock;
use super::fetch::{Ask, fetch, send_plain, verified};

const AGES: Duration = Duration::from_secs(150 * 365 * 86_400);

/// PEM text.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// A CA that signs.
pub(crate) struct TestCa {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

pub(crate) fn test_ca() -> TestCa {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "KubeEdge");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().der().clone();
    TestCa { certificate, issuer: Issuer::new(params, key) }
}

/// An identity of a new CA, valid for 150 years from 1970.
pub(crate) fn identity_for(node: &NodeId) -> Identity {
    identity_valid(node, SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + AGES)
}

/// As [`identity_for`], with the given validity.
pub(crate) fn identity_valid(node: &NodeId, begin: SystemTime, end: SystemTime) -> Identity {
    let ca = test_ca();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    (params.not_before, params.not_after) = (begin.into(), end.into());
    let certificate = params.signed_by(&key, &ca.issuer).unwrap().der().clone();
    Identity { certificate, ca: ca.certificate, key: key.serialize_der().into() }
}

/// Sends a request to a local API with the credentials of its kubeconfig.
pub(crate) async fn fetch_local(
    kubeconfig: &Value,
    address: SocketAddr,
    method: Method,
    path: &str,
    body: &str,
) -> (StatusCode, Value) {
    let ca = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
    let ca = CertificateDer::from_pem_slice(&STANDARD.decode(ca).unwrap()).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    fetch_trusted(&ca, token, address, method, path, body).await
}

/// Sends a request to a local API of this CA with a bearer token. Patches are strategic merge patches, as a kubelet
/// sends them.
pub(crate) async fn fetch_trusted(
    ca: &CertificateDer<'static>,
    token: &str,
    address: SocketAddr,
    method: Method,
    path: &str,
    body: &str,
) -> (StatusCode, Value) {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
    let is_patch = method == Method::PATCH;
    let form = if is_patch { "application/strategic-merge-patch+json" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(form));
    let endpoint = address.to_string();
    let ask = Ask { endpoint: &endpoint, method, path, headers, body: body.to_owned().into() };
    let answer = fetch(verified(ca, None, &WallClock::system()).unwrap(), ask).await.unwrap();
    (answer.code, serde_json::from_slice(&answer.body).unwrap_or_default())
}

/// Status code of an anonymous GET without TLS.
pub(crate) async fn get_plain(address: SocketAddr, path: &str) -> StatusCode {
    fetch_plain(address, Method::GET, path, HeaderMap::new(), "").await.0
}

/// An anonymous request without TLS: status code and text of the answer.
pub(crate) async fn fetch_plain(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: HeaderMap,
    body: &str,
) -> (StatusCode, String) {
    let endpoint = address.to_string();
    let ask = Ask { endpoint: &endpoint, method, path, headers, body: body.to_owned().into() };
    let answer = send_plain(ask).await.unwrap();
    (answer.code, String::from_utf8(answer.body.to_vec()).unwrap())
}

/// Status code of a GET over TLS from a server of this CA, with the client certificate of this identity, if any.
pub(crate) async fn get_tls(
    address: SocketAddr,
    ca: &CertificateDer<'static>,
    identity: Option<&Identity>,
    path: &str,
) -> Result<StatusCode, String> {
    let endpoint = address.to_string();
    let ask = Ask {
        endpoint: &endpoint,
        method: Method::GET,
        path,
        headers: HeaderMap::new(),
        body: Default::default(),
    };
    let tls = verified(ca, identity, &WallClock::system()).map_err(|error| error.to_string())?;
    Ok(fetch(tls, ask).await.map_err(|error| error.to_string())?.code)
}
