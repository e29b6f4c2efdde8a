//! The routes of the join port (docs/reference/kubeedge.md#join-routes). Every refusal is one plain sentence.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use rustls_pki_types::CertificateDer;
use tombolo_link::identity::{PeerCertificate, certificate_of};
use tombolo_proto::NodeId;
use tombolo_runtime::door::{Source, Working};

use super::Inner;
use super::csr;
use super::identities::IdentityError;
use super::issue::{Way, issue};
use super::nodes::NodeState;
use super::peer::Peer;
use super::token;
use super::tokens::{self, Grant};

/// Largest request body; a signing request has some 300 bytes.
pub(super) const BODY_LEN_MAX: usize = 64 * 1024;

/// The only extended key usage of a node: clientAuth in Go's numbering (docs/reference/kubeedge.md#join-routes).
const CLIENT_AUTH: &[u32] = &[2];

const RETRY_SECONDS: &str = "5";

type Answer = Response<Full<Bytes>>;

/// A refusal: status and sentence.
#[derive(Debug)]
pub(super) struct Refusal(StatusCode, String);

impl Refusal {
    pub(super) fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self(status, sentence.into())
    }
}

/// Who is at the other end of a connection.
pub(super) struct Visitor {
    pub(super) source: Source,
    /// The certificate that was shown, and those that came with it.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The place of the connection.
    pub(super) place: Arc<Working>,
}

/// Answers one request of a connection.
pub(super) async fn answer<B>(inner: &Arc<Inner>, visitor: &Visitor, request: Request<B>) -> Answer
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
            format!(
                "there is no {path} here: this is the join port, with /ca.crt, /edge.crt and /node/<name>"
            ),
        )),
    };
    result.unwrap_or_else(|Refusal(status, sentence)| {
        if let Some(left_out) = inner.lines.admit(source) {
            tracing::info!(%source, %method, path, %status, sentence, left_out, "join request refused");
        }
        text(status, sentence)
    })
}

fn is_known(path: &str) -> bool {
    matches!(path, "/ca.crt" | "/edge.crt") || path.starts_with("/node/") || is_task_report(path)
}

fn is_task_report(path: &str) -> bool {
    path == "/nodeupgrade" || path.starts_with("/task/")
}

/// Reports of node tasks: nobody here started one, and nobody without a node's certificate may claim that.
fn task_report(inner: &Inner, chain: &[CertificateDer<'_>]) -> Result<Answer, Refusal> {
    match inner.judge.judge(chain, inner.now()) {
        Peer::Node(..) => Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "node tasks are not supported")),
        _ => Err(Refusal::new(StatusCode::UNAUTHORIZED, "reports of node tasks need the node's certificate")),
    }
}

/// Whether a node is registered, for the node itself. KubeEdge's installer asks without a certificate, to find a name
/// that is taken: strangers are always told that it is free, and `/edge.crt` refuses the join.
async fn node_exists(inner: &Inner, chain: &[CertificateDer<'_>], path: &str) -> Result<Answer, Refusal> {
    let name = path.strip_prefix("/node/").unwrap_or_default();
    let node = node_id(name)?;
    let absent = || text(StatusCode::NOT_FOUND, "Node not found".to_owned());
    match inner.judge.judge(chain, inner.now()) {
        Peer::Node(own, certificate) if own == node => in_force(inner, &node, &certificate).await?,
        _ => return Ok(absent()),
    }
    match node_state(inner, &node).await? {
        NodeState::Absent => Ok(absent()),
        NodeState::Present { .. } => Ok(text(StatusCode::OK, "Node found".to_owned())),
    }
}

async fn edge_certificate<B>(
    inner: &Arc<Inner>,
    visitor: &Visitor,
    request: Request<B>,
) -> Result<Answer, Refusal>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Visitor { source, chain, place } = visitor;
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
    // Last, so that a request that gets nothing uses nothing up.
    issue(inner, place, &node, way, certificate).await?;
    if let Some(left_out) = inner.lines.admit(source) {
        tracing::info!(%source, %node, renewal, left_out, "node certificate issued");
    }
    Ok(der(signed.to_vec()))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn unknown(error: IdentityError) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

/// Asks the records what a certificate is worth now.
async fn in_force(inner: &Inner, node: &NodeId, certificate: &PeerCertificate) -> Result<(), Refusal> {
    let answer = inner.identities.check_anew(node, certificate).await.map_err(unknown)?;
    answer.map_err(|why| unauthorized(why.to_string()))
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

/// A node is known by its certificate, an expired one within the grace period included, or joins by token.
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
                format!("the client certificate is of node {own} and the request is for node {node}");
            return Err(Refusal::new(StatusCode::FORBIDDEN, sentence));
        }
        Peer::Node(_, certificate) => match in_force(inner, node, &certificate).await {
            Ok(()) => return Ok(Way::Renewal(certificate)),
            Err(refusal) => refusal,
        },
        Peer::Expired(_, certificate, since) if since <= inner.expired_grace => {
            match still_registered(inner, node, &certificate).await {
                Ok(()) => return Ok(Way::Renewal(certificate)),
                Err(refusal) => refusal,
            }
        }
        Peer::Expired(_, _, since) => unauthorized(format!(
            "the client certificate expired {} days ago, more than the {} days of grace: join with a new token",
            since.as_secs() / 86_400,
            inner.expired_grace.as_secs() / 86_400
        )),
        Peer::Unknown(reason) => unauthorized(reason),
        Peer::Anonymous => unauthorized(
            "a join token (Authorization: Bearer) or the node's certificate is needed".to_owned(),
        ),
    };
    match authorization {
        // Whether a name is taken is nobody's business without a token.
        Some(authorization) if refusal.0 == StatusCode::UNAUTHORIZED => {
            join_by_token(inner, authorization, node).await
        }
        _ => Err(refusal),
    }
}

