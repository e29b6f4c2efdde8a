//! The ledger of a running session: what is stored, what must be stored, and what may wait.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ids::{CloudRevision, Epoch, Moment, Uid};
use crate::limits::SUBSCRIPTIONS_MAX;
use crate::object::ObjectKey;
use crate::session::kubeedge::{
    LEDGER_RETRY, Ledger, LedgerEntry, LedgerFull, LedgerWrite, Share, Watch, kind_name,
};

/// Bytes of an entry of the ledger: the key's slot, kind and UID, each an allocation of its own.
const LEDGER_ENTRY_BYTES: usize = 192;

/// Bytes of a key's entry in a tree that is half full.
const PLACE_BYTES: usize = 24;

/// Most objects at a time that the edge received because it requested them, and that it should not keep: they are to
/// be deleted again.
const UNWANTED_MAX: usize = 512;

/// State of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Stored: the object may be sent.
    Stored,
    /// Part of the next write.
    Waiting,
}

/// A write that the owner is performing.
#[derive(Debug)]
struct OngoingWrite {
    number: u64,
    /// Keys that wait for it.
    keys: BTreeSet<ObjectKey>,
    /// Keys for which it states that the edge holds a version.
    claims: BTreeSet<ObjectKey>,
    /// It withdraws the versions that the edge may have lost.
    settles_uncertain: bool,
}

/// The ledger and its pending writes.
#[derive(Debug)]
pub(super) struct Recorder {
    ledger: Ledger,
    /// Keys that were named only for replies, and that the node does not need.
    unwanted: BTreeSet<ObjectKey>,
    /// Keys that wait for the next write.
    urgent: BTreeSet<ObjectKey>,
    /// Keys for which the stored state says, or may say, that the edge holds a version.
    claims: BTreeSet<ObjectKey>,
    /// The stored state names versions that the edge may have lost.
    uncertain: bool,
    write: Option<OngoingWrite>,
    newest: u64,
    /// A change since the newest write, which may wait.
    changed: bool,
    /// Least time between two writes of such changes.
    lazy: Duration,
    /// No write of such changes before this.
    lazy_at: Moment,
    /// No write at all before this.
    retry_at: Moment,
}

