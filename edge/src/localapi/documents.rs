//! Documents that the cluster publishes. They are fetched through the cloud, and kept on disk for use without a cloud
//! connection.

use std::time::Duration;

use bytes::Bytes;

use super::pass;
use crate::hub::{Caller, SharedHub};
use crate::identity::WallClock;
use crate::store::{CachedReply, Class, Question, ReadError, Store};

/// Fetches and keeps documents. Cheap to clone.
#[derive(Clone)]
pub(super) struct Documents {
    pub(super) store: Store,
    pub(super) hub: SharedHub,
    pub(super) clock: WallClock,
}

impl Documents {
    /// Fetches a document from the cloud.
    ///
    /// # Errors
    /// The reason as text.
    pub(super) async fn fetch(&self, path: &str, accept: &str, timeout: Duration) -> Result<Bytes, String> {
        let call = pass::get(path, accept);
        let reply = pass::heard(&self.hub, &Caller::Agent, call, timeout, None)
            .await
            .map_err(|error| error.message)?;
        if reply.code == 200 { Ok(reply.body) } else { Err(format!("{path}: code {}", reply.code)) }
    }

    /// The document that is kept under a path.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub(super) fn kept(&self, path: &str) -> Result<Option<Bytes>, ReadError> {
        Ok(self.store.answer(&question(path))?.map(|kept| kept.body))
    }

    /// Keeps a document. Returns whether it has changed.
    ///
    /// # Errors
    /// Why it cannot be kept, as text.
    pub(super) async fn keep(&self, path: &str, body: Bytes) -> Result<bool, String> {
        if self.kept(path).ok().flatten().is_some_and(|kept| kept == body) {
            return Ok(false);
        }
        let answer = CachedReply { given_at: self.clock.unix_seconds(), body };
        self.store.keep_answer(question(path), answer).await.map_err(|error| error.to_string())?;
        Ok(true)
    }
}

fn question(path: &str) -> Question {
    Question::new(Class::Document, &[path])
}
