//! The routes of the join port (docs/reference/kubeedge.md#join-routes). Every refusal is one sentence in plain text.

use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use rustls_pki_types::CertificateDer;
use tombolo_link::identity::{PeerCertificate, certificate_of};
use tombolo_proto::NodeId;
use tombolo_runtime::connection_limiter::{Source, Working};

use super::Inner;
use super::csr;
use super::identities::{Denied, IdentityError};
use super::issue::{Way, issue};
use super::join_tokens::{self, Grant};
use super::nodes::NodeState;
use super::peer::Peer;
use super::responses::{Refusal, RouteResponse, is_taken, refused, response, text, unauthorized, unknown};
use super::shared_token;

/// Largest request body. A signing request has some 300 bytes.
pub(super) const BODY_LEN_MAX: usize = 64 * 1024;

/// The only extended key usage of a node: clientAuth in Go's numbering (docs/reference/kubeedge.md#join-routes).
const CLIENT_AUTH: &[u32] = &[2];

/// The client of a connection.
pub(super) struct Visitor {
    pub(super) source: Source,
    /// The certificate chain that was presented.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The slot of the connection.
    pub(super) slot: Arc<Working>,
}

/// Answers the request of a connection.
pub(super) async fn answer<B>(inner: &Arc<Inner>, visitor: &Visitor, request: Request<B>) -> RouteResponse
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Visitor { source, chain, .. } = visitor;
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    let result = match (&method, path.as_str()) {
        (&Method::GET, "/ca.crt") => Ok(der(inner.authority.certificate().to_vec())),
        (&Method::GET, "/edge.crt") => edge_certificate(inner, visitor, request).await,
        (&Method::GET, path) if path.starts_with("/node/") => node_exists(inner, chain, path).await,
        (&Method::POST, path) if is_task_report(path) => task_report(inner, chain),
        (_, path) if is_known(path) => {
            Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not allowed on {path}")))
        }
        (_, path) => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            format!("no such path {path}: the join port serves /ca.crt, /edge.crt and /node/<name>"),
        )),
    };
    result.unwrap_or_else(|refusal| {
        if let Some(left_out) = inner.lines.admit(source) {
            let Refusal { status, sentence, .. } = &refusal;
            tracing::info!(%source, %method, path, %status, sentence, left_out, "join request refused");
        }
        refusal.answer()
    })
}

fn is_known(path: &str) -> bool {
    matches!(path, "/ca.crt" | "/edge.crt") || path.starts_with("/node/") || is_task_report(path)
}

fn is_task_report(path: &str) -> bool {
    path == "/nodeupgrade" || path.starts_with("/task/")
}

/// Reports of node tasks. This cloud starts no tasks, and only a node with a certificate may report one.
fn task_report(inner: &Inner, chain: &[CertificateDer<'_>]) -> Result<RouteResponse, Refusal> {
    match inner.judge.judge(chain, inner.now()) {
        Peer::Node(..) => Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "node tasks are not supported")),
        _ => Err(Refusal::new(StatusCode::UNAUTHORIZED, "reports of node tasks need the node's certificate")),
    }
}

