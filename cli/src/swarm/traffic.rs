//! How much one node sends and receives until it is caught up: packages of the protocol, without transport overhead.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tombolo_link::{Direction, Tap};
use tombolo_proto::{Frame, Lane, codec};

/// Counts of one connection, from its first frame to the one that reports that the node is caught up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Bytes of packages that the node sent.
    pub(super) sent: usize,
    /// Bytes of packages that it received.
    pub(super) received: usize,
    /// How often an answer followed a sent frame.
    pub(super) round_trips: usize,
    last: Option<Direction>,
    over: bool,
}

/// Observes the link of one node.
#[derive(Debug, Default)]
pub(super) struct Traffic(Mutex<Counts>);

impl Traffic {
    /// Starts a new count.
    pub(super) fn restart(&self) {
        *self.lock() = Counts::default();
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> Counts {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tap for Traffic {
    fn frame(&self, _at: Instant, direction: Direction, lane: Lane, frame: &Frame) {
        let mut counts = self.lock();
        if counts.over {
            return;
        }
        // A frame that was transferred has a length.
        let length = codec::encode_package(lane, frame, true).map_or(0, |package| package.len());
        match direction {
            Direction::Out => counts.sent += length,
            Direction::In => {
                counts.received += length;
                counts.round_trips += usize::from(counts.last == Some(Direction::Out));
            }
        }
        counts.last = Some(direction);
        counts.over = matches!(frame, Frame::CaughtUp { .. });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_after_something_sent_are_round_trips() {
        let traffic = Traffic::default();
        let frame = Frame::Ping { id: 1 };
        let length = codec::encode_package(Lane::Control, &frame, true).unwrap().len();
        for direction in [Direction::Out, Direction::Out, Direction::In, Direction::In, Direction::Out] {
            traffic.frame(Instant::now(), direction, Lane::Control, &frame);
        }
        let Counts { sent, received, round_trips, .. } = traffic.counts();
        assert_eq!((sent, received, round_trips), (3 * length, 2 * length, 1));
        traffic.restart();
        assert_eq!(traffic.counts(), Counts::default());
    }
}
