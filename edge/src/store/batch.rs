//! One write transaction, which applies deliveries, replies and reports to the rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{ReadableTable, ReadableTableMetadata, Table, WriteTransaction};
use tombolo_apicore::history::ChangeKind;
use tombolo_apicore::store::{Revision, Stored};
use tombolo_proto::frame::{Change, RefusalReason};
use tombolo_proto::ids::{SubscriptionId, Uid};
use tombolo_proto::limits;
use tombolo_proto::object::{ObjectKey, ObjectVersion, SharedObject};

use super::answers::{self, CachedReply, Question};
use super::error::{WriteError, storage};
use super::lazy::Lazy;
use super::publication::{Publication, Published};
use super::row::{LogRow, LogVersion, ObjectRow, State, unread_by};
use super::schema::{self, ANSWERS, HIDDEN, KEPT, LOG, OBJECTS, OUTBOX, SLOTS, SUBSCRIPTIONS, StateRow};
use super::seal::Sealer;
use super::shared::Shared;
use super::tombstones::Tombstones;
use super::view::{CommittedView, Left, ObjectCounts, SubscriptionRows};
use super::{Delivery, LogBounds, Refused, is_pod, keys, splice, view};

mod hidden;
mod learn;
mod missing;
pub(super) mod offline_writes;
mod reports;
pub(super) mod single_objects;
mod subscriptions;

/// When the log is too long, this share of it (one in so many) is removed in addition.
const LOG_SLACK_SHARE: u64 = 64;

type Bodies<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// A write transaction, with the tables open that most commits touch. It has many fields because each table is one, and
/// rows are written together with counts, revisions and publications that are derived from them.
pub(super) struct Batch<'t> {
    objects: Bodies<'t>,
    hidden: Lazy<'t, &'static [u8], ()>,
    log: Table<'t, u64, &'static [u8]>,
    outbox: Lazy<'t, u64, &'static [u8]>,
    slots: Lazy<'t, &'static [u8], u64>,
    subscriptions: Lazy<'t, u32, &'static [u8]>,
    answers: Lazy<'t, &'static [u8], &'static [u8]>,
    kept: Lazy<'t, &'static [u8], (u64, u64)>,
    state: StateRow,
    /// The rows of `subscriptions`. Reading them again would cost every commit more than its object does.
    subscription_rows: Arc<SubscriptionRows>,
    tally: ObjectCounts,
    pub(super) sealer: &'t Sealer,
    bounds: LogBounds,
    gone: &'t Mutex<Tombstones>,
    /// The CA that clients see in addition to the cluster's.
    pub(super) trusted: Option<Arc<String>>,
    /// Subscriptions whose changes clients can see.
    read: BTreeSet<u32>,
    published: Published,
}

impl<'t> Batch<'t> {
    /// `base` is the newest committed state.
    pub(super) fn open(
        txn: &'t WriteTransaction,
        shared: &'t Shared,
        base: &CommittedView,
    ) -> Result<Self, WriteError> {
        let synced = base.subscriptions.iter().filter(|(_, row)| row.synced).map(|(number, _)| *number);
        let read = synced.chain([SubscriptionId::NODE.0]).collect();
        Ok(Self {
            objects: txn.open_table(OBJECTS).map_err(storage)?,
            hidden: Lazy::new(txn, HIDDEN),
            log: txn.open_table(LOG).map_err(storage)?,
            outbox: Lazy::new(txn, OUTBOX),
            slots: Lazy::new(txn, SLOTS),
            subscriptions: Lazy::new(txn, SUBSCRIPTIONS),
            answers: Lazy::new(txn, ANSWERS),
            kept: Lazy::new(txn, KEPT),
            state: StateRow { attestation: hex::encode(&*shared.attestation.lock()), ..base.state.clone() },
            subscription_rows: Arc::clone(&base.subscriptions),
            tally: base.tally,
            sealer: &shared.sealer,
            bounds: shared.bounds,
            gone: &shared.gone,
            trusted: shared.trusted.load_full(),
            read,
            published: Published::default(),
        })
    }

