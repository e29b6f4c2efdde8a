//! Requests a certificate: the first time with a token, later with the current certificate
//! (docs/reference/kubeedge.md#joining).

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use rustls::CertificateError;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tombolo_proto::ids::NodeId;

use super::certificate::{self, Request};
use super::clock::{self, WallClock};
use super::fetch::{Ask, FetchError, FetchResponse, fetch, unverified, verified};
use super::{Identity, JoinError};

/// Longest part of a refusal's text that is shown, in characters.
const MESSAGE_MAX: usize = 512;

/// What to request, and from which endpoint.
#[derive(Debug, Clone)]
pub struct EnrollOptions {
    /// `HOST:PORT` of the join endpoints.
    pub endpoint: String,
    /// The node's name.
    pub node: NodeId,
    /// The join token: hash of the CA, then a JWT.
    pub token: String,
}

/// Requests an identity with a token and keeps it in memory only.
///
/// # Errors
/// [`JoinError`] says what failed and what to do.
pub async fn enroll(options: &EnrollOptions) -> Result<Identity, JoinError> {
    enroll_by(options, &WallClock::system()).await
}

/// As [`enroll`], with this clock.
pub(super) async fn enroll_by(options: &EnrollOptions, clock: &WallClock) -> Result<Identity, JoinError> {
    let (hash, jwt) = split(options.token.trim())?;
    let ca = fetch_ca(options, hash, clock).await?;
    let mut headers = HeaderMap::new();
    let bearer = HeaderValue::try_from(format!("Bearer {jwt}"));
    let mut bearer = bearer.map_err(|_| JoinError::Token("has characters that no token has"))?;
    bearer.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, bearer);
    let cloud = JoinEndpoint { endpoint: &options.endpoint, ca: &ca, clock };
    let identity = ask(cloud, &options.node, None, headers).await?;
    // Checked only here: a renewal must not fail because of a clock that the cloud accepts.
    clock::within_life(&identity.certificate, clock.now()).map_err(JoinError::Answer)?;
    Ok(identity)
}

/// Requests a certificate for a new key with the current certificate, which may have expired: the handshake proves
/// possession of its key, and the cloud requires nothing else (docs/security.md#keys-and-certificates).
///
/// # Errors
/// [`JoinError`] says what failed and what to do.
pub async fn renew(identity: &Identity, node: &NodeId, endpoint: &str) -> Result<Identity, JoinError> {
    let cloud = JoinEndpoint { endpoint, ca: &identity.ca, clock: &WallClock::system() };
    ask(cloud, node, Some(identity), HeaderMap::new()).await
}

/// Asks the join endpoints, with the current certificate, whether the Node object of this node exists.
///
/// # Errors
/// [`JoinError::Refused`] with the cloud's message when the cloud does not accept the certificate.
pub async fn is_registered(identity: &Identity, node: &NodeId, endpoint: &str) -> Result<bool, JoinError> {
    let clock = WallClock::system();
    let cloud = JoinEndpoint { endpoint, ca: &identity.ca, clock: &clock };
    let tls = verified(cloud.ca, Some(identity), cloud.clock);
    let tls = tls.map_err(|error| cloud.unusable(&error))?;
    let path = format!("/node/{node}");
    let (headers, body) = (HeaderMap::new(), Bytes::new());
    let question = Ask { endpoint, method: Method::GET, path: &path, headers, body };
    let answer = fetch(tls, question).await.map_err(|error| cloud.unreachable(&error))?;
    match answer.code {
        StatusCode::OK => Ok(true),
        StatusCode::NOT_FOUND => Ok(false),
        _ => Err(cloud.refused(node, &answer)),
    }
}

#[derive(Clone, Copy)]
struct JoinEndpoint<'a> {
    endpoint: &'a str,
    ca: &'a CertificateDer<'static>,
    clock: &'a WallClock,
}

impl JoinEndpoint<'_> {
    fn unreachable(&self, error: &FetchError) -> JoinError {
        let hint = error.certificate_error().map(|error| certificate_hint(error, self.clock));
        JoinError::Connect {
            endpoint: self.endpoint.to_owned(),
            hint: hint.unwrap_or_default(),
            problem: error.to_string(),
        }
    }

    /// The CA or the node's certificate cannot be used for TLS.
    fn unusable(&self, error: &rustls::Error) -> JoinError {
        JoinError::Connect {
            endpoint: self.endpoint.to_owned(),
            hint: String::new(),
            problem: error.to_string(),
        }
    }

    fn refused(&self, node: &NodeId, answer: &FetchResponse) -> JoinError {
        let text = String::from_utf8_lossy(&answer.body);
        JoinError::Refused {
            node: node.clone(),
            code: answer.code.as_u16(),
            message: text.trim().chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect(),
            hint: clock::hint(answer.date, self.clock.now()),
        }
    }
}