pub(super) fn unauthorized(sentence: String) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, sentence)
}

/// An expired certificate proves who the node was; a node that was deleted since must join again.
async fn still_registered(
    inner: &Inner,
    node: &NodeId,
    certificate: &PeerCertificate,
) -> Result<(), Refusal> {
    match node_state(inner, node).await? {
        NodeState::Absent => Err(unauthorized(format!(
            "the client certificate has expired and node {node} is no longer registered: join with a token"
        ))),
        NodeState::Present { .. } => in_force(inner, node, certificate).await,
    }
}

async fn join_by_token(inner: &Inner, authorization: &str, node: &NodeId) -> Result<Way, Refusal> {
    let bearer = match authorization.split_once(' ') {
        Some((scheme, bearer)) if scheme.eq_ignore_ascii_case("bearer") && !bearer.contains(' ') => bearer,
        _ => return Err(unauthorized("the Authorization header must be: Bearer <join token>".to_owned())),
    };
    let ours = tokens::is_ours(bearer);
    let grant = if ours {
        tokens::look(&*inner.secrets, bearer, node, inner.now()).await.map_err(refused)?
    } else {
        shared(inner, bearer)?;
        Grant { replace: false }
    };
    let state = node_state(inner, node).await?;
    if !grant.replace {
        may_take(inner, node, &state).await?;
    }
    if !ours {
        return Ok(Way::Shared);
    }
    Ok(Way::Token { bearer: bearer.to_owned(), replace: grant.replace })
}

/// KubeEdge's shared token, where it is on.
fn shared(inner: &Inner, jwt: &str) -> Result<(), Refusal> {
    if inner.tokens.is_none() {
        let sentence = "KubeEdge's shared join token is off here (sharedToken): make a token of this cloud with \
                        `tombolo token create`";
        return Err(unauthorized(sentence.to_owned()));
    }
    token::verify(&inner.authority, jwt, inner.now())
        .map(|_| ())
        .map_err(|error| unauthorized(error.to_string()))
}

/// A name that is taken is not given away, whether its Node is Ready or not.
async fn may_take(inner: &Inner, node: &NodeId, state: &NodeState) -> Result<(), Refusal> {
    match state {
        NodeState::Present { control_plane: true, .. } => Err(is_taken(node, "runs the control plane")),
        NodeState::Present { .. } => Err(is_taken(node, "exists")),
        NodeState::Absent => match inner.identities.taken(node).await.map_err(unknown)? {
            Some(taken) => Err(is_taken(node, &taken.to_string())),
            None => Ok(()),
        },
    }
}

pub(super) fn is_taken(node: &NodeId, what: &str) -> Refusal {
    let sentence = format!(
        "node {node} {what}: a join token does not take over its name. Delete the Node, choose another name, or make a \
         token that replaces it (`tombolo token create --node {node} --replace`)"
    );
    Refusal::new(StatusCode::CONFLICT, sentence)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn refused(error: tokens::Refused) -> Refusal {
    let status = match error {
        tokens::Refused::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        tokens::Refused::OtherName(_) => StatusCode::FORBIDDEN,
        _ => StatusCode::UNAUTHORIZED,
    };
    Refusal::new(status, error.to_string())
}

async fn node_state(inner: &Inner, node: &NodeId) -> Result<NodeState, Refusal> {
    let state = inner.nodes.state(node).await;
    state.map_err(|error| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
}

fn check_usages(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(text) = header(headers, "ExtKeyUsages")? else { return Ok(()) };
    match serde_json::from_str::<Vec<u32>>(text) {
        Ok(usages) if usages == CLIENT_AUTH => Ok(()),
        _ => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("header ExtKeyUsages is {text:?}: a node certificate has exactly clientAuth, [2]"),
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

fn der(bytes: Vec<u8>) -> Answer {
    response(StatusCode::OK, "application/octet-stream", bytes.into())
}

fn text(status: StatusCode, sentence: String) -> Answer {
    response(status, "text/plain; charset=utf-8", sentence.into())
}

fn response(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, http::HeaderValue::from_static(RETRY_SECONDS));
    }
    response
}
