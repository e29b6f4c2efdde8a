//! Links over QUIC: one bidirectional stream per lane, packages back to back.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use quinn::{
    Connection, ConnectionError, IdleTimeout, ReadError, RecvStream, SendStream, TransportConfig, VarInt,
    WriteError,
};
use tombolo_proto::Lane;
use tombolo_proto::limits::FRAGMENT_LEN;
use tombolo_proto::package::{HEADER_LEN, Header, Package, Reader};

use crate::conn::Wire;
use crate::error::LinkError;
use crate::queue::SendQueue;

/// Most bytes of one lane under way. Also the most that a peer can make this side hold unread in one lane.
const LANE_WINDOW: u32 = 256 * 1024;

/// Bytes of the whole connection under way: more than all lanes together, so that a full lane never delays the others.
const CONNECTION_WINDOW: u32 = 4 * LANE_WINDOW;

/// Silence after which QUIC gives a connection up. Longer than the session's own limit
/// ([`tombolo_proto::limits::IDLE_TIMEOUT`]), which is the decisive one; QUIC sends no keep-alives.
const IDLE_TIMEOUT_MS: u32 = 120_000;

/// Streams that a peer may open: one per lane.
const LANES: u32 = 3;

/// Application code of an orderly end.
const CODE_CLOSED: VarInt = VarInt::from_u32(0);

/// Application code of a hub that does not accept the certificate's subject; sent with the reason.
pub(crate) const CODE_FORBIDDEN: u32 = 1;

/// Limits of both sides.
pub(crate) fn transport_config() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(LANES.into())
        .max_concurrent_uni_streams(0_u32.into())
        .stream_receive_window(LANE_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(CONNECTION_WINDOW.into())
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .keep_alive_interval(None)
        .datagram_receive_buffer_size(None);
    Arc::new(config)
}

/// Opens the lanes' streams on the edge: in order, each with an empty package, because a stream becomes visible to the
/// peer only with its first byte. Waits for the hub's empty package in the control lane, which shows that the hub has
/// accepted the certificate (RFC 8446, 4.4: a client finishes first).
pub(crate) async fn open_lanes(connection: Connection) -> Result<QuicWire, LinkError> {
    let mut streams = Vec::with_capacity(Lane::ALL.len());
    for lane in Lane::ALL {
        let (mut send, receive) = connection.open_bi().await.map_err(connection_error)?;
        send.write_all(&opening(lane)).await.map_err(write_error)?;
        streams.push(LaneStream::new(lane, send, receive)?);
    }
    let mut wire = QuicWire { connection, streams, closing: None };
    let first = poll_fn(|cx| wire.poll_receive(cx)).await?;
    if !first.payload.is_empty() {
        return Err(LinkError::Quic("the hub sent a frame before it opened the control lane".to_owned()));
    }
    Ok(wire)
}

/// Accepts the lanes' streams on the hub, and answers in the control lane with an empty package.
pub(crate) async fn accept_lanes(connection: Connection) -> Result<QuicWire, LinkError> {
    let mut streams = Vec::with_capacity(Lane::ALL.len());
    for lane in Lane::ALL {
        // quinn returns the peer's streams in the order of their numbers.
        let (mut send, receive) = connection.accept_bi().await.map_err(connection_error)?;
        if lane == Lane::Control {
            send.write_all(&opening(lane)).await.map_err(write_error)?;
        }
        streams.push(LaneStream::new(lane, send, receive)?);
    }
    Ok(QuicWire { connection, streams, closing: None })
}

fn opening(lane: Lane) -> [u8; HEADER_LEN] {
    Header { lane, more: false, len: 0 }.encode()
}

/// A QUIC connection as a link's transport.
pub(crate) struct QuicWire {
    connection: Connection,
    /// In lane order.
    streams: Vec<LaneStream>,
    closing: Option<Vec<Acknowledged>>,
}

/// Completes when the peer has received all bytes of a finished stream.
type Acknowledged = Pin<Box<dyn Future<Output = ()> + Send>>;

struct LaneStream {
    lane: Lane,
    send: SendStream,
    receive: RecvStream,
    reader: Reader,
    /// A package that quinn has partially accepted.
    unsent: Bytes,
    ended: bool,
}

