//! Continue tokens: the end of a page and its revision. Opaque to clients.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tombolo_proto::object::ObjectKey;

use crate::revision::Revision;
use crate::status::ApiError;

/// Longest token that is read, in bytes.
const TOKEN_LEN_MAX: usize = 2048;

const VERSION: &str = "meta.k8s.io/v1";

/// The position at which a list continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    v: String,
    /// Revision of the first page; -1 to continue in the current state.
    rv: i64,
    /// Namespace (may be empty), a slash, and the name of the last object of the page.
    start: String,
}

impl Token {
    pub(super) fn new(revision: Revision, last: &ObjectKey) -> Self {
        let start = format!("{}/{}", last.namespace(), last.name());
        Self { v: VERSION.to_owned(), rv: i64::try_from(revision.0).unwrap_or(-1), start }
    }

    /// The token to continue without the snapshot.
    pub(super) fn inconsistent(&self) -> Self {
        Self { rv: -1, ..self.clone() }
    }

    pub(super) fn encode(&self) -> String {
        // Strings and a number always serialize.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    pub(super) fn decode(text: &str) -> Result<Self, ApiError> {
        let refuse = |why: &str| {
            ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
        };
        if text.len() > TOKEN_LEN_MAX {
            return Err(refuse("it is too long"));
        }
        let bytes =
            URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|error| refuse(&error.to_string()))?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|error| refuse(&error.to_string()))?;
        if token.v != VERSION {
            return Err(refuse(&format!("server does not recognize this encoded version {:?}", token.v)));
        }
        if token.rv == 0 || token.rv < -1 {
            return Err(refuse("incorrect encoded start resourceVersion"));
        }
        if token.start.matches('/').count() != 1
            || token.start.split('/').any(|part| matches!(part, "." | ".."))
        {
            return Err(refuse(&token.start));
        }
        Ok(token)
    }

    /// Revision to read at; `None` for the current one.
    pub(super) fn revision(&self) -> Option<Revision> {
        u64::try_from(self.rv).ok().map(Revision)
    }

    /// Namespace and name of the last object of the previous page.
    pub(super) fn after(&self) -> (&str, &str) {
        self.start.split_once('/').unwrap_or(("", &self.start))
    }
}