    /// Writes the state row, and returns what clients will see after the commit.
    pub(super) fn finish(mut self, txn: &WriteTransaction) -> Result<(Published, Left), WriteError> {
        self.trim_log()?;
        self.published.reports = self.outbox.is_open();
        let Self { state, subscription_rows: subscriptions, tally, published, .. } = self;
        schema::write_state(txn, &state)?;
        Ok((published, Left { state, subscriptions, tally }))
    }

    /// Applies one delivery. The inner error says why the edge refuses it.
    pub(super) fn apply(&mut self, delivery: &Delivery) -> Result<Result<(), Refused>, WriteError> {
        let subscription = delivery.subscription.0;
        let Some(row_key) = keys::encode(delivery.change.key()) else {
            return Ok(Err(malformed("its name contains a zero byte")));
        };
        match &delivery.change {
            Change::Upsert(object) => match check(object) {
                Ok(()) => self.upsert(subscription, &row_key, object)?,
                Err(refused) => return Ok(Err(refused)),
            },
            Change::Delete { key, version } => self.deleted(subscription, &row_key, key, version.as_ref())?,
            Change::Absent { key } => self.absent(subscription, &row_key, key)?,
            Change::Unreadable { .. } => self.unreadable(subscription, &row_key)?,
            Change::Adopt { version, .. } => return self.adopt(subscription, &row_key, version),
        }
        self.reveal()?;
        Ok(Ok(()))
    }

    fn upsert(&mut self, subscription: u32, row_key: &[u8], object: &SharedObject) -> Result<(), WriteError> {
        let old = self.row(row_key)?;
        if let Some(held) =
            old.as_ref().filter(|held| self.is_later_incarnation(held, subscription, &object.version))
        {
            return self.enter(subscription, row_key, &object.key, held.clone());
        }
        let mut subscriptions = old.as_ref().map(|row| row.subscriptions.clone()).unwrap_or_default();
        add(&mut subscriptions, subscription);
        let same =
            old.as_ref().filter(|row| row.state != State::Absent && row.version.uid == object.version.uid);
        if let Some(held) = same.filter(|held| self.says_all(held, subscription, object)) {
            return self.enter(subscription, row_key, &object.key, held.clone());
        }
        let body = match same {
            Some(held) => self.with_own(held, &object.key, &object.body)?,
            None => object.body.clone(),
        };
        let state = match same {
            // A visible object stays visible. Clients that read a newly referenced missing object are told to wait.
            Some(held) if held.state == State::Visible => State::Visible,
            _ if is_pod(object.key.resource()) && !self.all_known(&object.dependencies)? => State::Hidden,
            _ => State::Visible,
        };
        let row = ObjectRow {
            state,
            sealed: false,
            local: 0,
            version: object.version.clone(),
            era: self.state.era,
            subscriptions,
            dependencies: object.dependencies.clone(),
            body,
        };
        self.replace(row_key, &object.key, old, row)
    }

    /// Whether the stored version need not be replaced by the delivered one: the delivery is a repeat, it is older than
    /// a version from another subscription or a reply, or the pushed set has the object, which then is more complete
    /// than the possibly trimmed one of a subscription.
    fn says_all(&self, held: &ObjectRow, subscription: u32, object: &SharedObject) -> bool {
        let pushed = |subscriptions: &[u32]| subscriptions.contains(&SubscriptionId::NODE.0);
        match (subscription == SubscriptionId::NODE.0, pushed(&held.subscriptions)) {
            (false, true) => return true,
            (true, false) => return false,
            _ => {}
        }
        held.era == self.state.era
            && (held.version == object.version || object.version.revision < held.version.revision)
    }

    /// Whether the stored object was created after the delivered one was deleted: the reply to a write may arrive
    /// before the cloud's watch sees it. The pushed set is more complete than a subscription and takes no object over
    /// from one.
    fn is_later_incarnation(&self, held: &ObjectRow, subscription: u32, deleted: &ObjectVersion) -> bool {
        let from_other =
            subscription == SubscriptionId::NODE.0 && !held.subscriptions.contains(&subscription);
        held.state != State::Absent
            && !from_other
            && held.era == self.state.era
            && held.version.uid != deleted.uid
            && held.version.revision > deleted.revision
    }

