//! Frames received by the edge.

use crate::frame::{Change, Deliver, Frame, Refusal, RefusalReason, Undecodable, Welcome};
use crate::ids::{Lane, Moment, SubscriptionId};
use crate::session::edge::inbox::Arrival;
use crate::session::edge::subscriptions::SubscriptionState;
use crate::session::edge::{EdgeEvent, EdgeSession, EdgeView, Phase};
use crate::session::{EARLY_BYTES_MAX, ProtocolVersion, SessionError, UNACKED_MAX, words};

impl EdgeSession {
    /// Frames before the welcome: the welcome, a goodbye, or deliveries whose lane was faster than the control lane.
    pub(super) fn handle_first(&mut self, now: Moment, lane: Lane, frame: Frame) -> Result<(), SessionError> {
        match frame {
            Frame::Welcome(welcome) => self.handle_welcome(now, &welcome),
            Frame::Goodbye(goodbye) => {
                self.end(goodbye);
                Ok(())
            }
            Frame::Deliver(_) | Frame::Undecodable(_) => self.keep_early(lane, frame),
            other => {
                Err(SessionError::Protocol(format!("{} arrived before the welcome", words::name(&other))))
            }
        }
    }

    fn keep_early(&mut self, lane: Lane, frame: Frame) -> Result<(), SessionError> {
        let bytes = match &frame {
            Frame::Deliver(Deliver { change: Change::Upsert(object), .. }) => object.body.len(),
            _ => 0,
        };
        self.early_bytes = self.early_bytes.saturating_add(bytes);
        if self.early.len() >= UNACKED_MAX || self.early_bytes > EARLY_BYTES_MAX {
            return Err(SessionError::Protocol("too many deliveries arrived before the welcome".to_owned()));
        }
        self.early.push_back((lane, frame));
        Ok(())
    }

