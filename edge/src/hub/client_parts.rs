//! The parts of the hub client, which its sessions use.

use std::sync::Arc;

use rand::rngs::StdRng;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tombolo_link::Transport;
use tombolo_proto::ids::NodeId;
use tombolo_runtime::BackoffConfig;

use super::dial::Dial;
use super::kinds::KnownKinds;
use super::{Command, HubState};
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::subscriptions::SelectionRegistry;

/// The parts of the owner.
pub(crate) struct ClientParts {
    pub(crate) node: NodeId,
    pub(crate) store: Store,
    pub(crate) registry: Arc<SelectionRegistry>,
    pub(crate) dialer: Box<dyn Dial>,
    pub(crate) identity: watch::Receiver<Arc<Identity>>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) state: watch::Sender<HubState>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) kinds: KnownKinds,
    pub(crate) backoff: BackoffConfig,
    pub(crate) rng: StdRng,
    /// Distinguishes this process from another one with the same identity.
    pub(crate) instance: u64,
}

impl ClientParts {
    /// Records in metrics and state that a session has begun.
    pub(super) fn connected(&self, transport: Option<Transport>) {
        self.metrics.online.set(1);
        self.metrics.sessions.inc();
        self.state.send_modify(|state| {
            let (since, sessions) = (Some(Instant::now()), state.sessions.wrapping_add(1));
            *state = HubState { transport, since, sessions, ..HubState::default() };
        });
    }
}
