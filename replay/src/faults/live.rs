//! A cloud that misbehaves while a run is made: between the product and the replayed edge.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::forms::{with_id, with_next_version, with_wrong_label, without_owners};
use super::positions::LanePositions;
use super::{ONE_IN, PeerFault, TIMES};
use crate::frame::{Ask, Frame};
use crate::transcript::{Event, Transcript};

/// How long [`PeerFault::WrongRead`] answers wrongly.
const WRONG_FOR: Duration = Duration::from_secs(1);

/// Where an edge keeps a delivered object: connection, group and path.
type DeliveryPlace = (u64, String, String);

/// Alters what a cloud sends during a run. Bounded by the transcript.
pub struct FaultyCloud {
    fault: PeerFault,
    /// Messages so far.
    messages: usize,
    /// Places to which the recorded cloud delivers more than once.
    repeated: HashSet<DeliveryPlace>,
    /// The last delivery to each place; of [`PeerFault::Swap`], the one that waits for the next.
    last: HashMap<DeliveryPlace, Frame>,
    /// When the first read was answered.
    first_read: Option<Duration>,
    positions: LanePositions,
}

impl FaultyCloud {
    /// A cloud that misbehaves in one way during a run of this transcript.
    #[must_use]
    pub fn new(fault: PeerFault, transcript: &Transcript) -> Self {
        let mut seen = HashSet::new();
        let places = transcript.lines.iter().filter_map(|line| match (&line.event, line.conn) {
            (Event::Down(frame), Some(conn)) if frame.is_push() => Some(place(conn, frame)),
            _ => None,
        });
        let repeated = places.filter(|place| !seen.insert(place.clone())).collect();
        let (messages, last, first_read, positions) = Default::default();
        Self { fault, messages, repeated, last, first_read, positions }
    }

    /// Whether the cloud answers this request before it stores anything, which here means never.
    #[must_use]
    pub fn answers_itself(&self, request: &Frame) -> bool {
        self.fault == PeerFault::EarlyAck && request.ask() == Ask::Write
    }

    /// What the edge gets in place of a message of the cloud. `at` is the time since the start of the run, `asked` what
    /// the request wanted that the message answers.
    pub fn passes(&mut self, at: Duration, conn: u64, frame: Frame, asked: Option<Ask>) -> Vec<Frame> {
        if frame.operation() == "ping" {
            return vec![frame];
        }
        self.messages += 1;
        let passed = self.altered(at, conn, frame, asked);
        passed.into_iter().map(|frame| self.positions.numbered(frame)).collect()
    }

    fn altered(&mut self, at: Duration, conn: u64, mut frame: Frame, asked: Option<Ask>) -> Vec<Frame> {
        match self.fault {
            PeerFault::Drop if self.messages.is_multiple_of(ONE_IN) => return Vec::new(),
            PeerFault::NoAck if asked == Some(Ask::Write) => return Vec::new(),
            PeerFault::TenTimes => {
                let copy = |number| with_id(&frame, &format!("{}-{number}", frame.id()));
                return std::iter::once(frame.clone()).chain((1..TIMES).map(copy)).collect();
            }
            PeerFault::Swap | PeerFault::Older if frame.is_push() => return self.in_other_order(conn, frame),
            PeerFault::WrongRead if asked == Some(Ask::Read) => {
                if at.saturating_sub(*self.first_read.get_or_insert(at)) < WRONG_FOR {
                    with_wrong_label(&mut frame);
                }
            }
            PeerFault::Version if frame.operation() != "delete" => drop(with_next_version(&mut frame)),
            PeerFault::Owners => drop(without_owners(&mut frame)),
            _ => {}
        }
        vec![frame]
    }

    /// Of two deliveries to one place, the second first; or the first once more after the second.
    fn in_other_order(&mut self, conn: u64, frame: Frame) -> Vec<Frame> {
        let place = place(conn, &frame);
        let is_swapped = self.fault == PeerFault::Swap;
        let before = if is_swapped {
            self.last.remove(&place)
        } else {
            self.last.insert(place.clone(), frame.clone())
        };
        match before {
            Some(before) => {
                let before = with_id(&before, &format!("{}-later", before.id()));
                vec![frame, before]
            }
            None if is_swapped && self.repeated.contains(&place) => {
                self.last.insert(place, frame);
                Vec::new()
            }
            None => vec![frame],
        }
    }
}

fn place(conn: u64, frame: &Frame) -> DeliveryPlace {
    (conn, frame.group().to_owned(), frame.usual_resource())
}
