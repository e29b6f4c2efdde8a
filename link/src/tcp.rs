//! Socket options of TCP links.

use std::io;

use socket2::SockRef;
use tokio::net::TcpStream;

/// Unsent bytes in the kernel above which a socket counts as full. A control frame waits behind at most this many
/// older bytes of its own connection (docs/protocol.md#lanes).
const NOTSENT_LOWAT: u32 = 16 * 1024;

/// Sends small frames at once, and keeps the kernel's queue short.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    SockRef::from(stream).set_tcp_notsent_lowat(NOTSENT_LOWAT)?;
    Ok(())
}
