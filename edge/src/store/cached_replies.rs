//! Reads and writes of kept answers.

use tombolo_proto::ids::{SubscriptionId, Uid};
use tombolo_proto::object::{ObjectKey, Resource};

use super::answers::{CachedReply, Question};
use super::error::{ReadError, WriteError};
use super::view::Found;
use super::{Store, writer};

impl Store {
    /// Keeps an answer and replaces an older one to the same question. An answer that is larger than its class allows
    /// is not kept.
    ///
    /// # Errors
    /// [`WriteError`] when it could not be written.
    pub async fn keep_answer(&self, question: Question, answer: CachedReply) -> Result<(), WriteError> {
        self.keep_answers(vec![(question, answer)]).await
    }

    /// As [`Self::keep_answer`] for several answers, in one commit.
    ///
    /// # Errors
    /// [`WriteError`] when they could not be written.
    pub async fn keep_answers(&self, answers: Vec<(Question, CachedReply)>) -> Result<(), WriteError> {
        self.run(writer::Command::KeepAnswers(answers)).await.map(drop)
    }

    /// The answer to a question, if it was kept.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn answer(&self, question: &Question) -> Result<Option<CachedReply>, ReadError> {
        self.read(|view| view.answer(question))
    }

    /// Whether the pod with this name and UID is on this node now. False for one that clients cannot see yet.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read.
    pub fn holds_pod(&self, namespace: &str, name: &str, uid: &Uid) -> Result<bool, ReadError> {
        let key = ObjectKey::new(Resource::new("", "v1", "pods"), namespace, name);
        let found = self.read(|view| view.find_in(SubscriptionId::NODE, &key))?;
        Ok(matches!(found, Found::Visible(pod) if pod.uid == *uid))
    }
}
