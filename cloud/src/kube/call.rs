//! A single call of the Kubernetes API, under the identity that it is made for.

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
use tombolo_proto::NodeId;
use tombolo_proto::message::{StatusDetails, StatusError};
use tombolo_runtime::sentence;

use super::api_call::{ApiCall, BODY_LEN_MAX, CallError};
use super::call_limits::{Class, ListTurn};
use super::room::NODE_ANSWER_LEN_MAX;
use super::{Kube, Room, endless, is_large, is_object};

/// The identity under which a call runs.
#[derive(Debug, Clone, Copy)]
pub enum Caller<'a> {
    /// cloudcore itself.
    Own,
    /// cloudcore itself, on behalf of a node: with cloudcore's rights, and in the queue of that node's calls.
    OwnFor(&'a NodeId),
    /// The same with a turn that the node already has, so that the call holds nothing that others wait for while the
    /// node waits for its own calls.
    OwnInTurn(&'a ListTurn),
    /// A node, by impersonation (docs/reference/kubernetes.md#impersonation).
    Node(&'a NodeId),
    /// The owner of a bearer token behind a node. The token is forwarded unchanged (docs/security.md#requests-of-pods).
    Token(&'a NodeId, &'a str),
}

impl<'a> Caller<'a> {
    /// The node that caused the call.
    pub(super) fn node(self) -> Option<&'a NodeId> {
        match self {
            Self::Own => None,
            Self::OwnFor(node) | Self::Node(node) | Self::Token(node, _) => Some(node),
            Self::OwnInTurn(turn) => Some(&turn.node),
        }
    }

    /// The class of its call, if such a call is in this class when cloudcore makes it.
    fn class(self, class: Class) -> Class {
        match (class, self) {
            (Class::Review, Self::Node(_) | Self::Token(..)) => Class::Question,
            _ => class,
        }
    }

    /// The node in whose queue the call waits.
    fn waits_behind(self) -> Option<&'a NodeId> {
        self.node().filter(|_| !matches!(self, Self::OwnInTurn(_)))
    }
}

/// An answer of the API server.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status code.
    pub code: u16,
    /// `Content-Type`.
    pub content_type: String,
    /// Body.
    pub body: Bytes,
}

/// Status code of a call that must be retried later (RFC 6585, section 4).
const TOO_MANY: u16 = 429;

/// Maximum number of bytes of a plain-text refusal that are passed on.
const SENTENCE_LEN_MAX: usize = 1024;

/// The explanation of a failed call in a `Status`.
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
    /// A refusal in the format of API servers.
    pub(crate) fn refusal_of(error: &StatusError) -> Self {
        Self { code: error.code, content_type: "application/json".to_owned(), body: error.to_status() }
    }

    /// Whether the call succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The body as JSON; null when it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// `message` of a `Status`, or a text with the code.
    #[must_use]
    pub fn message(&self) -> String {
        let message = self.refusal().message;
        message.unwrap_or_else(|| format!("the API server answered with code {}", self.code))
    }

    /// Adds the time of the `Retry-After` header to the body if the body is not an object. An API server that sheds
    /// load says "too many requests" in plain text (docs/reference/kubernetes.md#too-many-requests), and only the body
    /// is passed on to the node.
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

    /// The explanation in the body, as far as it is a `Status`. The rest is chosen by the server behind the API server
    /// and is not kept.
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

/// The outermost error only says that a call has failed, so use the whole chain.
fn unreachable(error: &kube::Error) -> CallError {
    CallError::Unreachable(sentence(error))
}

impl Kube {
    /// Makes one call. An answer with an error code is also an answer.
    ///
    /// # Errors
    /// [`CallError`] when there is no answer.
    pub async fn call(&self, caller: Caller<'_>, call: ApiCall) -> Result<Answer, CallError> {
        let (limit, class, room) = (call.timeout, caller.class(class_of(&call)?), Room::current());
        let attempt = || self.attempt(caller, Some(class), call.clone(), room.as_ref());
        let answer = self.in_turn(caller, class, room.as_ref(), attempt);
        tokio::time::timeout(limit, answer).await.map_err(|_| CallError::TimedOut(limit))?
    }

    /// Makes attempts, each in a turn among the calls of the node, until there is an answer, which may have to wait for
    /// room.
    ///
    /// There is one order for everything that a call waits for: the node's room for a large answer, its turn, the copy
    /// of a document, a slot for a call to the API server. No call waits for one of these while it holds a later one.
    /// So a turn is given back before waiting for the room, while work that has the room from an earlier call may wait
    /// for a turn.
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

    /// Makes one call, whose answer is read into a room if there is one. None when a large answer must wait for its
    /// turn; nothing is held then. Without a class the call takes no slot, because the caller already has one.
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
        // A write must not be repeated only to get its answer.
        let room = room.map(|room| (room, call.method == Method::GET));
        let reading = Reading { room, max: call.answer_max };
        let request = self.request(caller, call)?;
        let _permit = match class {
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
                // A server that supports constrained impersonation falls back to the legacy check when it receives the
                // group, so the group is sent only to servers without that support
                // (docs/reference/kubernetes.md#impersonation).
                if self.impersonation.needs_group() {
                    request = request.header(IMPERSONATE_GROUP, "system:nodes");
                }
            }
            Caller::Token(_, token) => {
                let unusable =
                    || CallError::Invalid("the token is empty or contains invalid characters".to_owned());
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

/// The purpose of a call.
///
/// # Errors
/// As [`endless::read`].
pub(super) fn class_of(call: &ApiCall) -> Result<Class, CallError> {
    Ok(Class::of(&call.method, &endless::read(call)?))
}

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");

/// Where an answer is read to.
#[derive(Clone, Copy)]
struct Reading<'a> {
    /// The room for the answer, and whether the request can be repeated.
    room: Option<(&'a Room, bool)>,
    /// Maximum bytes if there is no room.
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

/// Collects a body in one piece of memory, which is taken from the room before it is allocated. None when a large
/// answer must wait for its turn.
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

/// Reserves memory for `len` bytes in total. False when a large answer must wait for its turn.
fn make_room(whole: &mut Vec<u8>, len: usize, reading: Reading<'_>) -> Result<bool, CallError> {
    let max = if reading.room.is_some() { NODE_ANSWER_LEN_MAX } else { reading.max };
    if len > max {
        return Err(CallError::TooLarge(max));
    }
    if len <= whole.capacity() {
        return Ok(true);
    }
    // Grow by a quarter each time: doubling would take the memory of another answer.
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
