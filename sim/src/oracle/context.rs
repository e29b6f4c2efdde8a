//! What all rules see of the run so far.

use std::collections::BTreeMap;

use super::connections::{Answered, Connections};
use super::history::History;
use super::limits::OracleLimits;
use super::views::Views;
use crate::observation::{HistoryPosition, Millis, Observation, Seen};

/// What all rules see.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// Bounds and windows.
    pub(super) limits: OracleLimits,
    /// The history of the API.
    pub(super) history: History,
    /// What replicas know of it.
    pub(super) views: Views,
    /// Connections and deliveries.
    pub(super) connections: Connections,
    /// What the present observation says about deliveries.
    pub(super) answered: Answered,
    /// When the faults ended.
    pub(super) faults_ended: Option<Millis>,
    /// Whether everything has converged before the end of its time.
    has_settled: bool,
    /// Nodes that have to converge.
    pub(super) nodes: Vec<String>,
    accounts: BTreeMap<String, String>,
}

impl Context {
    /// Nothing has happened yet.
    pub(super) fn new(nodes: Vec<String>, limits: OracleLimits) -> Self {
        Self { limits, nodes, ..Self::default() }
    }

    /// Follows an observation, before the rules judge it.
    pub(super) fn observe(&mut self, observation: &Observation) {
        let at = observation.at;
        match &observation.seen {
            Seen::Wrote(write) => self.history.write(at, write),
            Seen::Restored { position } => self.history.restore(at, *position),
            Seen::ViewMoved { replica, resource, position } => {
                self.views.moved(at, *replica, resource, *position);
            }
            Seen::ReplicaDown { replica } => self.views.ended(at, *replica),
            Seen::TokenIssued { token, account } => {
                self.accounts.insert(token.clone(), account.clone());
            }
            Seen::FaultsEnded => self.faults_ended = Some(at),
            Seen::Settled => self.has_settled = true,
            _ => {}
        }
        self.answered = self.connections.observe(&observation.seen);
    }

    /// User name behind a token; for a token that the API has not signed, `None`.
    #[must_use]
    pub(super) fn account(&self, token: &str) -> Option<&str> {
        self.accounts.get(token).map(String::as_str)
    }

    /// The oldest position on which this replica may have based what it sends at this time. Without a view of the kind,
    /// it has read at the API server, at most the time of sending before.
    #[must_use]
    pub(super) fn basis_of(&self, replica: u32, resource: &str, at: Millis) -> HistoryPosition {
        let since = at.saturating_sub(self.limits.sending);
        let read = self.history.at(since);
        self.views.of_replica(replica, resource, since).map_or(read, |view| view.min(read))
    }

    /// The oldest position on which any replica may have based what arrives at an edge at this time.
    #[must_use]
    pub(super) fn oldest_basis(&self, resource: &str, at: Millis) -> HistoryPosition {
        let since = at.saturating_sub(self.limits.flight);
        let read = self.history.at(since);
        self.views.oldest(resource, since).map_or(read, |view| view.min(read))
    }

    /// Whether the system has had its time to settle.
    #[must_use]
    pub(super) fn is_settled(&self, at: Millis) -> bool {
        self.has_settled || self.faults_ended.is_some_and(|ended| at >= ended + self.limits.converge)
    }

    /// Whether the Node has been the same all the time since it was first created. The certificate of a deleted Node
    /// opens nothing any more.
    #[must_use]
    pub(super) fn node_may_connect(&self, node: &str) -> bool {
        let id = crate::observation::ObjectId::node(node);
        let changes = self.history.changes(&id);
        changes.first().is_none_or(|first| self.history.existed_since(&id, first.position))
    }
}
