//! Deliveries: what is sent, and how the edge answers.

use crate::frame::{Change, Deliver, Frame, Refusal};
use crate::ids::{Lane, Seq};
use crate::object::ObjectVersion;
use crate::session::SessionError;
use crate::session::cloud::scope::Next;
use crate::session::cloud::slot::{Belief, Step};
use crate::session::cloud::window::InFlight;
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
        let first = self.scopes.partition_point(|scope| scope.id <= turn);
        for index in (first..self.scopes.len()).chain(0..first) {
            let scope = self.scopes.get_mut(index)?;
            let next = scope.next(self.now, &self.windows[window], lane, view, &mut self.events);
            self.announce_caught_up(index);
            match next {
                Next::Nothing => {}
                Next::Blocked => return None,
                Next::Send(step) => return self.send(index, window, step),
            }
        }
        None
    }

    fn send(&mut self, scope: usize, window: usize, step: Step) -> Option<Frame> {
        let scope = self.scopes.get(scope)?.id;
        let flight = InFlight {
            scope,
            key: step.change.key().clone(),
            becomes: step.becomes,
            adoption: matches!(step.change, Change::Adopt { .. }),
            bytes: step.bytes,
            sent_at: self.now,
            refused: false,
        };
        let seq = self.windows[window].push(self.now, flight);
        self.windows[window].turn = scope;
        self.counters.delivered += 1;
        Some(Frame::Deliver(Deliver { seq, scope, change: step.change }))
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
        // The edge did not store a refused position, and for a closed scope nothing is recorded.
        let Some(index) = self.scope_index(flight.scope).filter(|_| !flight.refused) else { return };
        let Some(scope) = self.scopes.get_mut(index) else { return };
        let version = held_version(&flight.becomes);
        scope.acked(&flight.key, flight.becomes);
        self.counters.acked += 1;
        let latency = self.now.since(flight.sent_at);
        self.events.push_back(CloudEvent::Acked { scope: flight.scope, key: flight.key, version, latency });
        self.announce_caught_up(index);
    }

    pub(super) fn handle_refuse(&mut self, refusal: Refusal) -> Result<(), SessionError> {
        let window = delivering(refusal.lane)?;
        let Some(flight) = self.windows[window].refuse(refusal.seq) else {
            return self.patience.ignore(self.now, "a refusal of a delivery that is not in flight");
        };
        let Some(index) = self.scopes.binary_search_by_key(&flight.scope, |scope| scope.id).ok() else {
            return Ok(());
        };
        let Some(scope) = self.scopes.get_mut(index) else { return Ok(()) };
        let retry_in = scope.refused(self.now, flight);
        self.counters.refused += 1;
        let (scope, key) = (flight.scope, flight.key.clone());
        let Refusal { reason, message, .. } = refusal;
        self.events.push_back(CloudEvent::Refused { scope, key, reason, message, retry_in });
        self.announce_caught_up(index);
        Ok(())
    }

    /// Notifies both sides once that a scope has caught up.
    pub(super) fn announce_caught_up(&mut self, scope: usize) {
        let Some(scope) = self.scopes.get_mut(scope) else { return };
        let (id, caught_up) = (scope.id, scope.take_caught_up());
        if let Some(revision) = caught_up {
            self.notify(Notice::CaughtUp(id, revision));
            self.events.push_back(CloudEvent::CaughtUp { scope: id });
        }
    }
}

fn held_version(belief: &Belief) -> Option<ObjectVersion> {
    match belief {
        Belief::Version(version) => Some(version.clone()),
        Belief::Nothing | Belief::Unknown | Belief::Absent | Belief::Unreadable => None,
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
