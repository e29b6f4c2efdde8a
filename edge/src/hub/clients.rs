//! The connection to the cloud as the clients of this node use it: the session takes [`REQUESTS_MAX`] requests at a time from
//! all of them and from the agent, and none of them takes what the others need.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_proto::limits::REQUESTS_MAX;

use super::{CallError, HubHandle};
use crate::shares::{Place, Shares};

/// Requests that are left to the agent itself: registration, the outbox, discovery.
const AGENT_RESERVED: usize = REQUESTS_MAX / 8;

/// Requests of users and accounts under way, at most. Each may have half of what the others have left, and the node's own
/// components have the rest.
pub(crate) const KNOWN_MAX: usize = REQUESTS_MAX / 2;

/// Requests under way for callers who have shown nothing yet, reviews of their tokens, at most. Each address may have half of
/// what the others have left.
pub(crate) const STRANGERS_MAX: usize = REQUESTS_MAX / 8;

/// For whom the cloud is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    /// The agent itself.
    Agent,
    /// The node's own components.
    Node,
    /// Somebody who is known, by the name of the sender ([`tombolo_apicore::senders::name_of`]).
    Known(String),
    /// Somebody who is not known yet, by where they come from.
    Stranger(Option<IpAddr>),
}

/// See the module. Clones share the places.
#[derive(Debug, Clone)]
pub(crate) struct SharedHub {
    hub: HubHandle,
    /// Places of all but the agent.
    all: Arc<Semaphore>,
    known: Shares<Caller>,
    strangers: Shares<Caller>,
}

/// What a request takes until it is over.
#[derive(Debug)]
pub(crate) struct Held {
    _all: OwnedSemaphorePermit,
    _own: Option<Place<Caller>>,
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

    /// As [`HubHandle::api`], among the requests of a caller.
    ///
    /// # Errors
    /// [`CallError::Busy`] when the caller has its share of them already.
    pub(crate) async fn api(
        &self,
        caller: &Caller,
        call: ApiRequest,
        timeout: Duration,
        caller_token: Option<String>,
    ) -> Result<ApiReply, CallError> {
        // Without a cloud nothing is under way, and that is what is to be said.
        if !self.hub.state().borrow().online() {
            return Err(CallError::Offline);
        }
        let held = self.take(caller)?;
        self.hub.api_holding(call, timeout, caller_token, held).await
    }

    fn take(&self, caller: &Caller) -> Result<Option<Held>, CallError> {
        let share = |shares: &Shares<Caller>| shares.take(caller.clone()).ok_or(CallError::Busy).map(Some);
        let own = match caller {
            Caller::Agent => return Ok(None),
            Caller::Node => None,
            Caller::Known(_) => share(&self.known)?,
            Caller::Stranger(_) => share(&self.strangers)?,
        };
        let all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| CallError::Busy)?;
        Ok(Some(Held { _all: all, _own: own }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(hub: &SharedHub, caller: &Caller) -> Vec<Held> {
        std::iter::from_fn(|| hub.take(caller).ok().flatten()).collect()
    }

    #[test]
    fn whoever_asks_the_cloud_leaves_room_for_accounts_kubelet_and_outbox() {
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