    /// Adds a subscription to those of an object that is stored already.
    fn enter(
        &mut self,
        subscription: u32,
        row_key: &[u8],
        key: &ObjectKey,
        held: ObjectRow,
    ) -> Result<(), WriteError> {
        let mut row = held.clone();
        add(&mut row.subscriptions, subscription);
        let news = !held.subscriptions.contains(&subscription)
            && held.state == State::Visible
            && self.read.contains(&subscription);
        if !news {
            return self.put(row_key, &row);
        }
        row.body = view::plain(self.sealer, key, &held)?;
        row.sealed = false;
        self.replace(row_key, key, Some(held), row)
    }

    /// Handles the deletion of an object by the cloud.
    fn deleted(
        &mut self,
        subscription: u32,
        row_key: &[u8],
        key: &ObjectKey,
        gone: Option<&ObjectVersion>,
    ) -> Result<(), WriteError> {
        let held = self.row(row_key)?;
        if let Some(version) = gone.or(held.as_ref().map(|held| &held.version)) {
            self.gone.lock().note(self.state.era, version.clone());
        }
        let Some(held) = held else { return Ok(()) };
        if gone.is_some_and(|gone| self.is_later_incarnation(&held, subscription, gone)) {
            return Ok(());
        }
        self.release(subscription, row_key, key, held)
    }

    fn delete(&mut self, subscription: u32, row_key: &[u8], key: &ObjectKey) -> Result<(), WriteError> {
        match self.row(row_key)? {
            Some(held) => self.release(subscription, row_key, key, held),
            None => Ok(()),
        }
    }

    /// Removes a subscription from those of an object. The object is deleted with the last one.
    fn release(
        &mut self,
        subscription: u32,
        row_key: &[u8],
        key: &ObjectKey,
        mut row: ObjectRow,
    ) -> Result<(), WriteError> {
        if row.subscriptions.contains(&unread_by(subscription)) {
            return self.forget_unreadable(subscription, row_key, row);
        }
        if !row.subscriptions.contains(&subscription) {
            return Ok(());
        }
        if row.state == State::Visible {
            self.publish_deletion(key, &row, &[subscription])?;
        }
        if subscription == SubscriptionId::NODE.0 {
            self.forget_answers(key, &row)?;
        }
        row.subscriptions.retain(|other| *other != subscription);
        if row.subscriptions.is_empty() {
            return self.remove(row_key, row.state);
        }
        if row.is_unread_by_all() {
            self.uncover(row_key)?;
            return self.put(row_key, &ObjectRow::absent(row.subscriptions));
        }
        self.put(row_key, &row)
    }

    fn remove(&mut self, row_key: &[u8], state: State) -> Result<(), WriteError> {
        self.objects.remove(row_key).map_err(storage)?;
        self.uncover(row_key)?;
        self.tally.remove(state);
        Ok(())
    }

    fn adopt(
        &mut self,
        subscription: u32,
        row_key: &[u8],
        version: &ObjectVersion,
    ) -> Result<Result<(), Refused>, WriteError> {
        let row = self.row(row_key)?.filter(|row| {
            row.state != State::Absent
                && row.version.uid == version.uid
                && row.version.hash.is_meant_by(version.hash)
        });
        let Some(mut row) = row else {
            return Ok(Err(Refused {
                reason: RefusalReason::Other,
                message: "this content is not stored here: send the object".to_owned(),
            }));
        };
        row.version.revision = version.revision;
        row.era = self.state.era;
        add(&mut row.subscriptions, subscription);
        self.put(row_key, &row)?;
        Ok(Ok(()))
    }

    /// Keeps answers of the cloud.
    pub(super) fn keep_answers(&mut self, answers: &[(Question, CachedReply)]) -> Result<(), WriteError> {
        answers::put(self.answers.open()?, self.sealer, answers)
    }