/// Tells a node whether it is registered. KubeEdge's installer asks without a certificate, to see whether a name is
/// taken. Clients without a certificate always get the answer that it is free, and `/edge.crt` refuses the join.
async fn node_exists(
    inner: &Inner,
    chain: &[CertificateDer<'_>],
    path: &str,
) -> Result<RouteResponse, Refusal> {
    let name = path.strip_prefix("/node/").unwrap_or_default();
    let node = node_id(name)?;
    let absent = Ok(text(StatusCode::NOT_FOUND, "Node not found".to_owned()));
    let certificate = match inner.judge.judge(chain, inner.now()) {
        Peer::Node(own, certificate) if own == node => certificate,
        _ => return absent,
    };
    match inner.identities.check_registered(&node, &certificate).await.map_err(unknown)? {
        Ok(()) => Ok(text(StatusCode::OK, "Node found".to_owned())),
        Err(Denied::Unregistered) => absent,
        Err(why) => Err(unauthorized(why.to_string())),
    }
}

async fn edge_certificate<B>(
    inner: &Arc<Inner>,
    visitor: &Visitor,
    request: Request<B>,
) -> Result<RouteResponse, Refusal>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Visitor { source, chain, slot } = visitor;
    let (head, body) = request.into_parts();
    let node = node_id(header(&head.headers, "NodeName")?.unwrap_or_default())?;
    let way = authenticate(inner, chain, &head.headers, &node).await?;
    check_usages(&head.headers)?;
    let request = read(body).await?;
    let public_key = csr::check(&request, &node)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let failed = |error: String| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    let signed = inner
        .authority
        .sign_node(&node, &public_key, inner.now(), inner.node_life)
        .map_err(|error| failed(error.to_string()))?;
    let signed = CertificateDer::from(signed);
    let certificate =
        certificate_of(std::slice::from_ref(&signed)).map_err(|error| failed(error.to_string()))?;
    let renewal = matches!(way, Way::Renewal(_));
    // This is the last step, so that a refused request uses nothing up.
    issue(inner, slot, &node, way, certificate).await?;
    if let Some(left_out) = inner.lines.admit(source) {
        tracing::info!(%source, %node, renewal, left_out, "node certificate issued");
    }
    Ok(der(signed.to_vec()))
}

/// Evaluates a certificate for a renewal. If it is in force according to memory, the API is asked only when the renewal
/// is recorded, so that a renewal that fails before costs the API nothing.
async fn renewal(inner: &Inner, node: &NodeId, certificate: PeerCertificate) -> Result<Way, Refusal> {
    if let Some(left) = inner.identities.renewal_pause(node, &certificate) {
        return Err(unknown(IdentityError::TooOften(left)));
    }
    let answer = inner.identities.check(node, &certificate).await.map_err(unknown)?;
    answer.map(|()| Way::Renewal(certificate)).map_err(|why| unauthorized(why.to_string()))
}

fn node_id(name: &str) -> Result<NodeId, Refusal> {
    if name.is_empty() {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "the node name is missing (header NodeName or /node/<name>)",
        ));
    }
    NodeId::parse(name).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let not_text = |_| Refusal::new(StatusCode::BAD_REQUEST, format!("header {name} is not text"));
    headers.get(name).map(|value| value.to_str().map_err(not_text)).transpose()
}

