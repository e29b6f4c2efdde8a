//! Links of dialect `kubeedge`: one JSON document is one WebSocket text message (docs/reference/kubeedge.md#websocket).
//!
//! There are no lanes, because a KubeEdge peer reads one document after the other. Documents that are longer than
//! [`PIECE_LEN`] are written as fragments of [`LARGE_PIECE_LEN`]: tungstenite's buffer grows to the longest frame and
//! never shrinks.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{Sink, Stream};
use tokio_rustls::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_util::either::Either;
use tombolo_proto::session::kubeedge::Outgoing;
use tombolo_runtime::Share;

use crate::conn::{Direction, PeerInfo};
use crate::error::LinkError;
use crate::ws::{Closing, MeteredStream, PIECE_LEN, link_error, poll_end, text_config};

/// Waiting bytes from which the link accepts no further document. One document may exceed it, so that large ones can
/// be sent at all.
pub const DOCUMENT_QUEUE_BYTES: usize = 64 * 1024;

/// Waiting documents from which the link accepts no further one.
pub const DOCUMENT_QUEUE_MAX: usize = 64;

/// Bytes after which the socket is flushed even though more waits. This bounds the granularity of `Transmitted`.
const FLUSH_BYTES: usize = 16 * 1024;

/// Payload bytes of the frames of a document that does not fit one frame. A large object is sent to thousands of nodes
/// at once, and the memory that each connection needs besides the object itself stays with the process: this is half
/// of what one frame may have, at the price of twice as many writes for documents that are rare.
const LARGE_PIECE_LEN: usize = PIECE_LEN / 2;

/// Bytes of a ping or its answer besides its payload, as a client sends it.
const CONTROL_HEADER: usize = 6;

/// Payload of the ping of [`DocumentLink::is_read`] and of its answer.
const PROBE: &[u8] = b"still there?";

/// Documents of at least this length are not kept as the buffer for others.
const LARGE_DOCUMENT: usize = 64 * 1024;

/// Most ciphertext that rustls may hold for a full socket.
const TLS_BUFFER: usize = 4 * 1024;

/// Elements for which an empty queue keeps its memory.
const KEEP_CAPACITY: usize = 4;

thread_local! {
    /// Buffer in which the pieces of a document are joined to one frame. tungstenite copies a frame at once, so the
    /// memory is free again for the next one: a frame is longer than what the allocator provides cheaply. Bounded by
    /// [`PIECE_LEN`], once per thread.
    static SCRATCH: Cell<BytesMut> = Cell::default();
}

/// Event returned by [`DocumentLink::next`].
#[derive(Debug)]
pub enum DocumentEvent {
    /// A document arrived, as a text or a binary message.
    Document(Bytes),
    /// Something other than a document arrived: a ping, which is already answered, or an answer to one.
    Heard,
    /// Every document up to this number was passed to the kernel; there may be room for others.
    Transmitted(u64),
    /// The link has ended; every later call returns the same.
    Closed(LinkError),
}

/// Receives every document of a link, for the recorder. Called by the link's owner, so it must not block.
pub trait DocumentTap: Send + Sync {
    /// A document was queued for sending, or was received.
    fn document(&self, direction: Direction, document: &Bytes);
}

/// A connection to a peer that speaks dialect `kubeedge`. Like [`Link`](crate::Link), it only makes progress while its
/// owner waits in [`next`](Self::next).
pub struct DocumentLink {
    stream: Box<WebSocketStream<MeteredStream>>,
    queue: DocumentQueue,
    /// Bytes written since the last complete flush.
    unflushed: usize,
    /// The newest document that was completely written since then.
    written: Option<u64>,
    peer: PeerInfo,
    /// Reading comes first after a `Transmitted`, so that a fast sender still receives.
    read_first: bool,
    /// Writing failed; data that the peer sent before is still read.
    write_failed: Option<LinkError>,
    closed: Option<LinkError>,
    tap: Option<Arc<dyn DocumentTap>>,
    /// Whether the peer has answered [`PROBE`].
    has_answered: bool,
    /// The last received document, if it was a large one. tungstenite keeps its buffer for the next one unless another
    /// reference to it exists when that begins.
    large: Option<Bytes>,
}

