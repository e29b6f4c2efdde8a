//! Links over WebSocket: one binary message is one package.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::either::Either;
use tombolo_proto::limits::{EDGE_FRAME_LEN_MAX, FRAGMENT_LEN, FRAME_LEN_MAX};
use tombolo_proto::package::{HEADER_LEN, Package, PackageError};

use crate::conn::Wire;
use crate::error::LinkError;
use crate::meter::Metered;
use crate::queue::SendQueue;

/// Payload bytes of the packages that this side writes. Receivers accept pieces up to [`FRAGMENT_LEN`]; writing
/// smaller ones keeps tungstenite's buffers, which never shrink, small on ten thousand idle connections, and one piece
/// with its headers fits one 4 KiB TLS read.
pub(crate) const PIECE_LEN: usize = 4096 - 64;

/// tungstenite's read buffer, allocated for each connection. Longer messages get a buffer of their own while they are
/// read; acknowledgements, pings and most requests are shorter.
const READ_BUFFER: usize = 1024;

/// Small packages are gathered up to this size before they become one TLS record. The buffer grows by the longest
/// package beyond that, and does not shrink.
const WRITE_BUFFER: usize = 1024;

/// Most ciphertext that rustls may hold for a full socket.
pub(crate) const TLS_BUFFER: usize = 8 * 1024;

/// A connection of either side that counts the bytes it reads: over TLS, or in memory for a simulation.
pub(crate) type MeteredStream = Metered<Either<TlsStream<TcpStream>, DuplexStream>>;

/// Counts the bytes of a TLS connection.
pub(crate) fn over_tls(stream: TlsStream<TcpStream>) -> MeteredStream {
    Metered::new(Either::Left(stream))
}

/// The buffers of every connection.
pub(crate) fn buffer_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(READ_BUFFER).write_buffer_size(WRITE_BUFFER)
}

/// Limits of a connection that carries packages.
pub(crate) fn package_config() -> WebSocketConfig {
    let largest = Some(FRAGMENT_LEN + HEADER_LEN);
    buffer_config().max_message_size(largest).max_frame_size(largest)
}

/// Limits of a connection that carries documents. A KubeEdge cloud may write a whole message as one frame, and is
/// trusted with the memory of the largest; an edge is not: none of its messages is longer than the largest object.
pub(crate) fn text_config(role: Role) -> WebSocketConfig {
    let largest = match role {
        Role::Server => EDGE_FRAME_LEN_MAX,
        Role::Client => FRAME_LEN_MAX,
    };
    buffer_config().max_message_size(Some(largest)).max_frame_size(Some(largest))
}

/// A WebSocket as a link's transport.
pub(crate) struct WsWire {
    stream: WebSocketStream<MeteredStream>,
    /// Something was written since the last complete flush.
    dirty: bool,
    closing: Closing,
}

/// Phase of ending a connection.
#[derive(Clone, Copy)]
pub(crate) enum Closing {
    /// A close frame is sent first.
    CloseFrame,
    /// Nothing more is written.
    Shutdown,
    /// Reads until the peer closes: closing a TCP socket with unread bytes would reset the connection and destroy the
    /// last frames on their way.
    Linger,
}

impl WsWire {
    pub(crate) fn new(stream: WebSocketStream<MeteredStream>) -> Self {
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
                    Err(LinkError::WebSocket("received a text message, expected binary messages".to_owned()))
                }
            });
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        poll_end(&mut self.stream, &mut self.closing, cx)
    }
}

/// Ends a connection in good order, starting with the phase in `closing`.
pub(crate) fn poll_end(
    stream: &mut WebSocketStream<MeteredStream>,
    closing: &mut Closing,
    cx: &mut Context<'_>,
) -> Poll<()> {
    loop {
        *closing = match *closing {
            Closing::CloseFrame => match ready!(Pin::new(&mut *stream).poll_close(cx)) {
                Ok(()) => Closing::Shutdown,
                Err(_) => return Poll::Ready(()),
            },
            Closing::Shutdown => match ready!(Pin::new(stream.get_mut()).poll_shutdown(cx)) {
                Ok(()) => Closing::Linger,
                Err(_) => return Poll::Ready(()),
            },
            Closing::Linger => {
                let mut scrap = [0; 1024];
                let mut buffer = ReadBuf::new(&mut scrap);
                match ready!(Pin::new(stream.get_mut()).poll_read(cx, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => Closing::Linger,
                    _ => return Poll::Ready(()),
                }
            }
        };
    }
}

pub(crate) fn link_error(error: WsError) -> LinkError {
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
