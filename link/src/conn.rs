//! A link: frames in lanes over any transport.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;
use tombolo_proto::frame::features;
use tombolo_proto::package::{Assembler, Header, Package, PackageError};
use tombolo_proto::{Frame, Lane, NodeId, codec};
use tombolo_runtime::{Held, Share};

use crate::error::LinkError;
use crate::identity::PeerCertificate;
use crate::progress::{PROGRESS_BYTES, PROGRESS_INTERVAL, Progress};
use crate::queue::SendQueue;

/// Transport of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TLS over TCP.
    WebSocket,
    /// QUIC over UDP.
    Quic,
    /// A pair of queues, for tests.
    Memory,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WebSocket => "websocket",
            Self::Quic => "quic",
            Self::Memory => "memory",
        })
    }
}

/// The other end of a link.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Network address; unspecified for links in memory.
    pub remote: SocketAddr,
    /// Transport of the link.
    pub transport: Transport,
    /// The node in the peer's certificate; none on the edge's side.
    pub node: Option<NodeId>,
    /// The peer's certificate; none on the edge's side and for links in memory.
    pub certificate: Option<PeerCertificate>,
}

/// Event returned by [`Link::next`].
#[derive(Debug)]
pub enum LinkEvent {
    /// A whole frame arrived.
    Frame(Lane, Frame),
    /// A lane that was full has room again: call the pump.
    Writable,
    /// The link has ended; every later call returns the same.
    Closed(LinkError),
}

/// Direction of a frame, as seen by the tapped side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent by this side.
    Out,
    /// Received by this side.
    In,
}

/// Receives every frame of a link, for the recorder (docs/operations.md#recording). Called by the link's owner, so it
/// must not block.
pub trait Tap: Send + Sync {
    /// A frame was queued for sending, or was received.
    fn frame(&self, at: Instant, direction: Direction, lane: Lane, frame: &Frame);
}