impl fmt::Debug for DocumentLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentLink").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl DocumentLink {
    /// Takes over an accepted connection, which was upgraded with the limits of packages. No client sends a frame
    /// before it has the answer to its upgrade (RFC 6455, section 4.1), so none is lost with the upgrade's reader.
    pub(crate) async fn accepted(stream: WebSocketStream<MeteredStream>, peer: PeerInfo) -> Self {
        Self::upgraded(stream.into_inner(), Role::Server, peer).await
    }

    /// Takes over a connection on which nothing was sent after its upgrade.
    pub(crate) async fn upgraded(stream: MeteredStream, role: Role, peer: PeerInfo) -> Self {
        let config = Some(text_config(role));
        Self::new(WebSocketStream::from_raw_socket(stream, role, config).await, peer)
    }

    /// Takes over a connection that was upgraded with the limits of documents, including data that was already read.
    pub(crate) fn new(mut stream: WebSocketStream<MeteredStream>, peer: PeerInfo) -> Self {
        match stream.get_mut().get_mut() {
            Either::Left(TlsStream::Client(tls)) => tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER)),
            Either::Left(TlsStream::Server(tls)) => tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER)),
            Either::Right(_) => {}
        }
        Self {
            stream: Box::new(stream),
            queue: DocumentQueue::default(),
            unflushed: 0,
            written: None,
            peer,
            read_first: false,
            write_failed: None,
            closed: None,
            tap: None,
            has_answered: false,
            large: None,
        }
    }

    /// Accounts the memory for an incomplete document to the peer's share. Without room the link ends.
    pub fn set_share(&mut self, share: &Share) {
        self.stream.get_mut().bound(share);
    }

    /// Passes every document from now on to a recorder.
    pub fn set_tap(&mut self, tap: Arc<dyn DocumentTap>) {
        self.tap = Some(tap);
    }

    /// The other end of the link.
    #[must_use]
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }

    /// Whether another document is accepted.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.closed.is_none() && self.queue.has_room()
    }

    /// Queues a document. It is written by [`Self::next`] or [`Self::close`].
    ///
    /// # Errors
    /// [`LinkError::QueueFull`] when [`Self::can_send`] is false, or the reason for the link's end.
    pub fn send(&mut self, document: Outgoing) -> Result<(), LinkError> {
        if let Some(reason) = &self.closed {
            return Err(reason.clone());
        }
        if !self.queue.has_room() {
            return Err(LinkError::QueueFull);
        }
        if let Some(tap) = &self.tap {
            tap.document(Direction::Out, &document.to_bytes());
        }
        self.queue.push(document);
        Ok(())
    }

    /// Writes queued documents and waits for the next event. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> DocumentEvent {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The poll form of [`Self::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<DocumentEvent> {
        if let Some(reason) = &self.closed {
            return Poll::Ready(DocumentEvent::Closed(reason.clone()));
        }
        let was_read = std::mem::take(&mut self.read_first);
        if was_read && let Poll::Ready(event) = self.poll_read(cx) {
            return Poll::Ready(event);
        }
        if self.write_failed.is_none() {
            match self.poll_write(cx) {
                Poll::Ready(Ok(Some(number))) => {
                    self.read_first = true;
                    return Poll::Ready(DocumentEvent::Transmitted(number));
                }
                Poll::Ready(Err(error)) => self.write_failed = Some(error),
                Poll::Ready(Ok(None)) | Poll::Pending => {}
            }
        }
        // If reading found nothing above, it need not be polled again: it wakes this task.
        if !was_read && let Poll::Ready(event) = self.poll_read(cx) {
            return Poll::Ready(event);
        }
        match self.write_failed.take() {
            Some(error) => Poll::Ready(self.end(error)),
            None => Poll::Pending,
        }
    }

    /// Whether the other end still reads: sends a ping, and discards everything before its answer. Waits at most
    /// `limit`. For links that are being ended: when a node has begun another connection, an answer here shows that
    /// another process began it.
    pub async fn is_read(&mut self, limit: Duration) -> bool {
        let answer = async {
            poll_fn(|cx| Pin::new(&mut *self.stream).poll_ready(cx)).await.ok()?;
            let ping = Message::Ping(Bytes::from_static(PROBE));
            Pin::new(&mut *self.stream).start_send(ping).ok()?;
            self.unflushed = self.unflushed.max(1);
            while !self.has_answered {
                if let DocumentEvent::Closed(_) = self.next().await {
                    return None;
                }
            }
            Some(())
        };
        tokio::time::timeout(limit, answer).await.ok().flatten().is_some()
    }

    /// Writes what is queued and ends the connection as KubeEdge peers do, without a close frame
    /// (docs/reference/kubeedge.md#websocket). Waits at most `limit`.
    pub async fn close(mut self, limit: Duration) {
        let orderly = async {
            while !self.queue.is_empty() || self.unflushed > 0 {
                if self.closed.is_some() || poll_fn(|cx| self.poll_write(cx)).await.is_err() {
                    return;
                }
            }
            let mut closing = Closing::Shutdown;
            poll_fn(|cx| poll_end(&mut self.stream, &mut closing, cx)).await;
        };
        if tokio::time::timeout(limit, orderly).await.is_err() {
            tracing::debug!(peer = %self.peer.remote, "the peer did not accept the last documents in time");
        }
    }

    /// Writes as much as the socket accepts; ready with a number after each flush that completed a document, and
    /// without one when nothing is left to write.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<u64>, LinkError>> {
        loop {
            if self.unflushed >= FLUSH_BYTES || (self.queue.is_empty() && self.unflushed > 0) {
                ready!(Pin::new(&mut *self.stream).poll_flush(cx)).map_err(link_error)?;
                self.unflushed = 0;
                if let Some(number) = self.written.take() {
                    return Poll::Ready(Ok(Some(number)));
                }
            }
            if self.queue.is_empty() {
                return Poll::Ready(Ok(None));
            }
            ready!(Pin::new(&mut *self.stream).poll_ready(cx)).map_err(link_error)?;
            let Some(piece) = self.queue.pop() else { continue };
            self.unflushed += piece.payload.len().max(1);
            let code = OpCode::Data(if piece.first { Data::Text } else { Data::Continue });
            let frame = Frame::message(piece.payload, code, piece.ends.is_some());
            Pin::new(&mut *self.stream).start_send(Message::Frame(frame)).map_err(link_error)?;
            self.written = piece.ends.or(self.written);
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<DocumentEvent> {
        let read = Pin::new(&mut *self.stream).poll_next(cx);
        self.large = None;
        let message = match ready!(read) {
            Some(Ok(message)) => message,
            Some(Err(_)) if self.stream.get_ref().is_refused() => {
                let text = "no memory is left for the partially received document of this node".to_owned();
                return Poll::Ready(self.end(LinkError::Overloaded(text)));
            }
            Some(Err(error)) => return Poll::Ready(self.end(link_error(error))),
            None => return Poll::Ready(self.end(LinkError::ClosedByPeer)),
        };
        Poll::Ready(match message {
            Message::Text(text) => self.arrived(text.into()),
            Message::Binary(bytes) => self.arrived(bytes),
            // tungstenite answers pings itself, with the next write or flush.
            Message::Ping(data) | Message::Pong(data) => {
                self.has_answered |= data == PROBE;
                // It may arrive in the middle of a document, which then continues.
                self.stream.get_mut().passed(data.len().saturating_add(CONTROL_HEADER));
                self.unflushed = self.unflushed.max(1);
                DocumentEvent::Heard
            }
            Message::Frame(_) => {
                self.unflushed = self.unflushed.max(1);
                DocumentEvent::Heard
            }
            Message::Close(_) => self.end(LinkError::ClosedByPeer),
        })
    }

    fn arrived(&mut self, document: Bytes) -> DocumentEvent {
        self.stream.get_mut().finished();
        self.large = Some(document.clone()).filter(|document| document.len() >= LARGE_DOCUMENT);
        if let Some(tap) = &self.tap {
            tap.document(Direction::In, &document);
        }
        DocumentEvent::Document(document)
    }

    fn end(&mut self, error: LinkError) -> DocumentEvent {
        self.closed = Some(error.clone());
        DocumentEvent::Closed(error)
    }
}