    fn handle_welcome(&mut self, now: Moment, welcome: &Welcome) -> Result<(), SessionError> {
        if ProtocolVersion::from_number(welcome.version).is_none() {
            let (oldest, newest) = ProtocolVersion::range();
            return Err(SessionError::Protocol(format!(
                "the cloud chose protocol version {}, but {oldest} to {newest} were offered",
                welcome.version
            )));
        }
        self.phase = Phase::Open;
        self.features = self.config.features & welcome.features;
        self.liveness.adopt(welcome.ping_interval, welcome.idle_timeout);
        let same_rules = self.config.trim_version == welcome.trim_version;
        self.events.push_back(EdgeEvent::Welcomed {
            epoch: welcome.epoch.clone(),
            resumed: same_rules && self.config.epoch.as_ref() == Some(&welcome.epoch),
            trim_version: welcome.trim_version,
            unix_millis: welcome.unix_millis,
        });
        self.events.push_back(EdgeEvent::RoundTrip(now.since(self.greeted_at)));
        for (lane, frame) in std::mem::take(&mut self.early) {
            match frame {
                Frame::Deliver(deliver) => self.handle_deliver(now, lane, deliver)?,
                Frame::Undecodable(lost) => self.handle_undecodable(now, lane, lost)?,
                // `keep_early` handles these two.
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn handle_open(
        &mut self,
        now: Moment,
        lane: Lane,
        frame: Frame,
        view: &impl EdgeView,
    ) -> Result<(), SessionError> {
        match frame {
            Frame::Deliver(deliver) => return self.handle_deliver(now, lane, deliver),
            Frame::Undecodable(lost) => return self.handle_undecodable(now, lane, lost),
            Frame::InventoryRequest { subscription } => {
                return self.handle_inventory_request(now, subscription, view);
            }
            Frame::CaughtUp { subscription, epoch, revision } => {
                if self.subscriptions.standing(subscription, "a caught-up mark")? == SubscriptionState::Open {
                    self.events.push_back(EdgeEvent::CaughtUp { subscription, epoch, revision });
                }
            }
            Frame::Reply(reply) => {
                // An answer that crossed its deadline is not the peer's fault, so it costs no patience.
                if self.requests.answered(reply.id) {
                    self.events.push_back(EdgeEvent::Reply(reply));
                }
            }
            Frame::SubscriptionClosed { subscription, code, reason } => {
                return self.handle_closed(subscription, code, reason);
            }
            Frame::LeaseRenewed { renew_time_micros, code } => {
                self.events.push_back(EdgeEvent::LeaseRenewed { renew_time_micros, code });
            }
            Frame::Attestation { proof } => self.events.push_back(EdgeEvent::Attested(proof)),
            Frame::Ping { id } => self.liveness.handle_ping(id),
            Frame::Pong { id } => match self.liveness.handle_pong(now, id) {
                None => return self.patience.ignore(now, "a pong without a ping"),
                Some(time) => self.events.push_back(EdgeEvent::RoundTrip(time)),
            },
            Frame::Goodbye(goodbye) => self.end(goodbye),
            Frame::Welcome(_) => {
                return Err(SessionError::Protocol("a second welcome arrived on one connection".to_owned()));
            }
            other => {
                return Err(SessionError::Protocol(format!(
                    "{} arrived from the cloud in lane {lane:?}, but only an edge sends it",
                    words::name(&other)
                )));
            }
        }
        Ok(())
    }

    fn handle_deliver(&mut self, now: Moment, lane: Lane, deliver: Deliver) -> Result<(), SessionError> {
        let Deliver { seq, subscription, change } = deliver;
        let standing = self.subscriptions.standing(subscription, "a delivery")?;
        let Some(inbox) = self.inbox_mut(lane) else {
            return Err(SessionError::Protocol("a delivery arrived in lane Control".to_owned()));
        };
        if inbox.receive(seq)? == Arrival::Repeat {
            return self.patience.ignore(now, "a repeated delivery");
        }
        match standing {
            SubscriptionState::Open => {
                self.events.push_back(EdgeEvent::Deliver { lane, seq, subscription, change });
            }
            // The edge followed this subscription a moment ago: there is nothing to store, but the cloud's window must
            // advance.
            SubscriptionState::Ended => {
                inbox.finish(seq);
            }
        }
        Ok(())
    }

    /// Refuses one delivery that could not be read. Others are not affected.
    fn handle_undecodable(&mut self, now: Moment, lane: Lane, lost: Undecodable) -> Result<(), SessionError> {
        let Undecodable { seq, subscription, reason } = lost;
        self.subscriptions.standing(subscription, "a delivery")?;
        let Some(inbox) = self.inbox_mut(lane) else {
            return Err(SessionError::Protocol("a delivery arrived in lane Control".to_owned()));
        };
        if inbox.receive(seq)? == Arrival::Repeat {
            return self.patience.ignore(now, "a repeated delivery");
        }
        let message = format!("the delivery cannot be decoded: {reason}");
        self.refused(Refusal { lane, seq, reason: RefusalReason::Malformed, message });
        Ok(())
    }

    fn handle_inventory_request(
        &mut self,
        now: Moment,
        subscription: SubscriptionId,
        view: &impl EdgeView,
    ) -> Result<(), SessionError> {
        if self.subscriptions.standing(subscription, "an inventory request")? == SubscriptionState::Ended {
            return Ok(());
        }
        if self.subscriptions.upload(subscription, || view.inventory(subscription)) {
            return Ok(());
        }
        self.patience.ignore(now, "a second request for an inventory that is being sent")
    }

    fn handle_closed(
        &mut self,
        subscription: SubscriptionId,
        code: u16,
        reason: String,
    ) -> Result<(), SessionError> {
        if subscription == SubscriptionId::NODE {
            return Err(SessionError::Protocol("the pushed set cannot be closed".to_owned()));
        }
        if self.subscriptions.standing(subscription, "the closing of a subscription")?
            == SubscriptionState::Open
        {
            self.subscriptions.close(subscription);
            self.events.push_back(EdgeEvent::SubscriptionClosed { subscription, code, reason });
        }
        Ok(())
    }
}
