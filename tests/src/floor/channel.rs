//! One connection that carries messages, either of the bare libraries or a link.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use quinn::{Connection, RecvStream, SendStream};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame as WebSocketFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tombolo_link::{Link, LinkEvent};
use tombolo_proto::frame::{ApiRequest, Request, RequestBody};
use tombolo_proto::{Frame, Lane, RequestId};

/// First byte of a message: its kind.
pub(crate) mod kind {
    /// Server to client: an update to acknowledge.
    pub(crate) const UPDATE: u8 = b'u';
    /// Client to server: the update has arrived.
    pub(crate) const ACK: u8 = b'a';
    /// Client to server: the answer has arrived.
    pub(crate) const STORED: u8 = b's';
    /// Client to server: a query.
    pub(crate) const QUERY: u8 = b'q';
    /// Server to client: the answer.
    pub(crate) const REPLY: u8 = b'r';
    /// Client to server: no content, but makes a QUIC stream visible.
    pub(crate) const HELLO: u8 = b'h';
}

/// Messages of at least this size use the bulk lane of a link.
const BULK_MIN: usize = 64 * 1024;

/// A message of a kind, padded to a length; always valid text.
pub(crate) fn message(kind: u8, stamp: u64, len: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(len);
    bytes.put_u8(kind);
    bytes.put_slice(format!("{stamp:016x}").as_bytes());
    bytes.resize(len, b'.');
    bytes.freeze()
}

/// The time that a message carries.
pub(crate) fn stamp(message: &Bytes) -> u64 {
    let digits = message.get(1..17).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// A connection.
pub(crate) enum FloorChannel {
    /// tungstenite over rustls, and the type of its messages.
    WebSocket(Box<WebSocketStream<TlsStream<TcpStream>>>, Data),
    /// One stream of quinn, with length-prefixed messages.
    Quic(Box<QuicChannel>),
    /// `tombolo-link`.
    Link(Box<Link>),
}

/// A QUIC connection with one stream.
pub(crate) struct QuicChannel {
    pub(crate) send: SendStream,
    pub(crate) receive: RecvStream,
    pub(crate) buffer: BytesMut,
    /// The stream ends when the last handle is dropped.
    pub(crate) _connection: Connection,
}

impl FloorChannel {
    /// The next message; none when the peer has disconnected. Cancel-safe.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        match self {
            Self::WebSocket(stream, _) => match stream.next().await {
                Some(Ok(Message::Binary(bytes))) => Ok(Some(bytes)),
                Some(Ok(Message::Text(text))) => Ok(Some(text.into())),
                Some(Ok(_)) | None => Ok(None),
                Some(Err(error)) => Err(error.into()),
            },
            Self::Quic(quic) => quic.next().await,
            Self::Link(link) => loop {
                match link.next().await {
                    LinkEvent::Frame(_, frame) => return unwrap(frame).map(Some),
                    LinkEvent::Writable => {}
                    LinkEvent::Closed(_) => return Ok(None),
                }
            },
        }
    }

    /// Sends a message and waits until the transport has accepted it.
    pub(crate) async fn send(&mut self, bytes: Bytes) -> anyhow::Result<()> {
        match self {
            Self::WebSocket(stream, data) => stream.send(framed(*data, bytes)).await.context("send"),
            Self::Quic(quic) => {
                let len = u32::try_from(bytes.len())?.to_be_bytes();
                let mut parts = [Bytes::copy_from_slice(&len), bytes];
                quic.send.write_all_chunks(&mut parts).await.context("send")
            }
            Self::Link(link) => {
                let lane = if bytes.len() < BULK_MIN { Lane::Control } else { Lane::Bulk };
                link.send(lane, wrap(bytes))?;
                link.flush().await.context("flush")
            }
        }
    }
}

impl FloorChannel {
    /// Queues a small message that is sent with the next one; only over a WebSocket.
    pub(crate) async fn feed(&mut self, bytes: Bytes) -> anyhow::Result<()> {
        match self {
            Self::WebSocket(stream, data) => stream.feed(framed(*data, bytes)).await.context("send"),
            Self::Quic(_) | Self::Link(_) => self.send(bytes).await,
        }
    }
}

/// A complete message as one frame; the content is known to be valid text.
fn framed(data: Data, bytes: Bytes) -> Message {
    Message::Frame(WebSocketFrame::message(bytes, OpCode::Data(data), true))
}

impl QuicChannel {
    async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            if let Some(head) = self.buffer.first_chunk::<4>() {
                let len = usize::try_from(u32::from_be_bytes(*head))?;
                if self.buffer.len() >= 4 + len {
                    self.buffer.advance(4);
                    return Ok(Some(self.buffer.split_to(len).freeze()));
                }
            }
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            match self.receive.read_chunk(16 * 1024, true).await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk.bytes),
                Ok(None) | Err(_) => return Ok(None),
            }
        }
    }
}

fn wrap(body: Bytes) -> Frame {
    let call = ApiRequest { body, ..ApiRequest::new("", "") };
    Frame::Request(Request {
        id: RequestId(1),
        timeout: Duration::from_secs(1),
        body: RequestBody::Api(call),
        caller_token: None,
    })
}

fn unwrap(frame: Frame) -> anyhow::Result<Bytes> {
    match frame {
        Frame::Request(Request { body: RequestBody::Api(call), .. }) => Ok(call.body),
        other => bail!("unexpected frame {other:?}"),
    }
}