/// A node is authenticated by its certificate, even an expired one within the grace period, or joins by token.
async fn authenticate(
    inner: &Inner,
    chain: &[CertificateDer<'_>],
    headers: &HeaderMap,
    node: &NodeId,
) -> Result<Way, Refusal> {
    let authorization = header(headers, AUTHORIZATION.as_str())?;
    let refusal = match inner.judge.judge(chain, inner.now()) {
        Peer::Node(own, _) | Peer::Expired(own, ..) if own != *node => {
            let sentence =
                format!("the client certificate belongs to node {own}, but the request is for node {node}");
            return Err(Refusal::new(StatusCode::FORBIDDEN, sentence));
        }
        Peer::Node(_, certificate) => match renewal(inner, node, certificate).await {
            Ok(way) => return Ok(way),
            Err(refusal) => refusal,
        },
        Peer::Expired(_, certificate, since) if since <= inner.expired_grace => {
            match expired_renewal(inner, node, certificate).await {
                Ok(way) => return Ok(way),
                Err(refusal) => refusal,
            }
        }
        Peer::Expired(_, _, since) => unauthorized(format!(
            "the client certificate expired {} days ago, beyond the grace period of {} days: join with a new token",
            since.as_secs() / 86_400,
            inner.expired_grace.as_secs() / 86_400
        )),
        Peer::Unknown(reason) => unauthorized(reason),
        Peer::Anonymous => unauthorized(
            "a join token (Authorization: Bearer) or the node's certificate is required".to_owned(),
        ),
    };
    match authorization {
        // Only a client with a token may learn whether a name is taken.
        Some(authorization) if refusal.status == StatusCode::UNAUTHORIZED => {
            join_by_token(inner, authorization, node).await
        }
        _ => Err(refusal),
    }
}

/// An expired certificate proves the former identity. A node that was deleted since then must join again.
async fn expired_renewal(inner: &Inner, node: &NodeId, certificate: PeerCertificate) -> Result<Way, Refusal> {
    match inner.identities.check_registered(node, &certificate).await.map_err(unknown)? {
        Ok(()) => renewal(inner, node, certificate).await,
        Err(Denied::Unregistered | Denied::Unknown) => Err(unauthorized(format!(
            "the client certificate has expired and node {node} is no longer registered: join with a token"
        ))),
        Err(why) => Err(unauthorized(why.to_string())),
    }
}

async fn join_by_token(inner: &Inner, authorization: &str, node: &NodeId) -> Result<Way, Refusal> {
    let bearer = match authorization.split_once(' ') {
        Some((scheme, bearer)) if scheme.eq_ignore_ascii_case("bearer") && !bearer.contains(' ') => bearer,
        _ => return Err(unauthorized("the Authorization header must be: Bearer <join token>".to_owned())),
    };
    let ours = join_tokens::is_ours(bearer);
    let grant = if ours {
        let looked = inner.known_tokens.look(&*inner.secrets, bearer, node, inner.now());
        looked.await.map_err(refused)?
    } else {
        shared(inner, bearer)?;
        Grant { replace: false }
    };
    // A token that replaces takes the name in any case.
    if !grant.replace {
        may_take(inner, node).await?;
    }
    if !ours {
        return Ok(Way::Shared);
    }
    Ok(Way::Token { bearer: bearer.to_owned(), replace: grant.replace })
}

/// Checks KubeEdge's shared token, if it is enabled.
fn shared(inner: &Inner, jwt: &str) -> Result<(), Refusal> {
    if !inner.shared_token {
        let sentence = "KubeEdge's shared join token is disabled here (setting sharedToken): create a join token with \
                        `tombolo token create`";
        return Err(unauthorized(sentence.to_owned()));
    }
    shared_token::verify(&inner.authority, jwt, inner.now())
        .map(|_| ())
        .map_err(|error| unauthorized(error.to_string()))
}

/// A name that is taken is not given to another node, whether its Node is Ready or not.
async fn may_take(inner: &Inner, node: &NodeId) -> Result<(), Refusal> {
    match inner.identities.who_has(node).await.map_err(unknown)? {
        (NodeState::Present { control_plane: true, .. }, _) => Err(is_taken(node, "runs the control plane")),
        (NodeState::Present { .. }, _) => Err(is_taken(node, "exists")),
        (NodeState::Absent, Some(taken)) => Err(is_taken(node, &taken.to_string())),
        (NodeState::Absent, None) => Ok(()),
    }
}

fn check_usages(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(text) = header(headers, "ExtKeyUsages")? else { return Ok(()) };
    match serde_json::from_str::<Vec<u32>>(text) {
        Ok(usages) if usages == CLIENT_AUTH => Ok(()),
        _ => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("header ExtKeyUsages is {text:?}: expected exactly clientAuth, [2]"),
        )),
    }
}

async fn read<B>(body: B) -> Result<Bytes, Refusal>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, BODY_LEN_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request body exceeds {BODY_LEN_MAX} bytes"),
        )),
        Err(error) => {
            Err(Refusal::new(StatusCode::BAD_REQUEST, format!("the request body did not arrive: {error}")))
        }
    }
}

fn der(bytes: Vec<u8>) -> RouteResponse {
    response(StatusCode::OK, "application/octet-stream", bytes.into())
}