/// Documents that wait to be written.
#[derive(Debug, Default)]
struct DocumentQueue {
    documents: VecDeque<QueuedDocument>,
    bytes: usize,
}

#[derive(Debug)]
struct QueuedDocument {
    document: Outgoing,
    /// Index of the first piece that is not completely written, and how much of it is.
    piece: usize,
    offset: usize,
}

/// A part of a document, as one frame.
struct Piece {
    payload: Bytes,
    first: bool,
    /// Number of the document, when this is its last part.
    ends: Option<u64>,
}

impl DocumentQueue {
    fn has_room(&self) -> bool {
        self.bytes < DOCUMENT_QUEUE_BYTES && self.documents.len() < DOCUMENT_QUEUE_MAX
    }

    fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    fn push(&mut self, document: Outgoing) {
        self.bytes = self.bytes.saturating_add(document.len());
        self.documents.push_back(QueuedDocument { document, piece: 0, offset: 0 });
    }

    /// The next part of the oldest document.
    fn pop(&mut self) -> Option<Piece> {
        let waiting = self.documents.front_mut()?;
        let first = waiting.piece == 0 && waiting.offset == 0;
        let fits = waiting.document.len() <= PIECE_LEN;
        let payload = waiting.cut(if fits { PIECE_LEN } else { LARGE_PIECE_LEN });
        self.bytes = self.bytes.saturating_sub(payload.len());
        let ends = waiting.is_done().then_some(waiting.document.number);
        if ends.is_some() {
            self.documents.pop_front();
            if self.documents.is_empty() && self.documents.capacity() > KEEP_CAPACITY {
                self.documents = VecDeque::new();
            }
        }
        Some(Piece { payload, first, ends })
    }
}

