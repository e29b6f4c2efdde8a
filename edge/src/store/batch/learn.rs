//! What replies to writes say about objects: kept before the writer is answered
//! (docs/edge-node.md#what-the-local-api-answers), so that whoever writes reads its own write.

use bytes::Bytes;
use tombolo_proto::ids::{CloudRevision, Uid};
use tombolo_proto::object::{ContentHash, ObjectKey, ObjectVersion};

use super::super::error::WriteError;
use super::super::row::{ObjectRow, State, unreading};
use super::super::{Learned, is_pushed, kept, keys, splice, view};
use super::Batch;

impl Batch<'_> {
    /// Keeps a version of an object that came as the reply to a request, when something here wants the object and the
    /// version is newer than what is held. What the writer is answered: the object under its local revision; none when
    /// nothing here holds it.
    ///
    /// When something newer is held already, the answer has a local revision that never was: a write that is based on it
    /// is a conflict, as it must be.
    pub(in crate::store) fn learn(&mut self, learned: &Learned) -> Result<Option<Bytes>, WriteError> {
        // A row that no inventory can name would end every session.
        if !tombolo_proto::codec::carries(&learned.key) {
            return Ok(None);
        }
        let Some(place) = keys::encode(&learned.key) else { return Ok(None) };
        let Ok(facts) = splice::facts(&learned.body) else { return Ok(None) };
        let (Ok(revision), Ok(uid)) = (CloudRevision::parse(&facts.resource_version), Uid::parse(&facts.uid))
        else {
            return Ok(None);
        };
        let old = self.row(&place)?;
        let mut wanted = match &old {
            Some(row) if row.state != State::Absent => row.scopes.clone(),
            _ => self.wanting(&learned.key, old.as_ref()),
        };
        if learned.keep {
            super::add(&mut wanted, kept::SCOPE.0);
        }
        // To know that the cloud cannot read an object is not to want what somebody else has read.
        if wanted.iter().all(|scope| unreading(*scope).is_some()) {
            return Ok(None);
        }
        let same = old.as_ref().filter(|row| row.state != State::Absent && row.version.uid == uid);
        let version = ObjectVersion { uid, revision, hash: ContentHash(0) };
        if same.is_none() && (facts.is_gone() || self.gone.lock().includes(self.state.era, &version)) {
            return Ok(None);
        }
        if self.is_news(old.as_ref(), &version) {
            let Ok((body, hash)) = splice::trimmed(&learned.body) else { return Ok(None) };
            let hash = if self.is_comparable(&learned.key) { hash } else { ContentHash(0) };
            let version = ObjectVersion { hash, ..version };
            let body = match same {
                Some(held) => self.with_own(held, &learned.key, &body)?,
                None => body,
            };
            let base = same.cloned().unwrap_or_else(|| ObjectRow::absent(Vec::new()));
            let state = if base.state == State::Absent { State::Visible } else { base.state };
            let era = self.state.era;
            let row =
                ObjectRow { state, version, era, scopes: wanted, body, sealed: false, local: 0, ..base };
            self.replace(&place, &learned.key, old, row)?;
        } else if let Some(held) = old.filter(|held| held.scopes != wanted) {
            self.put(&place, &ObjectRow { scopes: wanted, ..held })?;
        }
        if learned.keep {
            self.note_question(&place)?;
        }
        self.answer(&place, learned, revision)
    }

    /// Whether a reply says more than what is held.
    fn is_news(&self, held: Option<&ObjectRow>, told: &ObjectVersion) -> bool {
        held.filter(|row| row.state != State::Absent).is_none_or(|held| match held.era == self.state.era {
            true => told.revision > held.version.revision,
            // Of another history: only another object, and what no session compares, is replaced by an answer.
            false => held.version.uid != told.uid || held.is_left_to_questions(),
        })
    }

    fn answer(
        &self,
        place: &[u8],
        learned: &Learned,
        revision: CloudRevision,
    ) -> Result<Option<Bytes>, WriteError> {
        let Some(row) = self.row(place)?.filter(|row| row.state == State::Visible) else { return Ok(None) };
        if row.version.revision == revision {
            return Ok(Some(view::plain(self.sealer, &learned.key, &row)?));
        }
        splice::stamp(&learned.body, row.local.saturating_sub(1)).map(Some).map_err(WriteError::Rejected)
    }

    /// The scopes that want a new object: complete subscriptions of its whole resource or namespace, and the pushed set
    /// where a pod refers to what did not exist.
    pub(super) fn wanting(&self, key: &ObjectKey, old: Option<&ObjectRow>) -> Vec<u32> {
        let mut wanting = old.map(|row| row.scopes.clone()).unwrap_or_default();
        for (number, row) in self.scope_rows.iter() {
            let Some(subscription) = row.subscription.as_ref().filter(|_| row.synced) else { continue };
            let selection = subscription.selection();
            let whole = selection.label_selector.is_empty() && selection.field_selector.is_empty();
            let here = selection.namespace.is_empty() || selection.namespace == key.namespace();
            if whole && here && selection.resource == *key.resource() {
                super::add(&mut wanting, *number);
            }
        }
        wanting
    }

    /// Whether the hash of what came in a reply is that which the cloud would send: it trims by the same rules, and of
    /// Nodes it drops more than this agent does.
    fn is_comparable(&self, key: &ObjectKey) -> bool {
        let nodes = is_pushed(key.resource()) && &*key.resource().name == "nodes";
        self.state.trim_version == splice::TRIM_VERSION && !nodes
    }
}
