//! Frames that wait to be written: one bounded queue per lane, lowest lane first.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use tombolo_proto::Lane;
use tombolo_proto::package::{HEADER_LEN, Header, PackageError};

/// Encoded bytes from which a lane counts as full. One frame may exceed it: a lane with fewer bytes accepts a frame of
/// any legal size, so that large objects can be sent at all.
pub const LANE_QUEUE_BYTES: usize = 64 * 1024;

/// Frames from which a lane counts as full.
pub const LANE_QUEUE_FRAMES: usize = 256;

/// Queues larger than this release their memory once empty.
const KEEP_CAPACITY: usize = 8;

/// The outbound side of a link.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    lanes: [LaneQueue; 3],
    freed: bool,
    /// Bytes that were taken out since the beginning.
    left: u64,
}

/// A part of an encoded frame, and whether the frame continues in the next part.
type FramePart = (Bytes, bool);

#[derive(Debug, Default)]
struct LaneQueue {
    /// Encoded frames in one or two parts; the beginning of the first may already have been cut off as packages.
    frames: VecDeque<FramePart>,
    bytes: usize,
    /// Was found full and has not been reported as free since.
    choked: bool,
}

impl LaneQueue {
    fn has_room(&self) -> bool {
        self.bytes < LANE_QUEUE_BYTES && self.frames.len() < LANE_QUEUE_FRAMES
    }

    /// Whether the lane is half empty: reporting room earlier would wake the owner for each package.
    fn is_relaxed(&self) -> bool {
        self.bytes <= LANE_QUEUE_BYTES / 2 && self.frames.len() <= LANE_QUEUE_FRAMES / 2
    }
}

impl SendQueue {
    /// Whether the lane accepts another frame.
    pub(crate) fn has_room(&self, lane: Lane) -> bool {
        self.lanes[lane.index()].has_room()
    }

    /// Queues an encoded frame behind those of its lane. The caller has checked that there is room.
    pub(crate) fn push(&mut self, lane: Lane, frame: Bytes) {
        let queue = &mut self.lanes[lane.index()];
        queue.bytes = queue.bytes.saturating_add(frame.len());
        queue.frames.push_back((frame, false));
        queue.choked |= !queue.has_room();
    }

    /// The same for a frame whose body is a separate piece.
    pub(crate) fn push_pieces(&mut self, lane: Lane, head: Bytes, body: Bytes) {
        if body.is_empty() {
            return self.push(lane, head);
        }
        let queue = &mut self.lanes[lane.index()];
        queue.bytes = queue.bytes.saturating_add(head.len()).saturating_add(body.len());
        queue.frames.extend([(head, true), (body, false)]);
        queue.choked |= !queue.has_room();
    }

    /// Bytes that wait in all lanes.
    pub(crate) fn bytes(&self) -> usize {
        self.lanes.iter().map(|queue| queue.bytes).sum()
    }

