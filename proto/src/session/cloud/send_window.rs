//! Deliveries in flight in one lane.

use std::collections::VecDeque;

use crate::ids::{Lane, Moment, Seq, SubscriptionId};
use crate::object::ObjectKey;
use crate::session::SessionError;
use crate::session::cloud::slot::PeerState;

/// A delivery that was sent and not acknowledged.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) subscription: SubscriptionId,
    pub(super) key: ObjectKey,
    /// What the edge holds after it has acknowledged.
    pub(super) becomes: PeerState,
    pub(super) adoption: bool,
    pub(super) bytes: usize,
    pub(super) sent_at: Moment,
    /// The edge refused it: the acknowledgement that passes it says nothing about the key.
    pub(super) refused: bool,
}

/// The send window of one lane: positions `sent - len + 1` to `sent`.
#[derive(Debug)]
pub(super) struct SendWindow {
    lane: Lane,
    count_max: usize,
    bytes_max: usize,
    bytes: usize,
    sent: Seq,
    flights: VecDeque<InFlight>,
    /// Subscription that was served last: the next one is served first, so that no subscription starves another.
    pub(super) turn: SubscriptionId,
    /// When the window last began to wait: at the first send into it or the newest acknowledgement.
    waiting_since: Moment,
}

/// Flights for which an empty window keeps its memory.
const KEPT_CAPACITY: usize = 4;

impl SendWindow {
    pub(super) fn new(lane: Lane, count_max: usize, bytes_max: usize) -> Self {
        Self {
            lane,
            count_max,
            bytes_max,
            bytes: 0,
            sent: Seq(0),
            flights: VecDeque::new(),
            turn: SubscriptionId::NODE,
            waiting_since: Moment::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.flights.len() >= self.count_max
    }

    /// Whether a delivery of this size may be sent. One that is larger than the window travels alone.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        !self.is_full() && (self.bytes == 0 || self.bytes.saturating_add(bytes) <= self.bytes_max)
    }

    /// Adds a delivery and gives it its position.
    pub(super) fn push(&mut self, now: Moment, flight: InFlight) -> Seq {
        if self.flights.is_empty() {
            self.waiting_since = now;
        }
        self.bytes = self.bytes.saturating_add(flight.bytes);
        self.flights.push_back(flight);
        self.sent = self.sent.next();
        self.sent
    }

    /// Since when the edge has acknowledged nothing although a delivery is in flight.
    pub(super) fn waiting_since(&self) -> Option<Moment> {
        (!self.flights.is_empty()).then_some(self.waiting_since)
    }

    /// The oldest delivery up to `seq`; call until it returns none.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] for a position that was never sent.
    pub(super) fn acknowledge(&mut self, now: Moment, seq: Seq) -> Result<Option<InFlight>, SessionError> {
        if seq > self.sent {
            return Err(SessionError::Protocol(format!(
                "position {} of lane {:?} was acknowledged, but only {} were sent",
                seq.0, self.lane, self.sent.0
            )));
        }
        if self.flights.is_empty() || self.oldest() > seq.0 {
            self.release();
            return Ok(None);
        }
        let flight = self.flights.pop_front();
        self.waiting_since = now;
        self.bytes = self.bytes.saturating_sub(flight.as_ref().map_or(0, |f| f.bytes));
        Ok(flight)
    }

    /// Marks a delivery as refused and releases its bytes; its position stays until it is acknowledged. None when the
    /// position is not in flight or was refused before.
    pub(super) fn refuse(&mut self, seq: Seq) -> Option<&InFlight> {
        let index = seq.0.checked_sub(self.oldest())?;
        let flight = self.flights.get_mut(usize::try_from(index).ok()?)?;
        if std::mem::replace(&mut flight.refused, true) {
            return None;
        }
        self.bytes = self.bytes.saturating_sub(flight.bytes);
        flight.bytes = 0;
        Some(flight)
    }

    /// Position of the oldest delivery in flight, or of the next one when none is in flight.
    fn oldest(&self) -> u64 {
        self.sent.0.saturating_sub(self.flights.len() as u64).saturating_add(1)
    }

    /// Releases the memory of a burst: a thousand idle nodes must not keep a thousand full windows.
    fn release(&mut self) {
        if self.flights.is_empty() && self.flights.capacity() > KEPT_CAPACITY {
            self.flights = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Resource;

    fn flight(bytes: usize) -> InFlight {
        InFlight {
            subscription: SubscriptionId::NODE,
            key: ObjectKey::new(Resource::new("", "v1", "pods"), "default", "a"),
            becomes: PeerState::Nothing,
            adoption: false,
            bytes,
            sent_at: Moment::default(),
            refused: false,
        }
    }

    fn drain(window: &mut SendWindow, seq: u64) -> usize {
        let mut popped = 0;
        while window.acknowledge(Moment::default(), Seq(seq)).expect("was sent").is_some() {
            popped += 1;
        }
        popped
    }

    #[test]
    fn counts_and_bytes_bound_what_is_in_flight() {
        let mut window = SendWindow::new(Lane::Delivery, 3, 100);
        assert!(window.has_room(1000), "one large object travels alone");
        assert_eq!(window.push(Moment::default(), flight(60)), Seq(1));
        assert!(window.has_room(40));
        assert!(!window.has_room(41));
        window.push(Moment::default(), flight(1));
        window.push(Moment::default(), flight(1));
        assert!(!window.has_room(1), "three are in flight");
        assert_eq!(drain(&mut window, 2), 2);
        assert!(window.has_room(99));
        assert!(!window.has_room(100));
    }

    #[test]
    fn acknowledgements_are_cumulative_and_repeatable() {
        let mut window = SendWindow::new(Lane::Bulk, 10, 100);
        for _ in 0..3 {
            window.push(Moment::default(), flight(1));
        }
        assert_eq!(drain(&mut window, 0), 0);
        assert_eq!(drain(&mut window, 2), 2);
        assert_eq!(drain(&mut window, 2), 0);
        assert_eq!(drain(&mut window, 1), 0);
        assert_eq!(drain(&mut window, 3), 1);
        let error = window.acknowledge(Moment::default(), Seq(4)).expect_err("never sent");
        assert!(error.to_string().contains("position 4 of lane Bulk"), "{error}");
    }

    #[test]
    fn refusals_free_bytes_at_once_and_positions_in_order() {
        let mut window = SendWindow::new(Lane::Delivery, 10, 10);
        window.push(Moment::default(), flight(5));
        window.push(Moment::default(), flight(5));
        assert!(window.refuse(Seq(0)).is_none());
        assert!(window.refuse(Seq(3)).is_none());
        assert!(window.refuse(Seq(u64::MAX)).is_none());
        assert!(window.refuse(Seq(2)).is_some());
        assert!(window.refuse(Seq(2)).is_none(), "refused once");
        assert!(window.has_room(5));
        assert_eq!(drain(&mut window, 2), 2);
        assert_eq!(window.len(), 0);
        assert!(window.has_room(usize::MAX), "bytes are back to zero");
    }
}
