//! From the hello to the comparison of the pushed set.

use crate::frame::{Frame, Hello, features};
use crate::ids::SubscriptionId;
use crate::session::cloud::subscription::Subscription;
use crate::session::cloud::subscription::compare::{InventoryComparison, Opening};
use crate::session::cloud::{CloudEvent, CloudSession, CloudSessionPhase, NodeView, Notice};
use crate::session::{ProtocolVersion, SessionError, words};

impl CloudSession {
    /// The first frame of a connection: a hello, or a goodbye of an edge that changed its mind.
    pub(super) fn handle_first(&mut self, frame: Frame, view: &impl NodeView) -> Result<(), SessionError> {
        match frame {
            Frame::Hello(hello) => self.handle_hello(hello, view),
            Frame::Goodbye(goodbye) => {
                self.end(goodbye);
                Ok(())
            }
            other => Err(SessionError::Protocol(format!("{} arrived before the hello", words::name(&other)))),
        }
    }

    fn handle_hello(&mut self, hello: Hello, view: &impl NodeView) -> Result<(), SessionError> {
        if ProtocolVersion::negotiate(hello.versions).is_none() {
            let (oldest, newest) = ProtocolVersion::range();
            let (peer_oldest, peer_newest) = hello.versions;
            return Err(SessionError::VersionMismatch { peer_oldest, peer_newest, oldest, newest });
        }
        if hello.node != self.config.node {
            let (claimed, certified) = (hello.node.to_string(), self.config.node.to_string());
            return Err(SessionError::WrongNode { claimed, certified });
        }
        self.features = hello.features & features::ALL;
        self.comparable = (hello.trim_version == self.config.trim_version).then_some(hello.store);
        let resumed = self.comparable.is_some() && hello.epoch.as_ref() == Some(&self.config.epoch);
        let comparison = InventoryComparison::new(hello.epoch, self.comparable, hello.inventory)?;
        self.phase = CloudSessionPhase::Open;
        self.events.push_back(CloudEvent::Ready {
            store: hello.store,
            agent: hello.agent,
            instance: hello.instance,
            resumed,
        });
        self.notify(Notice::Welcome);
        self.liveness.measure(self.now);
        self.add_subscription(SubscriptionId::NODE, comparison);
        self.compare_subscription(SubscriptionId::NODE, view)
    }

    /// A subscription that is not compared yet.
    pub(super) fn add_subscription(&mut self, id: SubscriptionId, comparison: InventoryComparison) {
        let ability =
            if id == SubscriptionId::NODE { features::UNREADABLE } else { features::UNREADABLE_FOLLOWED };
        self.subscriptions.push(Subscription::new(id, comparison, self.features & ability != 0));
    }

    /// Compares a subscription, or requests the inventory that the comparison needs.
    pub(super) fn compare_subscription(
        &mut self,
        id: SubscriptionId,
        view: &impl NodeView,
    ) -> Result<(), SessionError> {
        let now = self.now;
        let Some(index) = self.subscription_index(id) else { return Ok(()) };
        let Some(subscription) = self.subscriptions.get_mut(index) else { return Ok(()) };
        match subscription.open(now, &self.config.epoch, view)? {
            Some(Opening::NeedsInventory) => self.notify(Notice::InventoryRequest(id)),
            Some(Opening::Compared) => self.announce_caught_up(index),
            None => {}
        }
        Ok(())
    }
}