/// How one transport moves packages.
pub(crate) trait Wire: Send {
    /// Moves as much of the queue as the transport accepts; ready when all is written and flushed.
    fn poll_send(&mut self, cx: &mut Context<'_>, queue: &mut SendQueue) -> Poll<Result<(), LinkError>>;

    /// The next package.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Package, LinkError>>;

    /// Ends the connection after everything was flushed; ready when the peer has received what was written.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// A connection to a peer that carries frames in lanes. The crate documentation shows the owner's loop. It has many
/// fields because one poll moves both directions, each with its buffers, its progress and its failure.
pub struct Link {
    wire: Box<dyn Wire>,
    queue: SendQueue,
    assembler: Assembler,
    /// Lanes in which a frame has begun and not ended.
    unfinished: [bool; 3],
    /// Empty packages received: QUIC opens each lane with one.
    empty: usize,
    peer: PeerInfo,
    compress: bool,
    /// Reading comes first after a `Writable`, so that a fast sender still receives.
    read_first: bool,
    /// Writing failed; data that the peer sent before is still read.
    write_failed: Option<LinkError>,
    closed: Option<LinkError>,
    tap: Option<Arc<dyn Tap>>,
    /// Memory held for the pieces of unfinished frames and the frame being processed.
    pieces: Option<Held>,
    /// Number of sent bytes up to which an answer is still queued.
    answers_until: u64,
    /// Bytes received since the beginning.
    arrived: u64,
    /// Progress of reading and writing.
    progress: [Progress; 2],
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer).field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(wire: Box<dyn Wire>, peer: PeerInfo) -> Self {
        Self {
            wire,
            queue: SendQueue::default(),
            assembler: Assembler::new(),
            unfinished: [false; 3],
            empty: 0,
            peer,
            compress: false,
            read_first: false,
            write_failed: None,
            closed: None,
            tap: None,
            pieces: None,
            answers_until: 0,
            arrived: 0,
            progress: Default::default(),
        }
    }

    /// The same for a peer whose frames are at most `max` bytes long, in all lanes together.
    pub(crate) fn bounded(wire: Box<dyn Wire>, peer: PeerInfo, max: usize) -> Self {
        Self { assembler: Assembler::bounded(max), ..Self::new(wire, peer) }
    }

    /// Accounts the memory for pieces of unfinished frames to the peer's share. Without room the link ends.
    pub fn set_share(&mut self, share: &Share) {
        self.pieces = Some(share.nothing());
    }

    /// Bytes that wait to be written, as long as an answer is among them. Objects alone are not counted, because all
    /// nodes share their bodies.
    #[must_use]
    pub fn queued_answers(&self) -> usize {
        if self.queue.left() < self.answers_until { self.queue.bytes() } else { 0 }
    }

    /// Checks whether the peer reads what waits for it and continues what it has begun. If not, the link ends.
    pub fn check_progress(&mut self, now: Instant) -> Option<LinkError> {
        if self.closed.is_some() {
            return None;
        }
        let [reading, writing] = &mut self.progress;
        let begun = self.unfinished.iter().any(|unfinished| *unfinished);
        let what = if reading.is_stalled(begun, self.arrived, now) {
            "a partially received frame does not continue"
        } else if writing.is_stalled(!self.queue.is_empty(), self.queue.left(), now) {
            "the peer does not read queued frames"
        } else {
            return None;
        };
        let seconds = PROGRESS_INTERVAL.as_secs();
        let text = format!("{what}: less than {PROGRESS_BYTES} bytes in {seconds} s");
        self.closed = Some(LinkError::Stalled(text.clone()));
        Some(LinkError::Stalled(text))
    }

    /// Checks whether a transfer is under way, and if so, returns when to call [`Self::check_progress`] next.
    pub fn watch_progress(&mut self, now: Instant) -> Option<Instant> {
        let begun = self.unfinished.iter().any(|unfinished| *unfinished);
        let [reading, writing] = &mut self.progress;
        let deadlines = [
            reading.watch(begun, self.arrived, now),
            writing.watch(!self.queue.is_empty(), self.queue.left(), now),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// The other end of the link.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Passes every frame from now on to a recorder.
    pub fn set_tap(&mut self, tap: Arc<dyn Tap>) {
        self.tap = Some(tap);
    }

    /// Whether the lane accepts another frame. False for every lane once the link has ended, unless the peer's own
    /// bytes ended it: then a goodbye can still be sent ([`LinkError::goodbye`]).
    #[must_use]
    pub fn can_send(&self, lane: Lane) -> bool {
        self.unwritable().is_none() && self.queue.has_room(lane)
    }

    /// The reason why nothing can be written any more.
    fn unwritable(&self) -> Option<&LinkError> {
        self.closed.as_ref().filter(|reason| reason.goodbye().is_none())
    }

    /// Encodes and queues a frame. It is written by [`Self::next`], [`Self::flush`] or [`Self::close`].
    ///
    /// # Errors
    /// [`LinkError::LaneFull`] when [`Self::can_send`] is false for the lane, [`LinkError::Package`] when the frame is
    /// larger than `FRAME_LEN_MAX` (the link stays usable), or the reason for the link's end.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "sending consumes the frame, whatever a transport keeps of it"
    )]
    pub fn send(&mut self, lane: Lane, frame: Frame) -> Result<(), LinkError> {
        if let Some(reason) = self.unwritable() {
            return Err(reason.clone());
        }
        if !self.queue.has_room(lane) {
            return Err(LinkError::LaneFull(lane));
        }
        let (head, body) = codec::encode_pieces(&frame, self.compress);
        Header::new(lane, false, head.len().saturating_add(body.len()))?;
        self.watch(Direction::Out, lane, &frame);
        if let Frame::Welcome(welcome) = &frame {
            self.compress = welcome.features & features::ZSTD != 0;
        }
        self.queue.push_pieces(lane, head, body);
        if matches!(frame, Frame::Reply(_)) {
            let waiting = u64::try_from(self.queue.bytes()).unwrap_or(u64::MAX);
            self.answers_until = self.queue.left().saturating_add(waiting);
        }
        Ok(())
    }

    /// Writes queued frames and waits for the next event. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> LinkEvent {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The poll form of [`Self::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<LinkEvent> {
        if let Some(reason) = &self.closed {
            return Poll::Ready(LinkEvent::Closed(reason.clone()));
        }
        // The frame that was returned last has been processed.
        if let Some(pieces) = &mut self.pieces {
            // Holding less never fails.
            let _ = pieces.set(self.assembler.pending());
        }
        if std::mem::take(&mut self.read_first)
            && let Poll::Ready(event) = self.poll_frame(cx)
        {
            return Poll::Ready(event);
        }
        self.poll_write(cx);
        if self.queue.take_freed() {
            self.read_first = true;
            return Poll::Ready(LinkEvent::Writable);
        }
        if let Poll::Ready(event) = self.poll_frame(cx) {
            return Poll::Ready(event);
        }
        match self.write_failed.take() {
            Some(error) => Poll::Ready(self.end(error)),
            None => Poll::Pending,
        }
    }

