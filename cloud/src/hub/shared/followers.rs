//! The sessions that follow a shared watch, and the node that pays for its copy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;
use tombolo_proto::{NodeId, ScopeId};
use tombolo_runtime::{Held, Share};

use super::crowd::FREE_PART;
use super::payers::{Lack, Payers};
use crate::hub::registry::SessionHandle;

type Sessions = HashMap<(u64, ScopeId), Arc<SessionHandle>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Followers {
    sessions: Sessions,
    /// Since when nobody follows.
    idle_since: Instant,
    /// For whom the watch was begun; none for cloudcore's own needs, for which no node pays.
    pub(super) opener: Option<NodeId>,
    /// Bytes of the copy.
    bytes: usize,
    /// Out of whose share they are.
    paid: Option<Paid>,
}

/// What one node pays.
#[derive(Debug)]
struct Paid {
    node: NodeId,
    /// Kept: the share is the node's for as long as anything is taken from it.
    share: Arc<Share>,
    held: Held,
}

impl Followers {
    pub(super) fn new(opener: Option<NodeId>) -> Self {
        Self { sessions: HashMap::new(), idle_since: Instant::now(), opener, bytes: 0, paid: None }
    }

    /// The one node that the copy is there for: the only one that follows, or while nobody does the one that began.
    pub(super) fn payer(&self) -> Option<&NodeId> {
        let opener = self.opener.as_ref()?;
        let mut nodes = self.sessions.values().map(|session| &session.node);
        let Some(first) = nodes.next() else { return Some(opener) };
        nodes.all(|node| node == first).then_some(first)
    }

    /// Has the payer pay for the copy as it is now.
    ///
    /// # Errors
    /// Its share has no room for that: it pays less then, and what follows is the caller's.
    pub(super) fn charge(&mut self, payers: &Payers) -> Result<(), Lack> {
        let Some(node) = self.payer() else {
            self.paid = None;
            return Ok(());
        };
        if self.paid.as_ref().is_none_or(|paid| paid.node != *node) {
            let (node, share) = (node.clone(), payers.share(node));
            self.paid = Some(Paid { node, held: share.nothing(), share });
        }
        let Some(paid) = &mut self.paid else { return Ok(()) };
        if paid.held.set(self.bytes) {
            return Ok(());
        }
        Err(Lack::Share { node: paid.node.clone(), alone: self.bytes > paid.share.max() })
    }

    /// The copy has so many bytes instead of so many.
    ///
    /// # Errors
    /// The payer's share has no room for more; nothing is changed then.
    pub(super) fn resize(&mut self, before: usize, after: usize, payers: &Payers) -> Result<(), Lack> {
        let old = self.bytes;
        self.bytes = old.saturating_sub(before).saturating_add(after);
        let charged = self.charge(payers);
        if charged.is_err() && after > before {
            self.bytes = old;
            return charged;
        }
        Ok(())
    }

    /// One more session follows.
    ///
    /// # Errors
    /// It would be the only one, and its node's share has no room for the copy; nothing is changed then.
    pub(super) fn add(
        &mut self,
        session: &Arc<SessionHandle>,
        scope: ScopeId,
        payers: &Payers,
    ) -> Result<(), Lack> {
        self.sessions.insert((session.generation, scope), Arc::clone(session));
        let charged = self.charge(payers);
        if charged.is_err() {
            self.remove(session, scope, payers);
        }
        charged
    }

    pub(super) fn remove(&mut self, session: &SessionHandle, scope: ScopeId, payers: &Payers) {
        self.sessions.remove(&(session.generation, scope));
        if self.sessions.is_empty() {
            self.idle_since = Instant::now();
        }
        // Where the share of whoever is left has no room, housekeeping ends the watch.
        let _ = self.charge(payers);
    }

    /// Nobody follows from now on.
    pub(super) fn take(&mut self) -> Sessions {
        std::mem::take(&mut self.sessions)
    }

    /// There is no copy any more, and nothing to pay.
    pub(super) fn forget(&mut self) {
        self.bytes = 0;
        self.paid = None;
    }

    pub(super) fn each(&self, tell: impl Fn(ScopeId, &SessionHandle)) {
        self.sessions.iter().for_each(|((_, scope), session)| tell(*scope, session));
    }

    /// Since when nobody follows; none while somebody does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.sessions.is_empty().then_some(self.idle_since)
    }

    /// Whether the payer could pay for some more.
    pub(super) fn has_room(&self) -> bool {
        self.paid.as_ref().is_none_or(|paid| paid.share.room() >= paid.share.max() / FREE_PART)
    }

    /// A node that follows, if there is one.
    pub(super) fn any(&self) -> Option<NodeId> {
        self.sessions.values().next().map(|session| session.node.clone())
    }

    /// How many nodes the copy is there for; more than any number for cloudcore's own needs.
    pub(super) fn nodes(&self) -> usize {
        if self.opener.is_none() {
            return usize::MAX;
        }
        self.sessions.values().map(|session| &session.node).collect::<HashSet<_>>().len()
    }

    /// Bytes of the copy, and of all that its payer pays for; none where nobody pays.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.bytes, self.paid.as_ref().map_or(0, |paid| paid.share.used()))
    }
}
