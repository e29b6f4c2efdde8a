//! A slow link: relays on loopback with a limited number of bytes per second.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::network::serve_each;

/// Largest piece that is forwarded at once: small, so that pacing is even.
const PIECE: usize = 1400;

/// The same on a link that is not paced: whatever is waiting.
const UNPACED_PIECE: usize = 64 * 1024;

/// Queued datagrams in each direction, as in a router's buffer; more are dropped.
const DATAGRAMS_MAX: usize = 32;

/// Relays TCP and UDP to another port of this machine. It stops when dropped.
#[derive(Debug)]
pub struct SlowLink {
    /// TCP port of the relay.
    pub tcp_port: u16,
    /// UDP port of the relay.
    pub udp_port: u16,
    passed: Arc<Passed>,
    _tasks: JoinSet<()>,
}

/// The TCP traffic that passed.
#[derive(Debug, Default)]
struct Passed {
    /// Bytes in both directions.
    bytes: AtomicU64,
    /// When the first bytes from the cloud passed since the last query.
    from_cloud: Mutex<Option<Instant>>,
}

impl SlowLink {
    /// Starts relays in front of a TCP and a UDP port, with this many bytes per second in each direction; with
    /// [`u32::MAX`] there is no limit.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(tcp_target: u16, udp_target: u16, bytes_per_second: u32) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (tcp_port, udp_port) = (listener.local_addr()?.port(), socket.local_addr()?.port());
        let mut tasks = JoinSet::new();
        let passed = Arc::<Passed>::default();
        tasks.spawn(relay_tcp(listener, tcp_target, bytes_per_second, Arc::clone(&passed)));
        tasks.spawn(relay_udp(socket, udp_target, bytes_per_second));
        Ok(Self { tcp_port, udp_port, passed, _tasks: tasks })
    }

    /// Bytes forwarded over TCP so far, in both directions.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.bytes.load(Ordering::Relaxed)
    }

    /// When the first bytes from the cloud since the last call were forwarded over TCP.
    pub fn take_from_cloud(&self) -> Option<Instant> {
        self.passed.from_cloud.lock().take()
    }
}

impl Passed {
    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Spreads bytes over time.
struct RateLimiter {
    bytes_per_second: u32,
    free_at: Instant,
}

impl RateLimiter {
    fn new(bytes_per_second: u32) -> Self {
        Self { bytes_per_second, free_at: Instant::now() }
    }

    async fn pass(&mut self, bytes: usize) {
        if self.bytes_per_second == u32::MAX {
            return;
        }
        sleep_until(self.free_at).await;
        let cost = Duration::from_secs_f64(bytes as f64 / f64::from(self.bytes_per_second));
        self.free_at = self.free_at.max(Instant::now()) + cost;
    }
}

async fn relay_tcp(listener: TcpListener, target: u16, rate: u32, passed: Arc<Passed>) {
    let serve = |client: TcpStream| {
        let passed = Arc::clone(&passed);
        async move {
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else { return };
            // The last piece of a message must not wait for the acknowledgement of earlier pieces.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            // Small kernel buffers, so that data waits in the sender, as behind a slow modem.
            let _ = socket2::SockRef::from(&server).set_recv_buffer_size(16 * 1024);
            let (client_read, client_write) = client.into_split();
            let (server_read, server_write) = server.into_split();
            let up = copy(client_read, server_write, rate, |bytes| passed.count(bytes));
            let down = copy(server_read, client_write, rate, |bytes| {
                passed.from_cloud.lock().get_or_insert_with(Instant::now);
                passed.count(bytes);
            });
            tokio::join!(up, down);
        }
    };
    serve_each(listener, serve, drop).await;
}

async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    rate: u32,
    note: impl Fn(usize),
) {
    let length = if rate == u32::MAX { UNPACED_PIECE } else { PIECE };
    let (mut pace, mut piece) = (RateLimiter::new(rate), vec![0; length]);
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        pace.pass(read).await;
        note(read);
        if to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
    // The other side may have closed first; in both cases this direction has ended.
    let _ = to.shutdown().await;
}

async fn relay_udp(front: UdpSocket, target: u16, rate: u32) {
    let Ok(back) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await else { return };
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, target));
    let (front, back) = (Arc::new(front), Arc::new(back));
    let (client_known, client) = tokio::sync::watch::channel(None);
    let up = receive_paced(Arc::clone(&front), rate, move |from| {
        client_known.send_if_modified(|known| known.replace(from) != Some(from));
    });
    let down = receive_paced(Arc::clone(&back), rate, |_| {});
    let (mut up, mut down) = (up, down);
    loop {
        tokio::select! {
            Some(datagram) = up.recv() => drop(back.send_to(&datagram, target).await),
            Some(datagram) = down.recv() => {
                let to = *client.borrow();
                if let Some(to) = to {
                    drop(front.send_to(&datagram, to).await);
                }
            }
            else => return,
        }
    }
}

/// Receives datagrams into a short queue and forwards them at the pace of the link.
fn receive_paced(
    socket: Arc<UdpSocket>,
    rate: u32,
    mut seen: impl FnMut(SocketAddr) + Send + 'static,
) -> mpsc::Receiver<Vec<u8>> {
    let (waiting, mut queue) = mpsc::channel::<Vec<u8>>(DATAGRAMS_MAX);
    let (paced, out) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            seen(from);
            // A full queue drops the datagram, as a router does.
            if let Err(mpsc::error::TrySendError::Closed(_)) = waiting.try_send(buffer[..length].to_vec()) {
                return;
            }
        }
    });
    tokio::spawn(async move {
        let mut pace = RateLimiter::new(rate);
        while let Some(datagram) = queue.recv().await {
            pace.pass(datagram.len()).await;
            if paced.send(datagram).await.is_err() {
                return;
            }
        }
    });
    out
}
