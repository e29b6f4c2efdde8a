//! One call of the Kubernetes API, under the identity that it is for.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;
use tombolo_proto::NodeId;
use tombolo_proto::message::{StatusDetails, StatusError};
use tombolo_runtime::sentence;

use super::gate::{Class, ListTurn};
use super::room::NODE_ANSWER_LEN_MAX;
use super::{Kube, Room, endless, is_large, is_object};

/// Longest answer that cloudcore reads for itself, in bytes.
pub(crate) const ANSWER_LEN_MAX: usize = 16 * 1024 * 1024;

/// Longest body that kube-apiserver takes. A longer one is not sent: its refusal may be lost with the connection that
/// it ends.
const BODY_LEN_MAX: usize = 3 * 1024 * 1024;

/// Under whose rights a call runs.
#[derive(Debug, Clone, Copy)]
pub enum Caller<'a> {
    /// cloudcore itself.
    Own,
    /// cloudcore itself, for what a node has asked: with its rights, and among the calls of that node.
    OwnFor(&'a NodeId),
    /// The same in a turn of that node, so that nothing which others wait for is held while the node waits behind itself.
    OwnInTurn(&'a ListTurn),
    /// A node, by impersonation (docs/reference/kubernetes.md#impersonation).
    Node(&'a NodeId),
    /// The holder of a bearer token behind a node, which is passed on as it is (docs/security.md#requests-of-pods).
    Token(&'a NodeId, &'a str),
}

impl<'a> Caller<'a> {
    /// The node that is the cause of the call.
    pub(super) fn node(self) -> Option<&'a NodeId> {
        match self {
            Self::Own => None,
            Self::OwnFor(node) | Self::Node(node) | Self::Token(node, _) => Some(node),
            Self::OwnInTurn(turn) => Some(&turn.node),
        }
    }

    /// The node behind whose other calls it waits.
    fn waits_behind(self) -> Option<&'a NodeId> {
        self.node().filter(|_| !matches!(self, Self::OwnInTurn(_)))
    }
}

/// A call as HTTP has it.
#[derive(Debug, Clone)]
pub struct ApiCall {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path_and_query: String,
    /// `Content-Type`; empty without a body.
    pub content_type: String,
    /// `Accept`; empty for JSON.
    pub accept: String,
    /// Body.
    pub body: Bytes,
    /// Time after which the call is given up.
    pub timeout: Duration,
    /// Longest answer that cloudcore reads for itself, in bytes; a node's has a bound of its own.
    pub answer_max: usize,
}

/// Time after which cloudcore's own calls are given up.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);

impl ApiCall {
    /// Reads one path.
    #[must_use]
    pub fn get(path_and_query: impl Into<String>) -> Self {
        Self::new(Method::GET, path_and_query, "", Bytes::new())
    }

    /// Sends JSON.
    #[must_use]
    pub fn json(method: Method, path_and_query: impl Into<String>, body: &Value) -> Self {
        Self::json_text(method, path_and_query, body.to_string().into())
    }

    /// Sends JSON as it was written.
    #[must_use]
    pub fn json_text(method: Method, path_and_query: impl Into<String>, body: Bytes) -> Self {
        Self::new(method, path_and_query, "application/json", body)
    }

    /// Sends a patch of the type that its content type names.
    #[must_use]
    pub fn patch(path_and_query: impl Into<String>, content_type: &str, body: Bytes) -> Self {
        Self::new(Method::PATCH, path_and_query, content_type, body)
    }

    /// The path without its query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }

    fn new(method: Method, path_and_query: impl Into<String>, content_type: &str, body: Bytes) -> Self {
        Self {
            method,
            path_and_query: path_and_query.into(),
            content_type: content_type.to_owned(),
            accept: String::new(),
            body,
            timeout: CALL_TIMEOUT,
            answer_max: ANSWER_LEN_MAX,
        }
    }
}

/// What the API server answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status code.
    pub code: u16,
    /// `Content-Type`.
    pub content_type: String,
    /// Body.
    pub body: Bytes,
}

/// The code of a call that has to wait (RFC 6585, section 4).
const TOO_MANY: u16 = 429;

/// Bytes of a refusal in plain text that are passed on.
const SENTENCE_LEN_MAX: usize = 1024;

/// What a `Status` says of why a call has failed.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    pub(crate) message: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) details: Option<StatusDetails>,
}

#[derive(Default, Deserialize)]
struct StatusTexts<'a> {
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    details: Option<&'a RawValue>,
}

impl Answer {
    /// A refusal in the form that API servers have.
    pub(crate) fn refusal_of(error: &StatusError) -> Self {
        Self { code: error.code, content_type: "application/json".to_owned(), body: error.to_status() }
    }

    /// Whether the call did what it should.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// `message` of a `Status`, or what the code says.
    #[must_use]
    pub fn message(&self) -> String {
        let message = self.refusal().message;
        message.unwrap_or_else(|| format!("the API server answered with code {}", self.code))
    }

