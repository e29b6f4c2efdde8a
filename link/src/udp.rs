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

/// Requested size of the kernel buffers: thousands of nodes that acknowledge at once share one socket, and datagrams
/// that do not fit are lost. Linux grants up to `net.core.rmem_max` and `wmem_max` (`docs/operations.md`).
const KERNEL_BUFFER: usize = 4 * 1024 * 1024;

/// Most datagrams handed to the kernel in one call. quinn keeps a buffer for that many per connection that ever sent a
/// burst, and never releases it: ten, quinn's own choice, would take 15 KB per node.
const BURST_MAX: usize = 3;

/// Requests larger kernel buffers. A refusal is not an error: QUIC works with small ones, but loses more.
pub(crate) fn tune(socket: &UdpSocket) {
    let socket = SockRef::from(socket);
    let asked =
        socket.set_recv_buffer_size(KERNEL_BUFFER).and_then(|()| socket.set_send_buffer_size(KERNEL_BUFFER));
    if let Err(error) = asked {
        tracing::debug!(%error, "cannot enlarge the UDP buffers");
    }
}

/// A socket for many connections, with a limit on bursts.
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
