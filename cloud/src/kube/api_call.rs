//! A call of the Kubernetes API, and why it may have no answer.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::Value;
use thiserror::Error;

/// Longest answer that cloudcore reads for itself, in bytes.
pub(crate) const ANSWER_LEN_MAX: usize = 16 * 1024 * 1024;

/// Longest body that kube-apiserver accepts. A longer one is not sent, because kube-apiserver closes the connection and
/// its error may be lost.
pub(super) const BODY_LEN_MAX: usize = 3 * 1024 * 1024;

/// An HTTP call.
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
    /// Time after which the call is abandoned.
    pub timeout: Duration,
    /// Longest answer that cloudcore reads for itself, in bytes. Answers for a node have a separate limit.
    pub answer_max: usize,
}

/// Timeout of cloudcore's own calls.
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

    /// Sends serialised JSON as it is.
    #[must_use]
    pub fn json_text(method: Method, path_and_query: impl Into<String>, body: Bytes) -> Self {
        Self::new(method, path_and_query, "application/json", body)
    }

    /// Sends a patch of the type given by the content type.
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

/// A call without an answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// Path, header or method are not valid HTTP.
    #[error("not a valid request: {0}")]
    Invalid(String),
    /// The call has no natural end.
    #[error(
        "a reply cannot carry an endless answer or a connection (watch, log with follow, attach, exec, portforward, \
         proxy): subscribe, or call the API server directly"
    )]
    Endless,
    /// A registration of the node is already in progress.
    #[error("a registration of this node is in progress: try again when it has been answered")]
    Registering,
    /// The API server cannot be reached, or closed the connection.
    #[error("the Kubernetes API does not answer: {0}")]
    Unreachable(String),
    /// The answer to a request for a list cannot be read as one.
    #[error("the answer of the Kubernetes API is not a list of {resource}: {problem}")]
    NotAList {
        /// Resource as `PLURAL` or `PLURAL.GROUP`.
        resource: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The call timed out.
    #[error("the Kubernetes API did not answer within {0:?}")]
    TimedOut(Duration),
    /// The request body is larger than the API server accepts.
    #[error("the request has {0} bytes, but the Kubernetes API accepts at most {BODY_LEN_MAX}: send less")]
    BodyTooLarge(usize),
    /// The answer is larger than a frame can carry, or than a node may request.
    #[error("the answer of the Kubernetes API has more than {0} bytes: request pages with limit=")]
    TooLarge(usize),
    /// The answer does not fit into the memory that the node may still take: its share, or what all nodes together may
    /// take, is used up. A large GET that only has to wait for its turn is not refused.
    #[error("this node, or all nodes together, use all memory that they may take: try again later")]
    NoRoom,
    /// This cloudcore has no client that can forward another client's token.
    #[error("this cloudcore cannot pass on the token of a local client")]
    NoForwarding,
}

impl CallError {
    /// Whether a retry of the same call may soon get an answer.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::NotAList { .. }
            | Self::TimedOut(_)
            | Self::NoRoom
            | Self::Registering => true,
            Self::Invalid(_)
            | Self::Endless
            | Self::BodyTooLarge(_)
            | Self::TooLarge(_)
            | Self::NoForwarding => false,
        }
    }
}
