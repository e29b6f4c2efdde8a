//! Connections of dialect `kubeedge`: a stream of bytes in memory for each end, and a relay between them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tombolo_link::mem::{self, Crossing, Way};
use tombolo_link::{Direction, DocumentLink, DocumentTap};
use tombolo_proto::NodeId;

use super::NetworkObserver;
use super::connection::ConnectionEnds;
use crate::observation::Seen;
use crate::oracle::wire;

/// Bytes that an end may send before somebody reads, as in the buffer of a socket.
const SOCKET_BYTES: usize = 64 * 1024;

/// Bytes that the relay moves at once, and pieces of this size that are under way.
const PIECE_BYTES: usize = 16 * 1024;
const PIECES_MAX: usize = 64;

/// The faults of a relay.
#[derive(Debug, Clone, Default)]
struct RelayFaults {
    is_cut: bool,
    down: RelayWay,
    up: RelayWay,
}

#[derive(Debug, Clone, Copy, Default)]
struct RelayWay {
    delay: Duration,
    is_silent: bool,
}

impl RelayFaults {
    fn way(&self, way: Way) -> RelayWay {
        match way {
            Way::Down => self.down,
            Way::Up => self.up,
        }
    }
}

/// Disturbs one connection.
#[derive(Debug, Clone)]
pub(super) struct DocumentFaults {
    faults: watch::Sender<RelayFaults>,
}

impl DocumentFaults {
    pub(super) fn set(&self, way: Way, delay: Duration, is_silent: bool) {
        self.faults.send_modify(|faults| {
            let set = match way {
                Way::Down => &mut faults.down,
                Way::Up => &mut faults.up,
            };
            *set = RelayWay { delay, is_silent };
        });
    }

    /// Both ends see the end at once, and what is under way is lost.
    pub(super) fn cut(&self) {
        self.faults.send_modify(|faults| faults.is_cut = true);
    }
}

/// Both ends of a new connection, the cloud's first.
pub(super) async fn pair(
    node: &NodeId,
    number: u64,
    (ends, tell): (ConnectionEnds, NetworkObserver),
) -> (DocumentLink, DocumentLink, DocumentFaults) {
    let (cloud, cloud_end) = duplex(SOCKET_BYTES);
    let (edge, edge_end) = duplex(SOCKET_BYTES);
    let (faults, followed) = watch::channel(RelayFaults::default());
    let (from_cloud, to_cloud) = split(cloud_end);
    let (from_edge, to_edge) = split(edge_end);
    let end = |ends: ConnectionEnds, tell: NetworkObserver| move |crossing| ends.end(&crossing, &tell);
    let (down, up) = (end(ends.clone(), Arc::clone(&tell)), end(ends, Arc::clone(&tell)));
    tokio::spawn(relay((from_cloud, to_edge), Way::Down, followed.clone(), down));
    tokio::spawn(relay((from_edge, to_cloud), Way::Up, followed, up));
    let mut cloud = mem::documents(cloud, Some(node.clone())).await;
    let mut edge = mem::documents(edge, None).await;
    cloud.set_tap(Arc::new(SentDocuments { number, up: false, tell: Arc::clone(&tell) }));
    edge.set_tap(Arc::new(SentDocuments { number, up: true, tell }));
    (cloud, edge, DocumentFaults { faults })
}

/// Carries bytes one way until the sender ends or the connection is cut.
async fn relay(
    (from, to): (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>),
    way: Way,
    faults: watch::Receiver<RelayFaults>,
    ends: impl Fn(Crossing) + Clone + Send,
) {
    let (queue, under_way) = mpsc::channel(PIECES_MAX);
    let mut cutting = faults.clone();
    let taking = take(from, (way, faults.clone()), queue, ends.clone());
    tokio::select! {
        biased;
        // The sender of faults lives as long as the connection is known.
        Ok(_) = cutting.wait_for(|faults| faults.is_cut) => ends(Crossing::Cut),
        _ = futures::future::join(taking, give(to, (way, faults), under_way)) => {}
    }
}

/// Takes what is sent. The last piece is empty.
async fn take(
    mut from: ReadHalf<DuplexStream>,
    (way, faults): (Way, watch::Receiver<RelayFaults>),
    queue: mpsc::Sender<(Instant, Bytes)>,
    ends: impl Fn(Crossing),
) {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        let due = Instant::now() + faults.borrow().way(way).delay;
        if length == 0 {
            ends(Crossing::Finished(way));
        }
        let given = queue.send((due, Bytes::copy_from_slice(&buffer[..length]))).await;
        if length == 0 || given.is_err() {
            return;
        }
    }
}

/// Gives the receiver what is due.
async fn give(
    mut to: WriteHalf<DuplexStream>,
    (way, mut faults): (Way, watch::Receiver<RelayFaults>),
    mut under_way: mpsc::Receiver<(Instant, Bytes)>,
) {
    while let Some((due, bytes)) = under_way.recv().await {
        sleep_until(due).await;
        if faults.wait_for(|faults| !faults.way(way).is_silent).await.is_err() {
            return;
        }
        let given = if bytes.is_empty() { to.shutdown().await } else { to.write_all(&bytes).await };
        if given.is_err() {
            return;
        }
    }
}

/// Observes the documents that one end sends.
struct SentDocuments {
    number: u64,
    up: bool,
    tell: NetworkObserver,
}

impl DocumentTap for SentDocuments {
    fn document(&self, direction: Direction, document: &Bytes) {
        if direction == Direction::Out {
            let (connection, up, lane, bytes) = (self.number, self.up, 0, document.len());
            (self.tell)(Seen::Sent { connection, up, lane, bytes, frame: wire::document(document) });
        }
    }
}