/// Splits a token into the hash of the CA and the JWT.
fn split(token: &str) -> Result<([u8; 32], &str), JoinError> {
    let (hash, jwt) = token.split_once('.').ok_or(JoinError::Token("has no dots"))?;
    if jwt.split('.').count() != 3 {
        return Err(JoinError::Token("does not have four parts"));
    }
    let hash = hex::decode(hash).ok().and_then(|hash| hash.try_into().ok());
    Ok((hash.ok_or(JoinError::Token("does not begin with the hash of a CA"))?, jwt))
}

/// What the join endpoints return to a client that does not trust them yet.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The CA that they present, not verified.
    pub ca: CertificateDer<'static>,
    /// Its SHA-256 in hex, with which join tokens begin.
    pub hash: String,
    /// The time of the cloud's clock.
    pub date: Option<SystemTime>,
}

/// Requests the CA of join endpoints without verification. The caller must compare the hash.
///
/// # Errors
/// [`JoinError::Connect`] when the endpoint does not answer with a certificate.
pub async fn show(endpoint: &str) -> Result<Shown, JoinError> {
    let unreachable =
        |problem| JoinError::Connect { endpoint: endpoint.to_owned(), problem, hint: String::new() };
    let tls = unverified().map_err(|error| unreachable(error.to_string()))?;
    let question =
        Ask { endpoint, method: Method::GET, path: "/ca.crt", headers: HeaderMap::new(), body: Bytes::new() };
    let answer = fetch(tls, question).await.map_err(|error| unreachable(error.to_string()))?;
    let hash = hex::encode(Sha256::digest(&answer.body));
    Ok(Shown { ca: CertificateDer::from(answer.body.to_vec()), hash, date: answer.date })
}

async fn fetch_ca(
    options: &EnrollOptions,
    expected: [u8; 32],
    clock: &WallClock,
) -> Result<CertificateDer<'static>, JoinError> {
    let Shown { ca, hash: found, date } = show(&options.endpoint).await?;
    let expected = hex::encode(expected);
    if found != expected {
        return Err(JoinError::WrongCa { endpoint: options.endpoint.clone(), found, expected });
    }
    // Checked before certificates are verified with a wrong clock. An attacker who can forge this date can keep the
    // node from joining anyway.
    clock::check(&options.endpoint, date, clock.now())?;
    Ok(ca)
}

async fn ask(
    cloud: JoinEndpoint<'_>,
    node: &NodeId,
    present: Option<&Identity>,
    mut headers: HeaderMap,
) -> Result<Identity, JoinError> {
    let request = certificate::request(node).map_err(|error| JoinError::Answer(error.to_string()))?;
    let name = HeaderValue::from_str(node.as_str()).expect("a DNS name is a valid header value");
    headers.insert("NodeName", name);
    let tls = verified(cloud.ca, present, cloud.clock).map_err(|error| cloud.unusable(&error))?;
    let question = Ask {
        endpoint: cloud.endpoint,
        method: Method::GET,
        path: "/edge.crt",
        headers,
        body: request.csr.clone().into(),
    };
    let answer = fetch(tls, question).await.map_err(|error| cloud.unreachable(&error))?;
    accept(&answer, request, cloud, node)
}

fn accept(
    answer: &FetchResponse,
    request: Request,
    cloud: JoinEndpoint<'_>,
    node: &NodeId,
) -> Result<Identity, JoinError> {
    if answer.code != StatusCode::OK {
        return Err(cloud.refused(node, answer));
    }
    let certificate = CertificateDer::from(answer.body.to_vec());
    request.answered_by(&certificate, cloud.ca, node).map_err(JoinError::Answer)?;
    Ok(Identity { certificate, ca: cloud.ca.clone(), key: request.key })
}

/// The possible cause of a failed handshake.
fn certificate_hint(error: &CertificateError, clock: &WallClock) -> String {
    use CertificateError as E;
    match error {
        E::NotValidYet | E::NotValidYetContext { .. } | E::Expired | E::ExpiredContext { .. } => {
            format!(" (this node's clock says {}: set it, if it is wrong)", clock::text(clock.now()))
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            " (use an address that the cloud's certificate names, or add this one to the cloud's setting advertise)"
                .to_owned()
        }
        _ => String::new(),
    }
}
