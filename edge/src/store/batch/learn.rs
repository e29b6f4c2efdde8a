//! Objects in replies to writes. They are stored before the writer is answered
//! (docs/edge-node.md#what-the-local-api-answers), so that clients read their own writes.

use bytes::Bytes;
use tombolo_proto::ids::{CloudRevision, SubscriptionId, Uid};
use tombolo_proto::object::{ContentHash, ObjectKey, ObjectVersion};

use super::super::error::WriteError;
use super::super::row::{ObjectRow, SINGLE_OBJECTS, State, unreading};
use super::super::{Learned, is_pushed, keys, splice, view};
use super::Batch;

impl Batch<'_> {
    /// Stores a version of an object from the reply to a request, if something here needs the object and the version is
    /// newer than the stored one. Returns the answer to the writer: the object with its local revision; `None` if it is
    /// not stored here.
    ///
    /// If a newer version is stored already, the answer has a local revision that never existed, so that a write based
    /// on it is a conflict, as it must be.
    pub(in crate::store) fn learn(&mut self, learned: &Learned) -> Result<Option<Bytes>, WriteError> {
        // A row with a key that no inventory can carry would end every session.
        if !tombolo_proto::codec::carries(&learned.key) {
            return Ok(None);
        }
        let Some(row_key) = keys::encode(&learned.key) else { return Ok(None) };
        let Ok(facts) = splice::facts(&learned.body) else { return Ok(None) };
        let (Ok(revision), Ok(uid)) = (CloudRevision::parse(&facts.resource_version), Uid::parse(&facts.uid))
        else {
            return Ok(None);
        };
        let old = self.row(&row_key)?;
        let mut wanted = match &old {
            Some(row) if row.state != State::Absent => row.subscriptions.clone(),
            _ => self.wanting(&learned.key, old.as_ref()),
        };
        if learned.keep {
            super::add(&mut wanted, SINGLE_OBJECTS.0);
        }
        // A subscription whose object the cloud cannot read must not get what another caller has read.
        if wanted.iter().all(|subscription| unreading(*subscription).is_some()) {
            return Ok(None);
        }
        let same = old.as_ref().filter(|row| row.state != State::Absent && row.version.uid == uid);
        let version = ObjectVersion { uid, revision, hash: ContentHash(0) };
        if same.is_none() && (facts.is_gone() || self.gone.lock().includes(self.state.era, &version)) {
            return Ok(None);
        }
        if facts.is_gone() {
            // Its version is that of a state before, and the cloud will report the deletion.
            return last_state(old.as_ref(), learned, revision);
        }
        if self.is_news(old.as_ref(), &version) {
            let is_node = is_pushed(learned.key.resource()) && &*learned.key.resource().name == "nodes";
            let Ok((body, hash)) = splice::trimmed(&learned.body, is_node) else { return Ok(None) };
            let is_others = is_node && !wanted.contains(&SubscriptionId::NODE.0);
            let hash = if self.is_comparable() && !is_others { hash } else { ContentHash(0) };
            let version = ObjectVersion { hash, ..version };
            let body = match same {
                Some(held) => self.with_own(held, &learned.key, &body)?,
                None => body,
            };
            let base = same.cloned().unwrap_or_else(|| ObjectRow::absent(Vec::new()));
            let state = if base.state == State::Absent { State::Visible } else { base.state };
            let era = self.state.era;
            let row = ObjectRow {
                state,
                version,
                era,
                subscriptions: wanted,
                body,
                sealed: false,
                local: 0,
                ..base
            };
            self.replace(&row_key, &learned.key, old, row)?;
        } else if let Some(held) = old.filter(|held| held.subscriptions != wanted) {
            self.put(&row_key, &ObjectRow { subscriptions: wanted, ..held })?;
        }
        if learned.keep {
            self.note_question(&row_key)?;
        }
        self.answer(&row_key, learned, revision)
    }

    /// Whether a reply is newer than the stored version.
    fn is_news(&self, held: Option<&ObjectRow>, answered: &ObjectVersion) -> bool {
        held.filter(|row| row.state != State::Absent).is_none_or(|held| match held.era == self.state.era {
            true => answered.revision > held.version.revision,
            // From another history: an answer replaces only another object, or one that no session compares.
            false => held.version.uid != answered.uid || held.is_left_to_questions(),
        })
    }

    fn answer(
        &self,
        row_key: &[u8],
        learned: &Learned,
        revision: CloudRevision,
    ) -> Result<Option<Bytes>, WriteError> {
        let Some(row) = self.row(row_key)?.filter(|row| row.state == State::Visible) else { return Ok(None) };
        if row.version.revision == revision {
            return Ok(Some(view::plain(self.sealer, &learned.key, &row)?));
        }
        Ok(Some(splice::stamp(&learned.body, row.local.saturating_sub(1))?))
    }

    /// The subscriptions that want a new object: complete subscriptions of its whole resource or namespace, and the
    /// pushed set if a pod refers to the object that did not exist.
    pub(super) fn wanting(&self, key: &ObjectKey, old: Option<&ObjectRow>) -> Vec<u32> {
        let mut wanting = old.map(|row| row.subscriptions.clone()).unwrap_or_default();
        for (number, row) in self.subscription_rows.iter() {
            let Some(selected) = row.selection.as_ref().filter(|_| row.synced) else { continue };
            let selection = selected.selection();
            let whole = selection.label_selector.is_empty() && selection.field_selector.is_empty();
            let here = selection.namespace.is_empty() || selection.namespace == key.namespace();
            if whole && here && selection.resource == *key.resource() {
                super::add(&mut wanting, *number);
            }
        }
        wanting
    }

    /// Whether the hash of an object in a reply equals the one that the cloud would send: it must use the same trimming
    /// rules.
    fn is_comparable(&self) -> bool {
        self.state.trim_version == splice::TRIM_VERSION
    }
}

/// The answer to a writer whose write has completed the deletion of an object that is held here.
fn last_state(
    held: Option<&ObjectRow>,
    learned: &Learned,
    revision: CloudRevision,
) -> Result<Option<Bytes>, WriteError> {
    let Some(held) = held.filter(|row| row.state == State::Visible) else { return Ok(None) };
    let is_same = held.version.revision == revision;
    let local = if is_same { held.local } else { held.local.saturating_sub(1) };
    Ok(Some(splice::stamp(&learned.body, local)?))
}
