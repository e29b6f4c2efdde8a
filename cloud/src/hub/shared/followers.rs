//! The sessions that follow a shared watch, and the node that pays for its copy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;
use tombolo_proto::{NodeId, SubscriptionId};
use tombolo_runtime::{Held, Share};

use super::namespace_limits::FREE_PART;
use super::payers::{Lack, Payers};
use crate::hub::registry::SessionHandle;

type Sessions = HashMap<(u64, SubscriptionId), Arc<SessionHandle>>;

/// The sessions that follow one watch, and what its payer pays.
#[derive(Debug)]
pub(super) struct Followers {
    sessions: Sessions,
    /// Since when there are no followers.
    idle_since: Instant,
    /// The node for which the watch was begun; none for cloudcore's own needs, for which no node pays.
    pub(super) opener: Option<NodeId>,
    /// Bytes of the copy.
    bytes: usize,
    /// What the payer's share is charged; none when no node pays.
    paid: Option<Paid>,
}

/// The charge of one node.
#[derive(Debug)]
struct Paid {
    node: NodeId,
    /// Held so that the share exists as long as something is taken from it.
    share: Arc<Share>,
    held: Held,
}

impl Followers {
    pub(super) fn new(opener: Option<NodeId>) -> Self {
        Self { sessions: HashMap::new(), idle_since: Instant::now(), opener, bytes: 0, paid: None }
    }

    /// The one node that the copy exists for: its only follower, or the node that began the watch while there are no
    /// followers.
    pub(super) fn payer(&self) -> Option<&NodeId> {
        let opener = self.opener.as_ref()?;
        let mut nodes = self.sessions.values().map(|session| &session.node);
        let Some(first) = nodes.next() else { return Some(opener) };
        nodes.all(|node| node == first).then_some(first)
    }

    /// Charges the payer for the copy as it is now.
    ///
    /// # Errors
    /// The payer's share has no room for that. It then pays for less, and the caller must deal with it.
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

    /// Changes the size of the copy by replacing `before` bytes with `after` bytes.
    ///
    /// # Errors
    /// The payer's share has no room for more. Nothing is changed then.
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

    /// Adds a session.
    ///
    /// # Errors
    /// It would be the only follower, and its node's share has no room for the copy. Nothing is changed then.
    pub(super) fn add(
        &mut self,
        session: &Arc<SessionHandle>,
        subscription: SubscriptionId,
        payers: &Payers,
    ) -> Result<(), Lack> {
        self.sessions.insert((session.generation, subscription), Arc::clone(session));
        let charged = self.charge(payers);
        if charged.is_err() {
            self.remove(session, subscription, payers);
        }
        charged
    }

    pub(super) fn remove(&mut self, session: &SessionHandle, subscription: SubscriptionId, payers: &Payers) {
        self.sessions.remove(&(session.generation, subscription));
        if self.sessions.is_empty() {
            self.idle_since = Instant::now();
        }
        // If the share of the remaining payer has no room, the next sweep ends the watch.
        let _ = self.charge(payers);
    }

    /// Removes all followers and returns them.
    pub(super) fn take(&mut self) -> Sessions {
        std::mem::take(&mut self.sessions)
    }

    /// The copy is gone, so there is nothing to pay.
    pub(super) fn forget(&mut self) {
        self.bytes = 0;
        self.paid = None;
    }

    pub(super) fn each(&self, notify: impl Fn(SubscriptionId, &SessionHandle)) {
        self.sessions.iter().for_each(|((_, subscription), session)| notify(*subscription, session));
    }

    /// Since when there are no followers; none while there are some.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.sessions.is_empty().then_some(self.idle_since)
    }

    /// Whether the payer's share has some room left.
    pub(super) fn has_room(&self) -> bool {
        self.paid.as_ref().is_none_or(|paid| paid.share.room() >= paid.share.max() / FREE_PART)
    }

    /// Some node that follows, if there is one.
    pub(super) fn any(&self) -> Option<NodeId> {
        self.sessions.values().next().map(|session| session.node.clone())
    }

    /// Number of nodes that the copy exists for; the maximum for cloudcore's own needs.
    pub(super) fn nodes(&self) -> usize {
        if self.opener.is_none() {
            return usize::MAX;
        }
        self.sessions.values().map(|session| &session.node).collect::<HashSet<_>>().len()
    }

    /// Bytes of the copy, and of everything that its payer pays for (0 when no node pays).
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.bytes, self.paid.as_ref().map_or(0, |paid| paid.share.used()))
    }
}
