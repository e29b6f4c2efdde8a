//! Shares the connection to the cloud among the clients of this node. The session takes [`REQUESTS_MAX`] concurrent
//! requests from all clients and the agent, and no client can use up the slots that others need.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::limits::REQUESTS_MAX;

use super::{CallError, HubHandle};
use crate::shares::{HeldSlot, Shares};

/// Requests reserved for the agent itself: registration, the outbox, discovery.
const AGENT_RESERVED: usize = REQUESTS_MAX / 8;

/// Maximum number of pending requests of users and accounts. Each may have half of what the others leave. The node's
/// own components have the rest.
pub(crate) const KNOWN_MAX: usize = REQUESTS_MAX / 2;

/// Maximum number of pending requests for callers that are not authenticated yet, which are reviews of their tokens.
/// Each address may have half of what the others leave.
pub(crate) const STRANGERS_MAX: usize = REQUESTS_MAX / 8;

/// The caller that a request is made for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    /// The agent itself.
    Agent,
    /// The node's own components.
    Node,
    /// An authenticated caller, by the name of the sender ([`tombolo_apicore::senders::name_of`]).
    Known(String),
    /// A caller that is not authenticated yet, by its address.
    Stranger(Option<IpAddr>),
}

/// The connection with a share for each caller. Clones have the slots in common.
#[derive(Debug, Clone)]
pub(crate) struct SharedHub {
    hub: HubHandle,
    /// Slots of all callers but the agent.
    all: Arc<Semaphore>,
    known: Shares<Caller>,
    strangers: Shares<Caller>,
}

/// The slots that a request holds until it ends.
#[derive(Debug)]
pub(crate) struct RequestSlots {
    _all: OwnedSemaphorePermit,
    _own: Option<HeldSlot<Caller>>,
}

impl SharedHub {
    pub(crate) fn new(hub: HubHandle) -> Self {
        let all = Arc::new(Semaphore::new(REQUESTS_MAX - AGENT_RESERVED));
        Self { hub, all, known: Shares::new(KNOWN_MAX), strangers: Shares::new(STRANGERS_MAX) }
    }

    /// The connection as the agent itself uses it.
    pub(crate) fn own(&self) -> &HubHandle {
        &self.hub
    }

    /// As [`HubHandle::api`], counted against the caller's share.
    ///
    /// # Errors
    /// [`CallError::Busy`] when the caller's share or all slots are in use.
    pub(crate) async fn api(
        &self,
        caller: &Caller,
        call: ApiRequest,
        timeout: Duration,
        caller_token: Option<String>,
    ) -> Result<ApiReply, CallError> {
        // Report the missing connection rather than a full share.
        if !self.hub.state().borrow().online() {
            return Err(CallError::Offline);
        }
        let held = self.take(caller)?;
        self.hub.api_holding(call, timeout, caller_token, held).await
    }

    fn take(&self, caller: &Caller) -> Result<Option<RequestSlots>, CallError> {
        let share = |shares: &Shares<Caller>| shares.take(caller.clone()).ok_or(CallError::Busy).map(Some);
        let own = match caller {
            Caller::Agent => return Ok(None),
            Caller::Node => None,
            Caller::Known(_) => share(&self.known)?,
            Caller::Stranger(_) => share(&self.strangers)?,
        };
        let all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| CallError::Busy)?;
        Ok(Some(RequestSlots { _all: all, _own: own }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(hub: &SharedHub, caller: &Caller) -> Vec<RequestSlots> {
        std::iter::from_fn(|| hub.take(caller).ok().flatten()).collect()
    }

    #[test]
    fn cloud_requests_leave_room_for_accounts_kubelet_and_outbox() {
        let hub = SharedHub::new(HubHandle::new().0);
        let stranger = |last: u8| Caller::Stranger(Some([10, 244, 0, last].into()));
        let account = |name: &str| Caller::Known(format!("accounts {name}"));
        let strangers = hold(&hub, &stranger(1));
        assert_eq!(strangers.len(), STRANGERS_MAX / 2, "without credentials");
        let other = hold(&hub, &stranger(2));
        assert_eq!(other.len(), STRANGERS_MAX / 4, "another pod has its own");
        let eve = hold(&hub, &account("eve"));
        assert_eq!(eve.len(), KNOWN_MAX / 2);
        assert_eq!(hold(&hub, &account("shop")).len(), KNOWN_MAX / 4);
        let more: Vec<_> = (0..9).map(|number| hold(&hub, &account(&number.to_string()))).collect();
        assert!(more.iter().flatten().count() <= KNOWN_MAX / 2);
        let kubelet = hold(&hub, &Caller::Node);
        assert!(kubelet.len() >= REQUESTS_MAX - AGENT_RESERVED - KNOWN_MAX - STRANGERS_MAX);
        let all = strangers.len() + other.len() + eve.len() + more.iter().flatten().count() + kubelet.len();
        assert!(all <= REQUESTS_MAX - AGENT_RESERVED, "{all}: the outbox has room");
        assert!(hub.take(&Caller::Agent).unwrap().is_none(), "and no bound of its own");
    }
}