    /// Deletes the kept answers of a pod that leaves this node.
    fn forget_answers(&mut self, key: &ObjectKey, pod: &ObjectRow) -> Result<(), WriteError> {
        if is_pod(key.resource()) {
            answers::forget_pod(self.answers.open()?, &pod.version.uid)
        } else {
            Ok(())
        }
    }

    /// Replaces a row and publishes the resulting changes to clients.
    pub(super) fn replace(
        &mut self,
        row_key: &[u8],
        key: &ObjectKey,
        old: Option<ObjectRow>,
        mut row: ObjectRow,
    ) -> Result<(), WriteError> {
        if let Some(old) = old.as_ref().filter(|old| old.version.uid != row.version.uid) {
            self.forget_answers(key, old)?;
        }
        let seen = old.filter(|old| old.state == State::Visible);
        let seen = match seen {
            Some(old) if old.version.uid != row.version.uid => {
                self.publish_deletion(key, &old, &old.subscriptions)?;
                None
            }
            seen => seen,
        };
        if row.state == State::Hidden {
            self.hide(row_key)?;
        } else {
            self.uncover(row_key)?;
            let before = seen.as_ref().map(|old| old.subscriptions.clone()).unwrap_or_default();
            let previous = seen.map(|old| self.stored(key, &old)).transpose()?;
            let kind = |subscription| {
                if before.contains(&subscription) { ChangeKind::Modified } else { ChangeKind::Added }
            };
            let views = self.views(&row.subscriptions, kind);
            row.local = self.next_revision();
            row.body = self.as_shown(key, &row.body);
            row.body = splice::stamp(&row.body, row.local)?;
            let (uid, body) = (row.version.uid.clone(), row.body.clone());
            let object = Stored::new(key.clone(), uid, Revision(row.local), body);
            self.publish(views, object, previous)?;
        }
        let (sealed, body) = view::sealed(self.sealer, key, &row.body)
            .ok_or_else(|| WriteError::Storage("no random numbers for encryption".to_owned()))?;
        self.put(row_key, &ObjectRow { sealed, body, ..row })
    }

    /// Publishes the deletion of an object to the readers of some subscriptions.
    fn publish_deletion(
        &mut self,
        key: &ObjectKey,
        old: &ObjectRow,
        subscriptions: &[u32],
    ) -> Result<(), WriteError> {
        let previous = self.stored(key, old)?;
        let revision = self.next_revision();
        let body = splice::stamp(&previous.body(), revision)?;
        let object = Stored::new(key.clone(), previous.uid.clone(), Revision(revision), body);
        let views = self.views(subscriptions, |_| ChangeKind::Deleted);
        self.publish(views, object, Some(previous))
    }

    /// Those of the subscriptions that clients can read, with the kind of the change in each.
    fn views(&self, subscriptions: &[u32], kind: impl Fn(u32) -> ChangeKind) -> Vec<(u32, ChangeKind)> {
        let read = subscriptions.iter().filter(|subscription| self.read.contains(subscription));
        read.map(|subscription| (*subscription, kind(*subscription))).collect()
    }

    fn publish(
        &mut self,
        views: Vec<(u32, ChangeKind)>,
        object: Stored,
        previous: Option<Arc<Stored>>,
    ) -> Result<(), WriteError> {
        // A change that no client can see yet is in no history: the first list has it.
        if views.is_empty() {
            return Ok(());
        }
        let change = Publication { views, object: Arc::new(object), previous };
        let row = log_row(self.sealer, &change).ok_or_else(|| damaged("log"))?;
        self.state.log_bytes = self.state.log_bytes.saturating_add(row.len() as u64);
        self.log.insert(change.object.revision.0, row.as_slice()).map_err(storage)?;
        self.published.changes.push(change);
        Ok(())
    }

