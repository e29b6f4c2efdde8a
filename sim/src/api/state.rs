//! Everything that the model holds, behind one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::clock::{ServerClock, ServerDice};
use super::convert;
use super::faults::{CallPlace, FaultTable};
use super::kinds::{KindInfo, KindKey, built_in, definitions, of_definition};
use super::parse::PathTarget;
use super::rights::{ApiUser, AskedRight, RightsTable, RightsView};
use super::status::ApiStatus;
use super::storage::{ObjectChange, ObjectStorage, WriteStamp};

/// Something that an observer is told.
#[derive(Debug, Clone)]
pub enum ModelEvent {
    /// An object was written or removed.
    Wrote(Arc<ObjectChange>),
    /// A backup was restored.
    Restored {
        /// Number of backups restored, this one included.
        era: u64,
        /// The revision that the state has now.
        revision: u64,
    },
    /// A watch or list has shown everything that it selects up to a revision.
    ViewMoved {
        /// Name of the client.
        client: String,
        /// The kind.
        kind: KindKey,
        /// Its label selector and field selector, joined by a semicolon; `None` if it shows only one namespace.
        selector: Option<String>,
        /// Number of backups restored before.
        era: u64,
        /// The revision.
        revision: u64,
    },
    /// A token was signed.
    TokenIssued {
        /// The token.
        token: String,
        /// Its ServiceAccount as a user.
        account: String,
    },
}

type Observer = Box<dyn FnMut(ModelEvent) + Send>;

/// Who is told of everything that happens.
#[derive(Default)]
pub(super) struct Observers(Vec<Observer>);

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

impl Observers {
    pub(super) fn add(&mut self, observer: Observer) {
        self.0.push(observer);
    }

    pub(super) fn tell(&mut self, event: &ModelEvent) {
        for observer in &mut self.0 {
            observer(event.clone());
        }
    }
}

/// A token that a TokenRequest or a plan has issued.
#[derive(Debug, Clone)]
pub(super) struct IssuedToken {
    pub(super) user: ApiUser,
    pub(super) audiences: Vec<String>,
    /// End in Unix seconds.
    pub(super) until: i64,
    /// UID of the pod that it ends with; empty when it is bound to none.
    pub(super) pod: String,
    /// UID of its ServiceAccount.
    pub(super) account: String,
}

/// State of the model. It has many fields because it is all that one lock protects.
#[derive(Debug)]
pub(super) struct ModelState {
    pub(super) clock: ServerClock,
    pub(super) dice: ServerDice,
    pub(super) storage: ObjectStorage,
    pub(super) faults: FaultTable,
    pub(super) rights: RightsTable,
    pub(super) authorizer_lag: Duration,
    pub(super) constrained_impersonation: bool,
    pub(super) tokens: BTreeMap<String, IssuedToken>,
    /// Number of restarts: connections of an earlier process have ended.
    pub(super) boots: u64,
    /// Until when nobody answers, as time since the model began.
    pub(super) down_until: Duration,
    /// Users that clients were made for.
    pub(super) clients: BTreeSet<String>,
    pub(super) observers: Observers,
    /// Shared with each half-open watch.
    pub(super) half_open: Arc<()>,
    kinds: Vec<KindInfo>,
}

impl ModelState {
    pub(super) fn new(seed: u64, epoch: i64, rights: RightsTable) -> Self {
        Self {
            clock: ServerClock::new(epoch),
            dice: ServerDice::new(seed),
            storage: ObjectStorage::default(),
            faults: FaultTable::default(),
            rights,
            authorizer_lag: Duration::ZERO,
            constrained_impersonation: true,
            tokens: BTreeMap::new(),
            boots: 0,
            down_until: Duration::ZERO,
            clients: BTreeSet::new(),
            observers: Observers::default(),
            half_open: Arc::new(()),
            kinds: built_in().collect(),
        }
    }

    /// The kind that a path addresses.
    pub(super) fn kind(&self, target: &PathTarget) -> Option<KindInfo> {
        let is_it = |kind: &KindInfo| kind.key == target.key() && kind.version == target.version;
        self.kinds.iter().find(|kind| is_it(kind)).cloned().or_else(|| {
            let definitions = self.storage.all(&definitions()).map(|(_, definition)| definition);
            definitions.flat_map(|definition| of_definition(definition)).find(is_it)
        })
    }

    /// The refusal of a kind that is not served: groups of the server itself answer differently from others.
    pub(super) fn unknown(&self, target: &PathTarget) -> ApiStatus {
        let of_group = |kind: &KindInfo| kind.key.group == target.group && kind.version == target.version;
        if self.kinds.iter().any(of_group) {
            ApiStatus::no_such_subresource()
        } else {
            ApiStatus::no_such_path()
        }
    }

    /// The kind under which objects are stored; the newest version where several are served.
    pub(super) fn kind_of(&self, key: &KindKey) -> Option<KindInfo> {
        self.served().find(|kind| kind.key == *key)
    }

    /// All kinds that are served.
    pub(super) fn served(&self) -> impl Iterator<Item = KindInfo> {
        let definitions = self.storage.all(&definitions()).map(|(_, definition)| definition);
        self.kinds.iter().cloned().chain(definitions.flat_map(|definition| of_definition(definition)))
    }

    /// Whether a user may do something; the reason when not.
    pub(super) fn check(&self, user: &ApiUser, asked: &AskedRight) -> Result<(), String> {
        let view = RightsView {
            table: &self.rights,
            storage: &self.storage,
            clients: &self.clients,
            now: self.clock.elapsed(),
            lag: self.authorizer_lag,
        };
        view.check(user, asked)
    }

    pub(super) fn object(&self, kind: &KindInfo, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.storage.get(&convert::stored_key(kind), &kind.place(namespace, name))
    }

    /// Stores an object for a user.
    pub(super) fn put(&mut self, kind: &KindInfo, object: Value, user: &str) -> Arc<Value> {
        let place = kind.place(super::object::namespace(&object), super::object::name(&object));
        let stamp = WriteStamp { caller: user, at: self.clock.elapsed() };
        let stored = self.storage.put(&convert::stored_key(kind), &place, object, stamp);
        self.tell_last();
        stored
    }

    /// Tells the observers of the last write.
    fn tell_last(&mut self) {
        if let Some(change) = self.storage.recorded().last().cloned() {
            self.observers.tell(&ModelEvent::Wrote(change));
        }
    }

    /// Removes an object for a user; returns its last state.
    pub(super) fn remove(
        &mut self,
        kind: &KindInfo,
        namespace: &str,
        name: &str,
        user: &str,
    ) -> Option<Arc<Value>> {
        let stamp = WriteStamp { caller: user, at: self.clock.elapsed() };
        let removed = self.storage.remove(&convert::stored_key(kind), &kind.place(namespace, name), stamp);
        if removed.is_some() {
            self.tell_last();
        }
        removed
    }

    /// Goes back to an earlier revision, as after a restored backup; all connections end. False when there is none.
    pub(super) fn restore(&mut self, revision: u64) -> bool {
        if !self.storage.restore(revision) {
            return false;
        }
        self.boots += 1;
        let era = self.storage.era();
        self.observers.tell(&ModelEvent::Restored { era, revision });
        true
    }

    /// The revision that a client knows of a kind when it is served from the watch cache.
    pub(super) fn revision_seen(&self, place: &CallPlace<'_>) -> u64 {
        self.storage.revision_seen(self.clock.elapsed(), self.faults.lag(place))
    }
}
