//! Links over WebSocket: one binary message is one package.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};
use tombolo_proto::limits::{FRAGMENT_LEN, FRAME_LEN_MAX};
use tombolo_proto::package::{HEADER_LEN, Package, PackageError};

use crate::conn::Wire;
use crate::error::LinkError;
use crate::queue::SendQueue;

/// Payload bytes of the packages that this side writes. Receivers accept pieces up to [`FRAGMENT_LEN`]; writing smaller
/// ones keeps tungstenite's buffers, which never shrink, small on ten thousand idle connections, and one piece
/// with its headers fits one 4 KiB TLS read.
const PIECE_LEN: usize = 4096 - 64;

/// tungstenite's read buffer, allocated for each connection. Longer messages get a buffer of their own while they are
/// read; acknowledgements, pings and most questions are shorter.
const READ_BUFFER: usize = 1024;

/// Small packages are gathered up to this before they become one TLS record. The buffer grows to this and the longest
/// package, and stays so.
const WRITE_BUFFER: usize = 1024;

/// Ciphertext that rustls may hold for a socket that is full.
pub(crate) const TLS_BUFFER: usize = 8 * 1024;

/// Largest WebSocket frame of a stock peer: tungstenite reserves what a frame declares, and gorilla/websocket
/// cuts a client's messages into frames of 4 KiB (reference 2.1).
const STOCK_FRAME_MAX: usize = 1024 * 1024;

/// A TLS connection of either side.
pub(crate) type Tls = TlsStream<TcpStream>;

/// Limits of a connection that carries packages.
pub(crate) fn package_config() -> WebSocketConfig {
    let largest = Some(FRAGMENT_LEN + HEADER_LEN);
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_message_size(largest)
        .max_frame_size(largest)
}

fn text_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(FRAME_LEN_MAX))
        .max_frame_size(Some(STOCK_FRAME_MAX))
}

/// A WebSocket as a link's transport.
pub(crate) struct WsWire {
    stream: WebSocketStream<Tls>,
    /// Something was written since the last complete flush.
    dirty: bool,
    closing: Closing,
}

#[derive(Clone, Copy)]
enum Closing {
    CloseFrame,
    Shutdown,
    /// Reading until the peer is gone: closing a TCP socket with unread bytes would reset the connection and
    /// destroy the last frames on their way.
    Linger,
}

impl WsWire {
    pub(crate) fn new(stream: WebSocketStream<Tls>) -> Self {
        Self { stream, dirty: false, closing: Closing::CloseFrame }
    }
}

impl Wire for WsWire {
    fn poll_send(&mut self, cx: &mut Context<'_>, queue: &mut SendQueue) -> Poll<Result<(), LinkError>> {
        loop {
            if queue.is_empty() {
                break;
            }
            ready!(Pin::new(&mut self.stream).poll_ready(cx)).map_err(link_error)?;
            let Some(package) = queue.pop(PIECE_LEN) else { break };
            Pin::new(&mut self.stream).start_send(Message::Binary(package?)).map_err(link_error)?;
            self.dirty = true;
        }
        if self.dirty {
            ready!(Pin::new(&mut self.stream).poll_flush(cx)).map_err(link_error)?;
            self.dirty = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Package, LinkError>> {
        loop {
            let message = match ready!(Pin::new(&mut self.stream).poll_next(cx)) {
                Some(message) => message.map_err(link_error)?,
                None => return Poll::Ready(Err(LinkError::ClosedByPeer)),
            };
            return Poll::Ready(match message {
                Message::Binary(bytes) => Package::parse(&bytes).map_err(LinkError::from),
                // tungstenite answers pings itself.
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => Err(LinkError::ClosedByPeer),
                Message::Text(_) | Message::Frame(_) => {
                    Err(LinkError::WebSocket("a text message came, binary ones are expected".to_owned()))
                }
            });
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.closing = match self.closing {
                Closing::CloseFrame => match ready!(Pin::new(&mut self.stream).poll_close(cx)) {
                    Ok(()) => Closing::Shutdown,
                    Err(_) => return Poll::Ready(()),
                },
                Closing::Shutdown => match ready!(Pin::new(self.stream.get_mut()).poll_shutdown(cx)) {
                    Ok(()) => Closing::Linger,
                    Err(_) => return Poll::Ready(()),
                },
                Closing::Linger => {
                    let mut scrap = [0; 1024];
                    let mut buffer = ReadBuf::new(&mut scrap);
                    match ready!(Pin::new(self.stream.get_mut()).poll_read(cx, &mut buffer)) {
                        Ok(()) if !buffer.filled().is_empty() => Closing::Linger,
                        _ => return Poll::Ready(()),
                    }
                }
            };
        }
    }
}

fn link_error(error: WsError) -> LinkError {
    match error {
        WsError::Io(error) => error.into(),
        WsError::ConnectionClosed | WsError::AlreadyClosed => LinkError::ClosedByPeer,
        WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
            std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()
        }
        WsError::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            PackageError::TooLarge { what: "WebSocket message", len: size, max: max_size }.into()
        }
        other => LinkError::WebSocket(other.to_string()),
    }
}

/// A WebSocket without our subprotocol, for the dialect that speaks JSON in text messages (reference 2.1).
pub struct TextSocket {
    stream: Box<WebSocketStream<Tls>>,
}

impl std::fmt::Debug for TextSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextSocket").finish_non_exhaustive()
    }
}

impl TextSocket {
    /// Takes over an upgraded connection on which nothing but the upgrade has passed: the limits of packages
    /// do not fit it.
    pub(crate) async fn take_over(stream: WebSocketStream<Tls>) -> Self {
        let tls = stream.into_inner();
        let stream = WebSocketStream::from_raw_socket(tls, Role::Server, Some(text_config())).await;
        Self { stream: Box::new(stream) }
    }

    /// The next message, text or binary alike; `None` when the peer has closed. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError`] when the connection broke or the peer exceeded a limit.
    pub async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        loop {
            return match self.stream.next().await? {
                Ok(Message::Text(text)) => Some(Ok(text.into())),
                Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
                Ok(Message::Close(_)) => None,
                Err(error) => Some(Err(link_error(error))),
            };
        }
    }

    /// Writes one text message and waits until the kernel has taken it. A dropped call may still send.
    ///
    /// # Errors
    /// [`LinkError`] when the connection broke.
    pub async fn send(&mut self, text: String) -> Result<(), LinkError> {
        self.stream.send(Message::Text(Utf8Bytes::from(text))).await.map_err(link_error)
    }

    /// Ends the connection, waiting at most `limit`.
    pub async fn close(mut self, limit: Duration) {
        if tokio::time::timeout(limit, self.stream.close()).await.is_err() {
            tracing::debug!("the peer did not take the close frame in time");
        }
    }
}