impl QueuedDocument {
    /// Takes the next bytes, at most `max`. No copy is made when they belong to one piece.
    fn cut(&mut self, max: usize) -> Bytes {
        self.skip_written();
        let Some(piece) = self.document.pieces().get(self.piece) else { return Bytes::new() };
        let rest = piece.slice(self.offset..);
        if rest.len() >= max {
            self.offset += max;
            let cut = rest.slice(..max);
            self.skip_written();
            return cut;
        }
        let mut cut = SCRATCH.take();
        cut.reserve(max.min(self.document.len()));
        while let Some(piece) = self.document.pieces().get(self.piece)
            && cut.len() < max
        {
            let len = (piece.len() - self.offset).min(max - cut.len());
            cut.put_slice(&piece[self.offset..self.offset + len]);
            self.offset += len;
            self.skip_written();
        }
        let joined = cut.split().freeze();
        SCRATCH.set(cut);
        joined
    }

    /// Moves on to the next piece that has bytes left.
    fn skip_written(&mut self) {
        while self.document.pieces().get(self.piece).is_some_and(|piece| piece.len() <= self.offset) {
            self.piece += 1;
            self.offset = 0;
        }
    }

    fn is_done(&self) -> bool {
        self.piece >= self.document.pieces().len()
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::message::{
        Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source,
    };

    use super::*;

    fn document(number: u64, text: &str) -> Outgoing {
        let route = Route::new(
            Source::EdgeController,
            Group::Resource,
            Operation::Query,
            ResourcePath::CaCertificate,
        );
        let id = MessageId::parse("m").expect("an id");
        Outgoing::message(number, &Message::new(id, 1, route, Content::text(text)))
    }

    #[test]
    fn documents_are_cut_and_come_out_whole_and_in_order() {
        let (long, short) = (document(1, &"x".repeat(10_000)), document(2, &"y".repeat(3000)));
        let expected = [long.to_bytes(), short.to_bytes()];
        let mut queue = DocumentQueue::default();
        queue.push(long);
        queue.push(short);
        let mut read = vec![BytesMut::new()];
        let (mut firsts, mut lengths) = (0, Vec::new());
        while let Some(piece) = queue.pop() {
            assert!(!piece.payload.is_empty());
            firsts += usize::from(piece.first);
            lengths.push(piece.payload.len());
            read.last_mut().expect("one").put_slice(&piece.payload);
            if let Some(number) = piece.ends {
                assert_eq!(usize::try_from(number), Ok(read.len()));
                read.push(BytesMut::new());
            }
        }
        assert_eq!((firsts, read.len(), queue.bytes), (2, 3, 0));
        let (whole, parts) = lengths.split_last().expect("two documents");
        assert_eq!(*whole, expected[1].len(), "what fits one frame is one");
        assert!(parts.len() > 4 && parts.iter().all(|length| *length <= LARGE_PIECE_LEN), "{parts:?}");
        assert!(read.iter().zip(&expected).all(|(read, expected)| read == expected));
    }

    #[test]
    fn the_queue_is_bounded_by_bytes_and_by_number() {
        let mut queue = DocumentQueue::default();
        queue.push(document(1, &"x".repeat(DOCUMENT_QUEUE_BYTES)));
        assert!(!queue.has_room());
        let mut queue = DocumentQueue::default();
        for number in 0..DOCUMENT_QUEUE_MAX {
            assert!(queue.has_room());
            queue.push(document(number as u64, ""));
        }
        assert!(!queue.has_room());
    }
}
