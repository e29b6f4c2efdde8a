//! The bytes in transit between two sessions: per lane, in order, each lane with its own delay.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::{Change, Deliver, Frame};
use tombolo_proto::{Lane, Moment, codec};

/// Capacity of one lane in transit, in frames; more frames wait in their session.
const LANE_CAPACITY: usize = 8;

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Wire {
    lanes: [VecDeque<(Moment, Bytes)>; 3],
    delays: [Duration; 3],
    newest: [Moment; 3],
    /// Frames that were sent, in all lanes.
    pub sent: u64,
}

impl Wire {
    pub fn new(delays: [Duration; 3]) -> Self {
        Self { delays, ..Self::default() }
    }

    pub fn can_send(&self, lane: Lane) -> bool {
        self.lanes[lane.index()].len() < LANE_CAPACITY
    }

    /// Every frame passes the real codec, compressed or not.
    pub fn send(&mut self, now: Moment, lane: Lane, frame: &Frame, zstd: bool) {
        let at = lane.index();
        self.newest[at] = self.newest[at].max(now + self.delays[at]);
        self.lanes[at].push_back((self.newest[at], codec::encode(frame, zstd)));
        self.sent += 1;
    }

    pub fn next_arrival(&self) -> Option<Moment> {
        self.lanes.iter().filter_map(|lane| lane.front()).map(|(due, _)| *due).min()
    }

    pub fn receive(&mut self, now: Moment) -> Option<(Lane, Frame)> {
        let due = |lane: &Lane| self.lanes[lane.index()].front().is_some_and(|(due, _)| *due <= now);
        let lane = Lane::ALL.into_iter().find(due)?;
        let (_, bytes) = self.lanes[lane.index()].pop_front()?;
        Some((lane, codec::decode(bytes).expect("what one session sends, the other can read")))
    }

    /// Repeats the oldest frame of each lane, if it is one that a peer must tolerate twice.
    pub fn duplicate(&mut self) {
        for lane in &mut self.lanes {
            if let Some((due, bytes)) = lane.front().cloned()
                && matches!(codec::decode(bytes.clone()), Ok(Frame::Deliver(_) | Frame::Ack { .. }))
            {
                lane.insert(1, (due, bytes));
            }
        }
    }

    /// Replaces a delivery in transit, at the same position; returns the original.
    pub fn spoil(&mut self, lane: Lane, index: usize, spoil: impl Fn(&Deliver) -> Change) -> Deliver {
        let (_, bytes) = &mut self.lanes[lane.index()][index];
        let Ok(Frame::Deliver(sent)) = codec::decode(bytes.clone()) else { panic!("no delivery is there") };
        let spoiled = Frame::Deliver(Deliver { change: spoil(&sent), ..sent.clone() });
        *bytes = codec::encode(&spoiled, false);
        sent
    }

    /// Frames of a lane that are in transit.
    pub fn len(&self, lane: Lane) -> usize {
        self.lanes[lane.index()].len()
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(VecDeque::is_empty)
    }

    pub fn set_delay(&mut self, lane: Lane, delay: Duration) {
        self.delays[lane.index()] = delay;
    }
}