impl LaneStream {
    fn new(lane: Lane, send: SendStream, receive: RecvStream) -> Result<Self, LinkError> {
        let priority = i32::try_from(Lane::ALL.len() - lane.index()).unwrap_or_default();
        send.set_priority(priority).map_err(|error| LinkError::Quic(error.to_string()))?;
        Ok(Self {
            lane,
            send,
            receive,
            reader: Reader::bounded(FRAGMENT_LEN),
            unsent: Bytes::new(),
            ended: false,
        })
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, queue: &mut SendQueue) -> Poll<Result<(), LinkError>> {
        loop {
            if self.unsent.is_empty() {
                match queue.pop_lane(self.lane, FRAGMENT_LEN) {
                    Some(package) => self.unsent = package?,
                    None => return Poll::Ready(Ok(())),
                }
            }
            // The future is created anew at each poll: it holds no state, and an unfinished write has taken nothing.
            let write = pin!(self.send.write_chunks(std::slice::from_mut(&mut self.unsent))).poll(cx);
            std::task::ready!(write).map_err(write_error)?;
        }
    }

    /// The lane's next package; `None` when the peer has finished the stream.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Package>, LinkError>> {
        loop {
            if let Some(package) = self.reader.pop()? {
                if package.lane != self.lane {
                    let error = LinkError::WrongLane { stream: self.lane, found: package.lane };
                    return Poll::Ready(Err(error));
                }
                return Poll::Ready(Ok(Some(package)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            // As above: a dropped read has taken nothing.
            let chunk = pin!(self.receive.read_chunk(FRAGMENT_LEN, true)).poll(cx);
            match std::task::ready!(chunk).map_err(read_error)? {
                Some(chunk) => self.reader.push(&chunk.bytes),
                None if self.reader.is_between_packages() => self.ended = true,
                None => return Poll::Ready(Err(LinkError::Truncated(self.lane))),
            }
        }
    }
}

impl Wire for QuicWire {
    fn poll_send(&mut self, cx: &mut Context<'_>, queue: &mut SendQueue) -> Poll<Result<(), LinkError>> {
        let mut all = Poll::Ready(Ok(()));
        for stream in &mut self.streams {
            match stream.poll_send(cx, queue) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => all = Poll::Pending,
            }
        }
        all
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Package, LinkError>> {
        let mut open = false;
        for stream in &mut self.streams {
            match stream.poll_receive(cx) {
                Poll::Ready(Ok(Some(package))) => return Poll::Ready(Ok(package)),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(Err(LinkError::ClosedByPeer)) }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let streams = &mut self.streams;
        let waiting = self.closing.get_or_insert_with(|| streams.iter_mut().map(finish).collect());
        waiting.retain_mut(|acknowledged| acknowledged.as_mut().poll(cx).is_pending());
        if !waiting.is_empty() {
            return Poll::Pending;
        }
        self.connection.close(CODE_CLOSED, b"closed");
        Poll::Ready(())
    }
}

fn finish(stream: &mut LaneStream) -> Acknowledged {
    // Fails only for a stream that was finished or reset before, which is just as good.
    let _ = stream.send.finish();
    let stopped = stream.send.stopped();
    Box::pin(async move {
        // Acknowledged, stopped or lost: in any case there is nothing left to wait for.
        let _ = stopped.await;
    })
}

/// The link error of a lost connection.
pub(crate) fn connection_error(error: ConnectionError) -> LinkError {
    match error {
        ConnectionError::ApplicationClosed(close) if close.error_code == CODE_CLOSED => {
            LinkError::ClosedByPeer
        }
        ConnectionError::LocallyClosed => LinkError::ClosedHere,
        other => LinkError::Quic(other.to_string()),
    }
}

fn write_error(error: WriteError) -> LinkError {
    match error {
        WriteError::ConnectionLost(error) => connection_error(error),
        other => LinkError::Quic(other.to_string()),
    }
}

fn read_error(error: ReadError) -> LinkError {
    match error {
        ReadError::ConnectionLost(error) => connection_error(error),
        other => LinkError::Quic(other.to_string()),
    }
}
