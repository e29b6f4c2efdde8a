//! Volumes and claims that a stock edge has asked for: it is told when they change and when they are gone (reference
//! 3.6 and 3.11).
//!
//! An edge asks for them whenever it needs them and is connected, and keeps the answer for a restart without a connection.
//! What it was given is in its ledger; the changes come from one watch of each kind, which all nodes of this cloudcore
//! share. Attachments are not followed: stock edges keep them under a namespace that they do not have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_proto::session::Lookup;
use tombolo_proto::{ObjectKey, Resource, ScopeId};

use super::registry::SessionHandle;
use super::shared::SharedWatch;

/// The kinds, by their plurals in the core group.
const PLURALS: [&str; 2] = ["persistentvolumes", "persistentvolumeclaims"];

/// Names the watch of one kind in the node's mailbox; far from the numbers of the edge's own subscriptions.
const SCOPES: [ScopeId; 2] = [ScopeId(u32::MAX - 1), ScopeId(u32::MAX)];

/// The kind that a watch follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VolumeKind(usize);

impl VolumeKind {
    fn of(key: &ObjectKey) -> Option<Self> {
        let resource = key.resource();
        let index = PLURALS.iter().position(|plural| **plural == *resource.name)?;
        resource.group.is_empty().then_some(Self(index))
    }

    /// The kind whose watch has this name.
    pub(super) fn of_scope(scope: ScopeId) -> Option<Self> {
        SCOPES.iter().position(|own| *own == scope).map(Self)
    }

    pub(super) fn resource(self) -> Resource {
        Resource::new("", "v1", PLURALS[self.0])
    }
}

/// The watches of one session.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    watches: [Option<Arc<SharedWatch>>; 2],
    /// Asked for and not being opened.
    missing: [AtomicBool; 2],
}

impl Volumes {
    /// What the API has under a key; none when it is of no such kind. Only asked for keys that the edge holds.
    pub(super) fn lookup(&self, key: &ObjectKey) -> Option<Lookup> {
        let kind = VolumeKind::of(key)?;
        let Some(watch) = &self.watches[kind.0] else {
            self.missing[kind.0].store(true, Ordering::Relaxed);
            return Some(Lookup::Pending);
        };
        Some(watch.lookup(key))
    }

    /// A kind whose watch has to be opened. Each is told once.
    pub(super) fn take_missing(&self) -> Option<VolumeKind> {
        let index = self.missing.iter().position(|missing| missing.load(Ordering::Relaxed))?;
        self.missing[index].store(false, Ordering::Relaxed);
        Some(VolumeKind(index))
    }

    pub(super) fn open(&mut self, kind: VolumeKind, watch: Arc<SharedWatch>, session: &Arc<SessionHandle>) {
        watch.follow(session, SCOPES[kind.0]);
        self.watches[kind.0] = Some(watch);
    }

    /// The watch has ended.
    pub(super) fn ended(&mut self, kind: VolumeKind) {
        self.watches[kind.0] = None;
    }

    pub(super) fn close(&mut self, session: &SessionHandle) {
        for (watch, scope) in self.watches.iter_mut().zip(SCOPES) {
            if let Some(watch) = watch.take() {
                watch.unfollow(session, scope);
            }
        }
    }
}