    /// Trims the log, and makes room for the next changes: not every commit should rewrite the log's old end.
    fn trim_log(&mut self) -> Result<(), WriteError> {
        let LogBounds { rows, bytes } = self.bounds;
        if self.log.len().map_err(storage)? <= rows && self.state.log_bytes <= bytes {
            return Ok(());
        }
        let (rows, bytes) = (rows - rows / LOG_SLACK_SHARE, bytes - bytes / LOG_SLACK_SHARE);
        while self.log.len().map_err(storage)? > rows || self.state.log_bytes > bytes {
            let Some((revision, row)) = self.log.pop_first().map_err(storage)? else { break };
            self.state.log_bytes = self.state.log_bytes.saturating_sub(row.value().len() as u64);
            self.state.floor = revision.value();
        }
        Ok(())
    }

    fn stored(&self, key: &ObjectKey, row: &ObjectRow) -> Result<Arc<Stored>, WriteError> {
        Ok(view::stored(self.sealer, key.clone(), row.clone())?)
    }

    fn next_revision(&mut self) -> u64 {
        self.state.revision = self.state.revision.saturating_add(1);
        self.state.revision
    }

    pub(super) fn row(&self, row_key: &[u8]) -> Result<Option<ObjectRow>, WriteError> {
        let row = self.objects.get(row_key).map_err(storage)?;
        Ok(row.map(|row| ObjectRow::decode(row.value())).transpose()?)
    }

    fn put(&mut self, row_key: &[u8], row: &ObjectRow) -> Result<(), WriteError> {
        let old = self.objects.insert(row_key, row.encode().as_slice()).map_err(storage)?;
        if let Some(old) = old {
            self.tally.remove(ObjectRow::state_of(old.value())?);
        }
        self.tally.add(row.state);
        Ok(())
    }
}

/// Whether the edge can store an object at all.
fn check(object: &SharedObject) -> Result<(), Refused> {
    let len = object.body.len();
    if len > limits::OBJECT_LEN_MAX || object.dependencies.len() > limits::DEPENDENCIES_MAX {
        let message = format!(
            "{len} bytes and {} references: at most {} and {} are allowed",
            object.dependencies.len(),
            limits::OBJECT_LEN_MAX,
            limits::DEPENDENCIES_MAX
        );
        return Err(Refused { reason: RefusalReason::TooLarge, message });
    }
    // This also ensures that stamping works later, inside a transaction with other objects.
    let facts = splice::facts(&object.body).map_err(|problem| malformed(&problem.to_string()))?;
    if Uid::parse(&facts.uid).ok().as_ref() != Some(&object.version.uid) {
        return Err(malformed(&format!(
            "metadata.uid is {:?}, the delivery says {}",
            facts.uid, object.version.uid
        )));
    }
    if facts.name != object.key.name() || facts.namespace != object.key.namespace() {
        return Err(malformed(&format!("its metadata names {:?} in {:?}", facts.name, facts.namespace)));
    }
    Ok(())
}

fn malformed(problem: &str) -> Refused {
    Refused { reason: RefusalReason::Malformed, message: problem.to_owned() }
}

fn damaged(what: &'static str) -> WriteError {
    super::error::ReadError::Damaged(what).into()
}

fn add(subscriptions: &mut Vec<u32>, subscription: u32) {
    subscriptions.retain(|other| *other != unread_by(subscription));
    if let Err(at) = subscriptions.binary_search(&subscription) {
        subscriptions.insert(at, subscription);
    }
}

fn log_row(sealer: &Sealer, change: &Publication) -> Option<Vec<u8>> {
    let key = &change.object.key;
    let version = |stored: &Stored| -> Option<(bool, LogVersion)> {
        let (sealed, body) = view::sealed(sealer, key, &stored.body())?;
        Some((sealed, LogVersion { uid: stored.uid.clone(), revision: stored.revision.0, body }))
    };
    let (sealed, object) = version(&change.object)?;
    let previous = match &change.previous {
        Some(previous) => Some(version(previous)?.1),
        None => None,
    };
    let number = |kind: ChangeKind| match kind {
        ChangeKind::Added => 0,
        ChangeKind::Modified => 1,
        ChangeKind::Deleted => 2,
    };
    let views = change.views.iter().map(|(subscription, kind)| (*subscription, number(*kind))).collect();
    LogRow { views, sealed, key: key.clone(), object, previous }.encode()
}
