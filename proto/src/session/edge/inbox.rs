//! Positions of one lane at the edge: received, settled and acknowledged ones.

use std::collections::BTreeSet;

use crate::ids::{Lane, Seq};
use crate::session::{SessionError, UNACKED_MAX};

/// Result of receiving a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The next one in order.
    New,
    /// A position that was received before.
    Repeat,
}

/// The receiving end of one lane. Three marks only ever grow: acknowledged, settled, received, in this order.
#[derive(Debug)]
pub(super) struct Inbox {
    lane: Lane,
    received: u64,
    /// Everything up to here is stored, refused or dropped.
    settled: u64,
    /// Positions above `settled` that need no storing.
    done: BTreeSet<u64>,
    acked: u64,
}

impl Inbox {
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, received: 0, settled: 0, done: BTreeSet::new(), acked: 0 }
    }

    /// Receives a position.
    ///
    /// # Errors
    /// [`SessionError::Protocol`] for a gap, or when [`UNACKED_MAX`] deliveries already wait for their
    /// acknowledgement.
    pub(super) fn receive(&mut self, seq: Seq) -> Result<Arrival, SessionError> {
        if seq.0 <= self.received {
            return Ok(Arrival::Repeat);
        }
        if seq.0 - 1 != self.received {
            return Err(SessionError::Protocol(format!(
                "position {} of lane {:?} arrived after {}: a delivery is missing in between",
                seq.0, self.lane, self.received
            )));
        }
        if self.received - self.acked >= UNACKED_MAX as u64 {
            return Err(SessionError::Protocol(format!(
                "more than {UNACKED_MAX} deliveries arrived in lane {:?} without waiting for an acknowledgement",
                self.lane
            )));
        }
        self.received = seq.0;
        Ok(Arrival::New)
    }

    /// Everything up to `seq` that was received is stored.
    pub(super) fn committed(&mut self, seq: Seq) {
        let settled = seq.0.min(self.received);
        if settled > self.settled {
            self.settled = settled;
            self.done = self.done.split_off(&settled.saturating_add(1));
            self.advance();
        }
    }

    /// The position needs no storing. False when it is settled already or was never received.
    pub(super) fn finish(&mut self, seq: Seq) -> bool {
        let open = seq.0 > self.settled && seq.0 <= self.received && self.done.insert(seq.0);
        self.advance();
        open
    }

    fn advance(&mut self) {
        while self.done.first() == Some(&self.settled.saturating_add(1)) {
            self.done.pop_first();
            self.settled = self.settled.saturating_add(1);
        }
    }

    /// The position to acknowledge, when it has moved since the last call.
    pub(super) fn poll_ack(&mut self) -> Option<(Lane, Seq)> {
        if self.settled == self.acked {
            return None;
        }
        self.acked = self.settled;
        Some((self.lane, Seq(self.acked)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox(received: u64) -> Inbox {
        let mut inbox = Inbox::new(Lane::Delivery);
        for seq in 1..=received {
            assert_eq!(inbox.receive(Seq(seq)).expect("in order"), Arrival::New);
        }
        inbox
    }

    fn ack(inbox: &mut Inbox) -> Option<u64> {
        inbox.poll_ack().map(|(_, seq)| seq.0)
    }

    #[test]
    fn acknowledgement_covers_only_positions_settled_in_order() {
        let mut inbox = inbox(5);
        assert_eq!(ack(&mut inbox), None);
        assert!(inbox.finish(Seq(3)));
        assert_eq!(ack(&mut inbox), None, "1 and 2 are not stored yet");
        inbox.committed(Seq(2));
        assert_eq!(ack(&mut inbox), Some(3));
        assert_eq!(ack(&mut inbox), None);
        assert!(inbox.finish(Seq(5)));
        inbox.committed(Seq(4));
        assert_eq!(ack(&mut inbox), Some(5));
    }

    #[test]
    fn commits_of_unknown_positions_acknowledge_nothing() {
        let mut inbox = inbox(2);
        inbox.committed(Seq(u64::MAX));
        assert_eq!(ack(&mut inbox), Some(2));
        inbox.committed(Seq(1));
        assert_eq!(ack(&mut inbox), None);
        assert!(!inbox.finish(Seq(2)), "settled already");
        assert!(!inbox.finish(Seq(3)), "never received");
        assert!(!inbox.finish(Seq(0)));
    }

    #[test]
    fn gaps_are_refused_and_repeats_recognised() {
        let mut inbox = inbox(2);
        assert_eq!(inbox.receive(Seq(1)).expect("known"), Arrival::Repeat);
        assert_eq!(inbox.receive(Seq(0)).expect("known"), Arrival::Repeat);
        let error = inbox.receive(Seq(4)).expect_err("3 is missing");
        assert!(error.to_string().contains("position 4 of lane Delivery arrived after 2"), "{error}");
    }

    #[test]
    fn a_cloud_without_a_window_is_stopped() {
        let mut inbox = inbox(UNACKED_MAX as u64);
        assert!(inbox.receive(Seq(UNACKED_MAX as u64 + 1)).is_err());
        inbox.committed(Seq(1));
        assert!(inbox.receive(Seq(UNACKED_MAX as u64 + 1)).is_err(), "stored, but not acknowledged yet");
        assert_eq!(ack(&mut inbox), Some(1));
        assert_eq!(inbox.receive(Seq(UNACKED_MAX as u64 + 1)).expect("one left"), Arrival::New);
    }
}