    /// The same with the time to wait that its head names, where the body has no place for it: an API server that sheds load says
    /// "too many requests" in plain text (docs/reference/kubernetes.md#too-many-requests), and nothing but the body goes on to the node.
    fn saying_when(self, seconds: Option<u32>) -> Self {
        let Some(retry_after_seconds) = seconds.filter(|_| self.code == TOO_MANY && !is_object(&self.body))
        else {
            return self;
        };
        let text = &self.body[..self.body.len().min(SENTENCE_LEN_MAX)];
        let details = Some(StatusDetails { retry_after_seconds, ..StatusDetails::default() });
        let error = StatusError::new(self.code, "TooManyRequests", String::from_utf8_lossy(text).trim());
        Self::refusal_of(&StatusError { details, ..error })
    }

    /// What the body says of why, as far as it is a `Status`. Whoever answers behind the API server chooses the rest, which is
    /// not kept.
    #[must_use]
    pub(crate) fn refusal(&self) -> Refusal {
        fn read<T: DeserializeOwned>(text: Option<&RawValue>) -> Option<T> {
            let text = text?.get();
            (!is_large(text.as_bytes())).then(|| serde_json::from_str(text).ok()).flatten()
        }
        let status = serde_json::from_slice::<StatusTexts<'_>>(&self.body).unwrap_or_default();
        Refusal { message: read(status.message), reason: read(status.reason), details: read(status.details) }
    }
}

/// A call that got no answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// Path, header or method are not HTTP.
    #[error("not a valid request: {0}")]
    Invalid(String),
    /// It has no end of its own.
    #[error(
        "a reply carries no answer without end and no connection (watch, log with follow, attach, exec, portforward, \
         proxy): subscribe, or ask the API server itself"
    )]
    Endless,
    /// The node's registration is under way.
    #[error("a registration of this node is under way: ask again when it is answered")]
    Registering,
    /// The API server cannot be reached or broke off.
    #[error("the Kubernetes API does not answer: {0}")]
    Unreachable(String),
    /// It took too long.
    #[error("the Kubernetes API did not answer within {0:?}")]
    TimedOut(Duration),
    /// The request is larger than the API server takes.
    #[error("the request has {0} bytes, and the Kubernetes API takes at most {BODY_LEN_MAX}: send less")]
    BodyTooLarge(usize),
    /// The answer is larger than a frame can carry, or than a node may ask for.
    #[error("the answer of the Kubernetes API has more than {0} bytes: ask for pages with limit=")]
    TooLarge(usize),
    /// The answers to this node, or to all of them, take as much memory as they may.
    #[error("the answers to this node wait to be read and take as much memory as they may: ask again later")]
    NoRoom,
    /// This cloudcore has no client that can carry a foreign token.
    #[error("this cloudcore cannot pass on the token of a local client")]
    NoForwarding,
}

impl CallError {
    /// Whether the same call may have an answer in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::TimedOut(_) | Self::NoRoom | Self::Registering => true,
            Self::Invalid(_)
            | Self::Endless
            | Self::BodyTooLarge(_)
            | Self::TooLarge(_)
            | Self::NoForwarding => false,
        }
    }
}

/// The outermost error says only that a call has failed.
fn unreachable(error: &kube::Error) -> CallError {
    CallError::Unreachable(sentence(error))
}

impl Kube {
    /// Makes one call. An answer with an error code is an answer.
    ///
    /// # Errors
    /// [`CallError`] when there is no answer.
    pub async fn call(&self, caller: Caller<'_>, call: ApiCall) -> Result<Answer, CallError> {
        let (limit, class, room) = (call.timeout, class_of(&call)?.by(caller), Room::current());
        let attempt = || self.attempt(caller, Some(class), call.clone(), room.as_ref());
        let answer = self.in_turn(caller, class, room.as_ref(), attempt);
        tokio::time::timeout(limit, answer).await.map_err(|_| CallError::TimedOut(limit))?
    }

    /// Tries in turn among the calls of the node until there is an answer, which may have to wait for room.
    ///
    /// There is one order for all that is waited for: the node's room for a large answer, its turn, the copy of a document, a
    /// place at the API server. Nobody waits for one of these with a later one in hand. So a turn is given back
    /// before the room is waited for, and work that has the room, of its call before, may wait for a turn.
    pub(super) async fn in_turn<F>(
        &self,
        caller: Caller<'_>,
        class: Class,
        room: Option<&Room>,
        attempt: impl Fn() -> F,
    ) -> Result<Answer, CallError>
    where
        F: Future<Output = Result<Option<Answer>, CallError>>,
    {
        loop {
            let turn = self.gate.turn(caller.waits_behind(), class).await?;
            if let Some(answer) = attempt().await? {
                return Ok(answer);
            }
            drop(turn);
            if let Some(room) = room {
                room.wait().await;
            }
        }
    }