impl Recorder {
    /// Takes over a stored ledger. Revisions of another epoch have no meaning here. `lazy`: least time between two
    /// writes that nothing waits for.
    pub(super) fn new(mut ledger: Ledger, epoch: Epoch, lazy: Duration, now: Moment) -> Self {
        if ledger.epoch.as_ref() != Some(&epoch) {
            ledger.forget_revisions();
            ledger.epoch = Some(epoch);
        }
        ledger.watches.truncate(SUBSCRIPTIONS_MAX);
        Self {
            claims: claims(&ledger),
            ledger,
            unwanted: BTreeSet::new(),
            urgent: BTreeSet::new(),
            uncertain: false,
            write: None,
            newest: 0,
            changed: false,
            lazy,
            lazy_at: now + lazy,
            retry_at: now,
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Bytes that the ledger takes, besides the texts of its keys, for all but `own` of them.
    pub(super) fn memory(&self, own: usize) -> usize {
        let write = self.write.as_ref().map_or(0, |write| write.keys.len() + write.claims.len());
        let places = self.urgent.len().saturating_add(self.claims.len()).saturating_add(write);
        let places = places.saturating_sub(own);
        let entries = self.ledger.len().saturating_sub(own).saturating_mul(LEDGER_ENTRY_BYTES);
        entries.saturating_add(places.saturating_mul(PLACE_BYTES))
    }

    /// Makes sure that the ledger names the key and this incarnation before it is sent. While two incarnations may be
    /// at the edge, the entry names none, and a deletion applies to either.
    ///
    /// # Errors
    /// [`LedgerFull`] when there is no room.
    pub(super) fn want(
        &mut self,
        key: &ObjectKey,
        kind: &str,
        uid: &Uid,
        share: Share,
    ) -> Result<Standing, LedgerFull> {
        self.unwanted.remove(key);
        self.name(key, kind, uid, share)
    }

    /// The same for a reply. `needed`: the node needs the object. Objects that it does not need are limited in number.
    ///
    /// # Errors
    /// As [`Self::want`].
    pub(super) fn want_reply(
        &mut self,
        key: &ObjectKey,
        kind: &str,
        uid: &Uid,
        needed: bool,
    ) -> Result<Standing, LedgerFull> {
        if !needed && self.ledger.get(key).is_none() {
            if self.unwanted.len() >= UNWANTED_MAX {
                return Err(LedgerFull);
            }
            self.unwanted.insert(key.clone());
        }
        self.name(key, kind, uid, Share::Own)
    }

    fn name(&mut self, key: &ObjectKey, kind: &str, uid: &Uid, share: Share) -> Result<Standing, LedgerFull> {
        if let Some(standing) = self.standing(key, uid) {
            return Ok(standing);
        }
        if !self.ledger.has_room(key, share) {
            return Err(LedgerFull);
        }
        let uid = self.ledger.get(key).is_none().then(|| uid.clone());
        self.ledger.insert(key.clone(), LedgerEntry { kind: kind.into(), uid, revision: None })?;
        self.urgent.insert(key.clone());
        Ok(Standing::Waiting)
    }

    /// State of a key that the ledger names and whose entry allows this incarnation; otherwise none.
    pub(super) fn standing(&self, key: &ObjectKey, uid: &Uid) -> Option<Standing> {
        let named = self.ledger.get(key)?.uid.as_ref();
        named.is_none_or(|named| named == uid).then(|| {
            let waits = self.urgent.contains(key)
                || self.write.as_ref().is_some_and(|write| write.keys.contains(key));
            if waits { Standing::Waiting } else { Standing::Stored }
        })
    }

    /// Whether the next write cannot wait.
    pub(super) fn is_urgent(&self, now: Moment) -> bool {
        !self.urgent.is_empty() && self.deadline().is_some_and(|due| due <= now)
    }

    /// Names keys that will soon be wanted, so that one urgent write makes the next ones unnecessary. The incarnation
    /// that will be sent is not known; a key without a known kind, or without room, is left for later.
    pub(super) fn expect(&mut self, keys: impl IntoIterator<Item = ObjectKey>) {
        for key in keys {
            if self.ledger.get(&key).is_none()
                && self.ledger.has_room(&key, Share::Own)
                && let Some(kind) = kind_name(key.resource(), None)
            {
                // A full ledger is reported when the object itself is due.
                let named = self.ledger.insert(key.clone(), LedgerEntry { kind, uid: None, revision: None });
                if named.is_ok() {
                    self.urgent.insert(key);
                }
            }
        }
    }

    /// Withdraws the record that the edge holds a version, before anything is sent that may invalidate it: if this
    /// process ended now, its successor would trust the stored state.
    pub(super) fn forget(&mut self, key: &ObjectKey) -> Standing {
        self.changed |= self.ledger.forget_revision(key);
        if !self.claims.contains(key) {
            return Standing::Stored;
        }
        self.urgent.insert(key.clone());
        Standing::Waiting
    }

    /// The same before a reply with this version is sent, if it is older than what the edge holds.
    pub(super) fn forget_newer(&mut self, key: &ObjectKey, revision: CloudRevision) -> Standing {
        let noted = self.ledger.get(key).and_then(|entry| entry.revision);
        if noted.is_some_and(|noted| noted <= revision) { Standing::Stored } else { self.forget(key) }
    }

    /// The edge may have lost these objects.
    pub(super) fn mark_uncertain(&mut self, keys: &BTreeSet<ObjectKey>) {
        for key in keys {
            self.uncertain |= self.forget(key) == Standing::Waiting;
        }
    }

    /// Whether the stored state names no version that the edge may have lost.
    pub(super) fn is_sure(&self) -> bool {
        !self.uncertain && !self.write.as_ref().is_some_and(|write| write.settles_uncertain)
    }

    /// The edge has acknowledged a version, and holds no other.
    pub(super) fn acked(&mut self, key: &ObjectKey, uid: &Uid, revision: CloudRevision) {
        self.changed |= self.ledger.note(key, uid, revision);
    }

    /// The edge has acknowledged the deletion.
    pub(super) fn removed(&mut self, key: &ObjectKey) {
        self.unwanted.remove(key);
        self.changed |= self.ledger.remove(key).is_some();
    }

    pub(super) fn set_watches(&mut self, mut watches: Vec<Watch>) {
        watches.truncate(SUBSCRIPTIONS_MAX);
        self.changed |= self.ledger.watches != watches;
        self.ledger.watches = watches;
    }

    pub(super) fn poll(&mut self, now: Moment) -> Option<LedgerWrite> {
        if self.deadline().is_none_or(|due| now < due) {
            return None;
        }
        self.newest += 1;
        let claims = claims(&self.ledger);
        self.claims.extend(claims.iter().cloned());
        let (keys, settles_uncertain) =
            (std::mem::take(&mut self.urgent), std::mem::take(&mut self.uncertain));
        self.write = Some(OngoingWrite { number: self.newest, keys, claims, settles_uncertain });
        self.changed = false;
        self.lazy_at = now + self.lazy;
        Some(LedgerWrite { number: self.newest, ledger: self.ledger.clone() })
    }

    /// When the next write is due; none while one is under way or nothing has changed.
    pub(super) fn deadline(&self) -> Option<Moment> {
        if self.write.is_some() {
            return None;
        }
        if !self.urgent.is_empty() {
            return Some(self.retry_at);
        }
        self.changed.then(|| self.lazy_at.max(self.retry_at))
    }

    /// A write has succeeded. Returns the keys that may be checked now.
    pub(super) fn saved(&mut self, number: u64, now: Moment) -> BTreeSet<ObjectKey> {
        self.retry_at = now;
        let Some(write) = self.write.take_if(|write| write.number == number) else { return BTreeSet::new() };
        self.claims = write.claims;
        write.keys
    }

    pub(super) fn failed(&mut self, number: u64, now: Moment) {
        if self.give_up(number) {
            self.retry_at = now + LEDGER_RETRY;
        }
    }

    fn give_up(&mut self, number: u64) -> bool {
        let Some(write) = self.write.take_if(|write| write.number == number) else { return false };
        self.urgent.extend(write.keys);
        self.uncertain |= write.settles_uncertain;
        self.changed = true;
        true
    }

    /// Adds what another cloudcore has stored. Returns the keys that are new here.
    pub(super) fn conflict(&mut self, number: u64, theirs: &Ledger) -> Vec<ObjectKey> {
        self.give_up(number);
        // The edge may have invalidated the versions in their ledger since.
        self.claims.extend(claims(theirs));
        let mut added = Vec::new();
        for (key, entry) in theirs.entries() {
            // The versions in their ledger may come from another connection of this edge, so they are ignored.
            let entry = LedgerEntry { revision: None, ..entry.clone() };
            if self.ledger.get(key).is_none() && self.ledger.insert(key.clone(), entry).is_ok() {
                added.push(key.clone());
            }
        }
        added
    }

    /// Whether the stored state differs from the present one.
    pub(super) fn unsaved(&self) -> bool {
        self.changed || !self.urgent.is_empty() || self.write.is_some()
    }
}

/// Keys for which a state says that the edge holds a version.
fn claims(ledger: &Ledger) -> BTreeSet<ObjectKey> {
    let claimed = ledger.entries().filter(|(_, entry)| entry.revision.is_some());
    claimed.map(|(key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Resource;

    const LAZY: Duration = Duration::from_secs(60);

    fn epoch(generation: u64) -> Epoch {
        Epoch { cluster: uid("cluster"), generation }
    }

    fn uid(text: &str) -> Uid {
        Uid::parse(text).expect(text)
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", name)
    }

    fn at(seconds: u64) -> Moment {
        Moment::after_origin(Duration::from_secs(seconds))
    }

    fn recorder() -> Recorder {
        Recorder::new(Ledger::default(), epoch(1), LAZY, at(0))
    }

    fn want(recorder: &mut Recorder, name: &str, incarnation: &str) -> Standing {
        recorder.want(&key(name), "ConfigMap", &uid(incarnation), Share::Own).expect("room")
    }

    #[test]
    fn a_key_is_stored_before_it_is_sent_and_once() {
        let mut recorder = recorder();
        assert_eq!(want(&mut recorder, "a", "1"), Standing::Waiting);
        let write = recorder.poll(at(0)).expect("urgent");
        assert!(write.ledger.get(&key("a")).is_some());
        assert_eq!(want(&mut recorder, "a", "1"), Standing::Waiting);
        assert_eq!(want(&mut recorder, "b", "1"), Standing::Waiting);
        assert!(recorder.poll(at(0)).is_none(), "one write at a time");
        assert_eq!(recorder.saved(write.number, at(0)), [key("a")].into());
        assert_eq!(want(&mut recorder, "a", "1"), Standing::Stored);
        assert_eq!(want(&mut recorder, "b", "1"), Standing::Waiting);
        assert_eq!(recorder.poll(at(0)).expect("urgent").ledger.len(), 2);
        assert_eq!(want(&mut recorder, "a", "2"), Standing::Waiting, "another incarnation is stored as well");
        assert_eq!(recorder.ledger().get(&key("a")).expect("named").uid, None, "it is either of them");
        recorder.acked(&key("a"), &uid("2"), CloudRevision(7));
        assert_eq!(recorder.ledger().get(&key("a")).expect("named").uid, Some(uid("2")));
    }

    #[test]
    fn urgent_write_includes_keys_wanted_soon() {
        let mut recorder = recorder();
        assert!(!recorder.is_urgent(at(0)));
        want(&mut recorder, "a", "1");
        assert!(recorder.is_urgent(at(0)));
        let unknown = ObjectKey::new(Resource::new("x", "v1", "things"), "default", "t");
        recorder.expect([key("a"), key("b"), unknown]);
        let write = recorder.poll(at(0)).expect("urgent");
        assert_eq!(write.ledger.len(), 2, "the kind of the third is unknown");
        assert_eq!(want(&mut recorder, "b", "1"), Standing::Waiting, "it is being stored");
        assert_eq!(recorder.saved(write.number, at(0)), [key("a"), key("b")].into());
        assert_eq!(want(&mut recorder, "b", "1"), Standing::Stored);
        assert_eq!(recorder.ledger().get(&key("a")).expect("named").uid, Some(uid("1")));
        recorder.acked(&key("b"), &uid("1"), CloudRevision(7));
        assert_eq!(recorder.ledger().get(&key("b")).expect("named").uid, Some(uid("1")));
    }

    /// A user who creates a pod can make its node request any number of objects.
    #[test]
    fn ledger_names_few_requested_objects_that_are_not_needed() {
        let mut recorder = recorder();
        let mut asked = |number: usize, needed: bool| {
            recorder.want_reply(&key(&format!("c{number}")), "ConfigMap", &uid("1"), needed)
        };
        let given = (0..2 * UNWANTED_MAX).filter(|number| asked(*number, false).is_ok()).count();
        assert_eq!(given, UNWANTED_MAX);
        assert!(asked(3 * UNWANTED_MAX, true).is_ok(), "what it needs it is given");
        assert!(asked(0, false).is_ok(), "it has that already");
        recorder.removed(&key("c0"));
        recorder.want_reply(&key("c5000"), "ConfigMap", &uid("1"), false).expect("there is room again");
        assert_eq!(recorder.want_reply(&key("c5001"), "ConfigMap", &uid("1"), false), Err(LedgerFull));
        assert!(recorder.want(&key("c5001"), "ConfigMap", &uid("1"), Share::Own).is_ok(), "it needs it now");
    }

    #[test]
    fn removals_and_versions_are_batched() {
        let mut recorder = recorder();
        want(&mut recorder, "a", "1");
        let number = recorder.poll(at(1)).expect("urgent").number;
        recorder.saved(number, at(1));
        recorder.acked(&key("a"), &uid("1"), CloudRevision(7));
        assert!(recorder.poll(at(2)).is_none() && recorder.unsaved());
        assert_eq!(recorder.deadline(), Some(at(61)));
        let write = recorder.poll(at(61)).expect("due");
        assert_eq!(write.ledger.get(&key("a")).expect("named").revision, Some(CloudRevision(7)));
        recorder.saved(write.number, at(61));
        assert!(!recorder.unsaved() && recorder.deadline().is_none());
        recorder.removed(&key("a"));
        assert!(recorder.unsaved() && recorder.ledger().is_empty());
    }

    #[test]
    fn stored_version_is_withdrawn_before_it_becomes_wrong() {
        let mut recorder = recorder();
        want(&mut recorder, "a", "1");
        recorder.acked(&key("a"), &uid("1"), CloudRevision(7));
        let write = recorder.poll(at(0)).expect("urgent");
        assert_eq!(recorder.forget_newer(&key("a"), CloudRevision(7)), Standing::Stored);
        assert_eq!(recorder.forget_newer(&key("a"), CloudRevision(6)), Standing::Waiting, "it may be stored");
        recorder.saved(write.number, at(0));
        recorder.mark_uncertain(&[key("a")].into());
        assert!(!recorder.is_sure());
        let write = recorder.poll(at(0)).expect("urgent");
        recorder.failed(write.number, at(0));
        assert!(!recorder.is_sure());
        let write = recorder.poll(at(1)).expect("again");
        assert!(!recorder.is_sure());
        recorder.saved(write.number, at(1));
        assert!(recorder.is_sure() && recorder.forget(&key("a")) == Standing::Stored);
    }

    #[test]
    fn failed_ledger_writes_are_retried() {
        let mut recorder = recorder();
        want(&mut recorder, "a", "1");
        let write = recorder.poll(at(0)).expect("urgent");
        recorder.failed(write.number, at(0));
        assert!(recorder.poll(at(0)).is_none());
        assert!(recorder.saved(write.number, at(0)).is_empty(), "an answer to a write that failed");
        recorder.failed(write.number, at(5));
        let write = recorder.poll(at(6)).expect("again");
        assert_eq!(recorder.saved(write.number, at(6)), [key("a")].into());
    }

    #[test]
    fn ledger_conflict_merges_only_new_keys() {
        let mut recorder = recorder();
        want(&mut recorder, "a", "2");
        let write = recorder.poll(at(0)).expect("urgent");
        let mut theirs = Ledger::default();
        for (name, revision) in [("a", 9), ("b", 9)] {
            let entry = LedgerEntry {
                kind: "ConfigMap".into(),
                uid: Some(uid("1")),
                revision: Some(CloudRevision(revision)),
            };
            theirs.insert(key(name), entry).expect("room");
        }
        assert_eq!(recorder.conflict(write.number, &theirs), vec![key("b")]);
        assert_eq!(recorder.ledger().get(&key("a")).expect("named").uid, Some(uid("2")));
        assert_eq!(recorder.ledger().get(&key("b")).expect("named").revision, None);
        assert!(recorder.poll(at(0)).is_some());
    }

    #[test]
    fn new_epoch_drops_versions_and_keeps_keys() {
        let mut ledger = Ledger::new(Some(epoch(1)), Vec::new());
        let entry =
            LedgerEntry { kind: "ConfigMap".into(), uid: Some(uid("1")), revision: Some(CloudRevision(7)) };
        ledger.insert(key("a"), entry).expect("room");
        let kept = Recorder::new(ledger.clone(), epoch(1), LAZY, at(0));
        assert_eq!(kept.ledger().get(&key("a")).expect("named").revision, Some(CloudRevision(7)));
        let other = Recorder::new(ledger, epoch(2), LAZY, at(0));
        assert_eq!(other.ledger().get(&key("a")).expect("named").revision, None);
    }
}