    /// Bytes that were taken out since the beginning.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.iter().all(|queue| queue.frames.is_empty())
    }

    /// Whether a lane that was full has room again; true only once each time.
    pub(crate) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// The next package of the lowest lane that has data, at most `piece_max` payload bytes.
    pub(crate) fn pop(&mut self, piece_max: usize) -> Option<Result<Bytes, PackageError>> {
        Lane::ALL.into_iter().find_map(|lane| self.pop_lane(lane, piece_max))
    }

    /// The lane's next package, at most `piece_max` payload bytes: header and payload in one buffer.
    pub(crate) fn pop_lane(&mut self, lane: Lane, piece_max: usize) -> Option<Result<Bytes, PackageError>> {
        let (piece, more) = self.cut(lane, piece_max)?;
        let header = match Header::new(lane, more, piece.len()) {
            Ok(header) => header.encode(),
            Err(error) => return Some(Err(error)),
        };
        let mut package = BytesMut::with_capacity(HEADER_LEN + piece.len());
        package.put_slice(&header);
        package.put_slice(&piece);
        Some(Ok(package.freeze()))
    }

    /// Cuts off the lane's next piece; also returns whether the frame continues.
    fn cut(&mut self, lane: Lane, piece_max: usize) -> Option<(Bytes, bool)> {
        let queue = &mut self.lanes[lane.index()];
        let (frame, goes_on) = queue.frames.front_mut()?;
        let piece = frame.split_to(frame.len().min(piece_max));
        let done = frame.is_empty();
        let more = !done || *goes_on;
        if done {
            queue.frames.pop_front();
        }
        queue.bytes = queue.bytes.saturating_sub(piece.len());
        self.left = self.left.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if queue.choked && queue.is_relaxed() {
            queue.choked = false;
            self.freed = true;
        }
        if queue.frames.is_empty() && queue.frames.capacity() > KEEP_CAPACITY {
            queue.frames = VecDeque::new();
        }
        Some((piece, more))
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::package::Package;

    use super::*;

    fn pop(queue: &mut SendQueue, piece_max: usize) -> Option<(Lane, bool, usize)> {
        let package = Package::parse(&queue.pop(piece_max)?.unwrap()).unwrap();
        Some((package.lane, package.more, package.payload.len()))
    }

    #[test]
    fn a_control_frame_overtakes_the_rest_of_a_bulk_frame() {
        let mut queue = SendQueue::default();
        queue.push(Lane::Bulk, vec![7; 25].into());
        assert_eq!(pop(&mut queue, 10), Some((Lane::Bulk, true, 10)));
        queue.push(Lane::Delivery, vec![1; 4].into());
        queue.push(Lane::Control, vec![1; 12].into());
        let rest: Vec<_> = std::iter::from_fn(|| pop(&mut queue, 10)).collect();
        let expected = [
            (Lane::Control, true, 10),
            (Lane::Control, false, 2),
            (Lane::Delivery, false, 4),
            (Lane::Bulk, true, 10),
            (Lane::Bulk, false, 5),
        ];
        assert_eq!(rest, expected);
        assert!(queue.is_empty());
    }

    #[test]
    fn separate_body_encodes_the_same_frame() {
        let mut queue = SendQueue::default();
        queue.push_pieces(Lane::Bulk, vec![1; 4].into(), vec![2; 15].into());
        queue.push_pieces(Lane::Bulk, vec![3; 4].into(), Bytes::new());
        assert_eq!(queue.bytes(), 23);
        let all: Vec<_> = std::iter::from_fn(|| pop(&mut queue, 10)).collect();
        let bulk = |more, len| (Lane::Bulk, more, len);
        assert_eq!(all, [bulk(true, 4), bulk(true, 10), bulk(false, 5), bulk(false, 4)]);
        assert_eq!((queue.bytes(), queue.left()), (0, 23));
    }

    #[test]
    fn a_full_lane_reports_room_once_it_is_half_empty() {
        let mut queue = SendQueue::default();
        queue.push(Lane::Bulk, vec![0; 3 * LANE_QUEUE_BYTES].into());
        assert!(!queue.has_room(Lane::Bulk) && queue.has_room(Lane::Control));
        let piece = LANE_QUEUE_BYTES;
        pop(&mut queue, piece);
        pop(&mut queue, piece);
        assert!(!queue.take_freed(), "a whole measure still waits");
        pop(&mut queue, piece);
        assert!(queue.take_freed() && !queue.take_freed());
        assert!(queue.has_room(Lane::Bulk));
    }

    #[test]
    fn the_number_of_frames_is_bounded_too() {
        let mut queue = SendQueue::default();
        for _ in 0..LANE_QUEUE_FRAMES {
            assert!(queue.has_room(Lane::Control));
            queue.push(Lane::Control, Bytes::from_static(b"x"));
        }
        assert!(!queue.has_room(Lane::Control));
        while pop(&mut queue, 10).is_some() {}
        assert!(queue.take_freed());
        assert_eq!(queue.lanes[0].frames.capacity(), 0, "an idle link keeps no queue memory");
    }
}