    /// Makes one call, whose answer is read into a room if there is one. None when that is a large one and has to wait for its
    /// turn; nothing is held of it then. Without a class it waits for no place: the caller has one.
    pub(super) async fn attempt(
        &self,
        caller: Caller<'_>,
        class: Option<Class>,
        call: ApiCall,
        room: Option<&Room>,
    ) -> Result<Option<Answer>, CallError> {
        if call.body.len() > BODY_LEN_MAX {
            return Err(CallError::BodyTooLarge(call.body.len()));
        }
        let client = match caller {
            Caller::Token(..) => self.bare.as_ref().ok_or(CallError::NoForwarding)?,
            Caller::Own | Caller::OwnFor(_) | Caller::OwnInTurn(_) | Caller::Node(_) => &self.client,
        };
        // What was changed is not changed twice for the sake of its answer.
        let room = room.map(|room| (room, call.method == Method::GET));
        let reading = Reading { room, max: call.answer_max };
        let request = self.request(caller, call)?;
        let _place = match class {
            Some(class) => Some(self.gate.enter(class, caller.node().is_some()).await),
            None => None,
        };
        let response = client.send(request).await;
        read(response.map_err(|error| unreachable(&error))?, reading).await
    }

    fn request(&self, caller: Caller<'_>, call: ApiCall) -> Result<Request<Body>, CallError> {
        let mut request = Request::builder().method(call.method).uri(&call.path_and_query);
        if !call.content_type.is_empty() {
            request = request.header(CONTENT_TYPE, &call.content_type);
        }
        let accept = if call.accept.is_empty() { "application/json" } else { &call.accept };
        request = request.header(ACCEPT, accept);
        match caller {
            Caller::Own | Caller::OwnFor(_) | Caller::OwnInTurn(_) => {}
            Caller::Node(node) => {
                request = request.header(IMPERSONATE_USER, format!("system:node:{node}"));
                // The group makes a server that knows constrained impersonation fall back to the old check, so it
                // is sent only to servers that know nothing else (docs/reference/kubernetes.md#impersonation).
                if self.impersonation.needs_group() {
                    request = request.header(IMPERSONATE_GROUP, "system:nodes");
                }
            }
            Caller::Token(_, token) => {
                let unusable =
                    || CallError::Invalid("the token is empty or no token has its characters".to_owned());
                if !super::is_bearer_token(token) {
                    return Err(unusable());
                }
                let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| unusable())?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
        }
        request.body(Body::from(call.body)).map_err(|error| CallError::Invalid(error.to_string()))
    }
}

/// What a call is for.
///
/// # Errors
/// As [`endless::read`].
pub(super) fn class_of(call: &ApiCall) -> Result<Class, CallError> {
    Ok(Class::of(&call.method, &endless::read(call)?))
}

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// Where an answer is read into.
#[derive(Clone, Copy)]
struct Reading<'a> {
    /// A room for it, and whether the question can be asked again.
    room: Option<(&'a Room, bool)>,
    /// Bytes, where there is no room.
    max: usize,
}

async fn read(response: http::Response<Body>, reading: Reading<'_>) -> Result<Option<Answer>, CallError> {
    let (parts, body) = response.into_parts();
    let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (content_type, length) = (text(CONTENT_TYPE).to_owned(), text(CONTENT_LENGTH).parse().unwrap_or(0));
    let body = read_body(body, length, reading).await?;
    let answer = |body| Answer { code: parts.status.as_u16(), content_type, body };
    Ok(body.map(|body| answer(body).saying_when(text(RETRY_AFTER).parse().ok())))
}

/// Puts a body together in one piece of memory, which is taken from the room before it is there. None when a large answer
/// has to wait for its turn.
async fn read_body(mut body: Body, length: usize, reading: Reading<'_>) -> Result<Option<Bytes>, CallError> {
    let mut whole = Vec::new();
    let mut fits = make_room(&mut whole, length, reading)?;
    while fits && let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        let len = whole.len().saturating_add(data.len());
        fits = make_room(&mut whole, len, reading)?;
        if fits {
            whole.extend_from_slice(&data);
        }
    }
    Ok(fits.then(|| whole.into()))
}

/// Room for so many bytes in all. False when a large answer has to wait for its turn.
fn make_room(whole: &mut Vec<u8>, len: usize, reading: Reading<'_>) -> Result<bool, CallError> {
    let max = if reading.room.is_some() { NODE_ANSWER_LEN_MAX } else { reading.max };
    if len > max {
        return Err(CallError::TooLarge(max));
    }
    if len <= whole.capacity() {
        return Ok(true);
    }
    // A quarter more each time: twice as much would be the memory of another answer.
    let more = whole.capacity().saturating_add(whole.capacity() / 4);
    let capacity = more.min(max).max(len);
    let fits = match reading.room {
        Some((room, true)) => room.grow(capacity)?,
        Some((room, false)) => room.take(capacity).map(|()| true)?,
        None => true,
    };
    if fits {
        whole.reserve_exact(capacity.saturating_sub(whole.len()));
    }
    Ok(fits)
}
