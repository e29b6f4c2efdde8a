//! UDP sockets for QUIC.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, UdpPoller};
use socket2::SockRef;

/// Kernel buffers asked for: thousands of nodes that acknowledge at once share one socket, and what does not fit
/// is lost. Linux grants up to `net.core.rmem_max` and `wmem_max` (`docs/operations.md`).
const KERNEL_BUFFER: usize = 4 * 1024 * 1024;

/// Datagrams handed to the kernel in one call, at most. quinn keeps a buffer of that many for each connection
/// that ever sent a burst, and never gives it back: ten, its own choice, would be 15 KB a node.
const BURST_MAX: usize = 3;

/// Asks for larger kernel buffers. A refusal is no error: QUIC works with small ones, it only loses more.
pub(crate) fn tune(socket: &UdpSocket) {
    let socket = SockRef::from(socket);
    let asked =
        socket.set_recv_buffer_size(KERNEL_BUFFER).and_then(|()| socket.set_send_buffer_size(KERNEL_BUFFER));
    if let Err(error) = asked {
        tracing::debug!(%error, "UDP buffers keep their size");
    }
}

/// A socket for many connections: it limits bursts.
pub(crate) fn shared(socket: UdpSocket, runtime: &dyn Runtime) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    tune(&socket);
    Ok(Arc::new(ShortBursts { inner: runtime.wrap_udp_socket(socket)? }))
}

struct ShortBursts {
    inner: Arc<dyn AsyncUdpSocket>,
}

impl fmt::Debug for ShortBursts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl AsyncUdpSocket for ShortBursts {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments().min(BURST_MAX)
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