    /// Writes everything that is queued and waits until the transport has accepted it. Nothing is read meanwhile: two
    /// peers that flush large frames to each other would wait forever, so use this only for small ones.
    ///
    /// # Errors
    /// The reason for the link's end.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        if let Some(reason) = self.unwritable() {
            return Err(reason.clone());
        }
        let flushed = poll_fn(|cx| self.wire.poll_send(cx, &mut self.queue)).await;
        flushed.inspect_err(|error| self.closed = Some(error.clone()))
    }

    /// Writes queued frames (a goodbye), ends the connection in good order, and waits at most `limit` for that.
    pub async fn close(mut self, limit: Duration) {
        let orderly = async {
            if self.flush().await.is_ok() {
                poll_fn(|cx| self.wire.poll_close(cx)).await;
            }
        };
        if tokio::time::timeout(limit, orderly).await.is_err() {
            tracing::debug!(peer = %self.peer.remote, "the peer did not accept the last frames in time");
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) {
        if self.write_failed.is_none()
            && let Poll::Ready(Err(error)) = self.wire.poll_send(cx, &mut self.queue)
        {
            self.write_failed = Some(error);
        }
        if self.queue.is_empty() {
            let [_, writing] = &mut self.progress;
            writing.rest();
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<LinkEvent> {
        loop {
            match ready!(self.wire.poll_receive(cx)).and_then(|package| self.assemble(package)) {
                Ok(Some((lane, frame))) => return Poll::Ready(LinkEvent::Frame(lane, frame)),
                Ok(None) => {}
                Err(LinkError::ClosedByPeer) => return Poll::Ready(self.closed_by_peer()),
                Err(error) => return Poll::Ready(self.end(error)),
            }
        }
    }

    /// An orderly end in the middle of a frame counts as truncated.
    fn closed_by_peer(&mut self) -> LinkEvent {
        let cut = Lane::ALL.into_iter().find(|lane| self.unfinished[lane.index()]);
        self.end(cut.map_or(LinkError::ClosedByPeer, LinkError::Truncated))
    }

    fn assemble(&mut self, package: Package) -> Result<Option<(Lane, Frame)>, LinkError> {
        if package.payload.is_empty() && !package.more {
            // This opens a lane's stream on QUIC: no frame is empty. More of them would be a way to keep this side
            // busy without purpose.
            self.empty += 1;
            return if self.empty > Lane::ALL.len() {
                Err(PackageError::EmptyPiece.into())
            } else {
                Ok(None)
            };
        }
        self.unfinished[package.lane.index()] = package.more;
        self.arrived = self.arrived.saturating_add(u64::try_from(package.payload.len()).unwrap_or(u64::MAX));
        let whole = self.assembler.accept(package)?;
        let weight = whole.as_ref().map_or(0, |(_, bytes)| codec::weight(bytes));
        if let Some(pieces) = &mut self.pieces
            && !pieces.set(self.assembler.pending().saturating_add(weight))
        {
            self.assembler = Assembler::new();
            let text = "no memory is left for partially received frames of this node".to_owned();
            return Err(LinkError::Overloaded(text));
        }
        let Some((lane, bytes)) = whole else { return Ok(None) };
        let frame =
            codec::decode(bytes).map_err(|source| LinkError::Frame { lane, source: Arc::new(source) })?;
        self.watch(Direction::In, lane, &frame);
        Ok(Some((lane, frame)))
    }

    fn watch(&self, direction: Direction, lane: Lane, frame: &Frame) {
        if let Some(tap) = &self.tap {
            tap.frame(Instant::now(), direction, lane, frame);
        }
    }

    fn end(&mut self, error: LinkError) -> LinkEvent {
        self.closed = Some(error.clone());
        LinkEvent::Closed(error)
    }
}
