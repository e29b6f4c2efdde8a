//! Deliveries: what is sent, and how the edge answers.

use crate::frame::{Change, Deliver, Frame, Refusal};
use crate::ids::{Lane, Seq};
use crate::object::ObjectVersion;
use crate::session::SessionError;
use crate::session::cloud::send_window::InFlight;
use crate::session::cloud::slot::{PeerState, PlannedDelivery};
use crate::session::cloud::subscription::Next;
use crate::session::cloud::{CloudEvent, CloudSession, NodeView, Notice};

impl CloudSession {
    /// The next frame of the delivery or the bulk lane. In the bulk lane answers come first: a caller waits for them,
    /// and they are few.
    pub(super) fn poll_objects(&mut self, lane: Lane, view: &impl NodeView) -> Option<Frame> {
        if let Some(reply) = self.requests.poll(lane) {
            return Some(Frame::Reply(reply));
        }
        let window = window_index(lane)?;
        if self.windows[window].is_full() {
            return None;
        }
        let turn = self.windows[window].turn;
        let first = self.subscriptions.partition_point(|subscription| subscription.id <= turn);
        for index in (first..self.subscriptions.len()).chain(0..first) {
            let subscription = self.subscriptions.get_mut(index)?;
            let next = subscription.next(self.now, &self.windows[window], lane, view, &mut self.events);
            self.announce_caught_up(index);
            match next {
                Next::Nothing => {}
                Next::Blocked => return None,
                Next::Send(step) => return self.send(index, window, step),
            }
        }
        None
    }

    fn send(&mut self, subscription: usize, window: usize, step: PlannedDelivery) -> Option<Frame> {
        let subscription = self.subscriptions.get(subscription)?.id;
        let flight = InFlight {
            subscription,
            key: step.change.key().clone(),
            becomes: step.becomes,
            adoption: matches!(step.change, Change::Adopt { .. }),
            bytes: step.bytes,
            sent_at: self.now,
            refused: false,
        };
        let seq = self.windows[window].push(self.now, flight);
        self.windows[window].turn = subscription;
        self.counters.delivered += 1;
        Some(Frame::Deliver(Deliver { seq, subscription, change: step.change }))
    }

    pub(super) fn handle_ack(&mut self, lanes: &[(Lane, Seq)]) -> Result<(), SessionError> {
        if lanes.len() > Lane::ALL.len() {
            let text =
                format!("an acknowledgement names {} lanes, but there are {}", lanes.len(), Lane::ALL.len());
            return Err(SessionError::Protocol(text));
        }
        for (lane, seq) in lanes {
            let window = delivering(*lane)?;
            while let Some(flight) = self.windows[window].acknowledge(self.now, *seq)? {
                self.acknowledged(flight);
            }
        }
        self.ask_rest()
    }

    fn acknowledged(&mut self, flight: InFlight) {
        // The edge did not store a refused position, and for a closed subscription nothing is recorded.
        let Some(index) = self.subscription_index(flight.subscription).filter(|_| !flight.refused) else {
            return;
        };
        let Some(subscription) = self.subscriptions.get_mut(index) else { return };
        let version = held_version(&flight.becomes);
        subscription.acked(&flight.key, flight.becomes);
        self.counters.acked += 1;
        let latency = self.now.since(flight.sent_at);
        self.events.push_back(CloudEvent::Acked {
            subscription: flight.subscription,
            key: flight.key,
            version,
            latency,
        });
        self.announce_caught_up(index);
    }

    pub(super) fn handle_refuse(&mut self, refusal: Refusal) -> Result<(), SessionError> {
        let window = delivering(refusal.lane)?;
        let Some(flight) = self.windows[window].refuse(refusal.seq) else {
            return self.patience.ignore(self.now, "a refusal of a delivery that is not in flight");
        };
        let Some(index) = self
            .subscriptions
            .binary_search_by_key(&flight.subscription, |subscription| subscription.id)
            .ok()
        else {
            return Ok(());
        };
        let Some(subscription) = self.subscriptions.get_mut(index) else { return Ok(()) };
        let retry_in = subscription.refused(self.now, flight);
        self.counters.refused += 1;
        let (subscription, key) = (flight.subscription, flight.key.clone());
        let Refusal { reason, message, .. } = refusal;
        self.events.push_back(CloudEvent::Refused { subscription, key, reason, message, retry_in });
        self.announce_caught_up(index);
        Ok(())
    }

    /// Notifies both sides once that a subscription has caught up.
    pub(super) fn announce_caught_up(&mut self, subscription: usize) {
        let Some(subscription) = self.subscriptions.get_mut(subscription) else { return };
        let (id, caught_up) = (subscription.id, subscription.take_caught_up());
        if let Some(revision) = caught_up {
            self.notify(Notice::CaughtUp(id, revision));
            self.events.push_back(CloudEvent::CaughtUp { subscription: id });
        }
    }
}

fn held_version(peer_state: &PeerState) -> Option<ObjectVersion> {
    match peer_state {
        PeerState::Version(version) => Some(version.clone()),
        PeerState::Nothing | PeerState::Unknown | PeerState::Absent | PeerState::Unreadable => None,
    }
}

fn window_index(lane: Lane) -> Option<usize> {
    match lane {
        Lane::Control => None,
        Lane::Delivery => Some(0),
        Lane::Bulk => Some(1),
    }
}

fn delivering(lane: Lane) -> Result<usize, SessionError> {
    let text =
        || SessionError::Protocol("lane Control carries no deliveries to acknowledge or refuse".to_owned());
    window_index(lane).ok_or_else(text)
}
