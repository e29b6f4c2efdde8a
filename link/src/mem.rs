//! Links in memory, with optional delay, back pressure, silence and loss of connection.
//!
//! The same packages are transferred as on a wire. Time is tokio's: under paused time a run is deterministic.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::DuplexStream;
use tokio::time::{Instant, Sleep};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::either::Either;
use tombolo_proto::limits::FRAGMENT_LEN;
use tombolo_proto::package::Package;
use tombolo_proto::{Lane, NodeId};

use crate::conn::{Link, PeerInfo, Transport, Wire};
use crate::document::DocumentLink;
use crate::error::LinkError;
use crate::meter::Metered;
use crate::queue::SendQueue;

/// Bytes that each lane holds in each direction before the writer has to wait.
pub const DEFAULT_CAPACITY: usize = 256 * 1024;

/// Direction of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// Cloud to edge.
    Down,
    /// Edge to cloud.
    Up,
}

impl Way {
    fn index(self) -> usize {
        match self {
            Self::Down => 0,
            Self::Up => 1,
        }
    }

    fn back(self) -> Self {
        match self {
            Self::Down => Self::Up,
            Self::Up => Self::Down,
        }
    }
}

/// What an observer of a pair sees ([`Faults::observe`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crossing {
    /// A sender handed a package to the pair, with its header. It may be lost later.
    Package(Way, Bytes),
    /// The sender of this direction has closed its link or dropped it.
    Finished(Way),
    /// The connection is broken.
    Cut,
}

/// Two connected links, the cloud's and the edge's, and a control to disturb them. The cloud's side knows its peer as
/// `node`, as from a certificate.
#[must_use]
pub fn pair(node: NodeId) -> (Link, Link, Faults) {
    let shared = Arc::new(Mutex::new(MemoryLinkState::default()));
    let link = |out, node| {
        let wire = MemoryWire { shared: Arc::clone(&shared), out, alarm: None };
        Link::new(Box::new(wire), peer(node))
    };
    (link(Way::Down, Some(node)), link(Way::Up, None), Faults { shared: Arc::clone(&shared) })
}

/// A link of dialect `kubeedge` over one end of a stream in memory, which has no upgrade. The cloud's side names the
/// `node`, as from a certificate; the edge's side names none.
pub async fn documents(stream: DuplexStream, node: Option<NodeId>) -> DocumentLink {
    let role = if node.is_some() { Role::Server } else { Role::Client };
    DocumentLink::upgraded(Metered::new(Either::Right(stream)), role, peer(node)).await
}

fn peer(node: Option<NodeId>) -> PeerInfo {
    let remote = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    PeerInfo { remote, transport: Transport::Memory, node, certificate: None }
}

/// Disturbs a pair. Clones disturb the same pair.
#[derive(Debug, Clone)]
pub struct Faults {
    shared: Arc<Mutex<MemoryLinkState>>,
}

impl Faults {
    /// Packages written from now on arrive this much later, in order within their lane.
    pub fn set_delay(&self, way: Way, lane: Lane, delay: Duration) {
        self.change(way, lane, |queue| queue.delay = delay);
    }

    /// Sets how many bytes the lane holds before its writer has to wait.
    pub fn set_capacity(&self, way: Way, lane: Lane, bytes: usize) {
        self.change(way, lane, |queue| queue.capacity = bytes);
    }

    /// A held lane delivers nothing until it is released, as with a peer that does not read.
    pub fn hold(&self, way: Way, lane: Lane, held: bool) {
        self.change(way, lane, |queue| queue.held = held);
    }

    /// A silent direction delivers nothing until it is taken back, not even the end of the connection, as when no packet
    /// gets through. What is written meanwhile waits.
    pub fn silence(&self, way: Way, silent: bool) {
        let mut state = lock(&self.shared);
        state.ways[way.index()].silent = silent;
        state.ways[way.index()].wake();
    }

    /// Calls a function with everything that crosses from now on. The function must not use the pair.
    pub fn observe(&self, observer: impl FnMut(Crossing) + Send + 'static) {
        lock(&self.shared).observer = Observer(Some(Box::new(observer)));
    }

    /// Breaks the connection: both ends see it at once, and everything under way is lost.
    pub fn cut(&self) {
        lock(&self.shared).cut();
    }

    /// Breaks the connection when this many more packages have arrived in that direction; zero breaks it now.
    pub fn cut_after(&self, way: Way, packages: usize) {
        let mut state = lock(&self.shared);
        state.ways[way.index()].packages_left = Some(packages);
        if packages == 0 {
            state.cut();
        }
    }

    fn change(&self, way: Way, lane: Lane, change: impl FnOnce(&mut LaneQueue)) {
        let mut state = lock(&self.shared);
        change(&mut state.ways[way.index()].lanes[lane.index()]);
        state.ways[way.index()].wake();
    }
}

fn lock(shared: &Mutex<MemoryLinkState>) -> MutexGuard<'_, MemoryLinkState> {
    // Each change is complete before the guard is dropped; a panic elsewhere leaves usable state.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Observer(Option<Box<dyn FnMut(Crossing) + Send>>);

impl Observer {
    fn report(&mut self, crossing: Crossing) {
        if let Some(observer) = &mut self.0 {
            observer(crossing);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[derive(Debug, Default)]
struct MemoryLinkState {
    ways: [WayState; 2],
    cut: bool,
    observer: Observer,
}

impl MemoryLinkState {
    fn cut(&mut self) {
        if !self.cut {
            self.cut = true;
            self.observer.report(Crossing::Cut);
        }
        for way in &mut self.ways {
            way.wake();
        }
    }

    /// One end writes nothing more.
    fn finish(&mut self, way: Way) {
        let state = &mut self.ways[way.index()];
        state.wake();
        if !state.finished {
            state.finished = true;
            self.observer.report(Crossing::Finished(way));
        }
    }
}

#[derive(Debug, Default)]
struct WayState {
    lanes: [LaneQueue; 3],
    /// The writing side closed or dropped its link.
    finished: bool,
    silent: bool,
    packages_left: Option<usize>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl WayState {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    /// The package that may arrive now, or when the next one is due.
    fn arrival(&mut self, now: Instant) -> Result<Package, Option<Instant>> {
        let mut next = None;
        if self.silent {
            return Err(next);
        }
        for queue in self.lanes.iter_mut().filter(|queue| !queue.held) {
            match queue.packages.front() {
                Some((due, _)) if *due > now => next = Some(next.map_or(*due, |at: Instant| at.min(*due))),
                Some(_) => {
                    if let Some((_, package)) = queue.packages.pop_front() {
                        queue.bytes = queue.bytes.saturating_sub(package.payload.len());
                        return Ok(package);
                    }
                }
                None => {}
            }
        }
        Err(next)
    }

    /// Whether the reader has everything and may know that nothing more comes.
    fn has_ended(&self) -> bool {
        self.finished && !self.silent && self.lanes.iter().all(|queue| queue.packages.is_empty())
    }
}

#[derive(Debug)]
struct LaneQueue {
    packages: VecDeque<(Instant, Package)>,
    bytes: usize,
    capacity: usize,
    delay: Duration,
    held: bool,
}

impl Default for LaneQueue {
    fn default() -> Self {
        Self {
            packages: VecDeque::new(),
            bytes: 0,
            capacity: DEFAULT_CAPACITY,
            delay: Duration::ZERO,
            held: false,
        }
    }
}

impl LaneQueue {
    fn push(&mut self, package: Package, now: Instant) {
        let due = now + self.delay;
        let due = self.packages.back().map_or(due, |(before, _)| due.max(*before));
        self.bytes = self.bytes.saturating_add(package.payload.len());
        self.packages.push_back((due, package));
    }
}

struct MemoryWire {
    shared: Arc<Mutex<MemoryLinkState>>,
    out: Way,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl MemoryWire {
    /// Wakes the reader when the next package is due.
    fn set_alarm(&mut self, cx: &mut Context<'_>, due: Option<Instant>) {
        self.alarm = due.map(|due| Box::pin(tokio::time::sleep_until(due)));
        if let Some(alarm) = &mut self.alarm
            && alarm.as_mut().poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
    }
}

impl Wire for MemoryWire {
    fn poll_send(&mut self, cx: &mut Context<'_>, queue: &mut SendQueue) -> Poll<Result<(), LinkError>> {
        let mut state = lock(&self.shared);
        if state.cut {
            return Poll::Ready(Err(LinkError::Cut));
        }
        let now = Instant::now();
        let MemoryLinkState { ways, observer, .. } = &mut *state;
        let way = &mut ways[self.out.index()];
        let mut moved = false;
        for lane in Lane::ALL {
            let lane_queue = &mut way.lanes[lane.index()];
            while lane_queue.bytes < lane_queue.capacity {
                let Some(package) = queue.pop_lane(lane, FRAGMENT_LEN) else { break };
                let package = package?;
                lane_queue.push(Package::parse(&package)?, now);
                observer.report(Crossing::Package(self.out, package));
                moved = true;
            }
        }
        if moved && let Some(reader) = way.reader.take() {
            reader.wake();
        }
        if queue.is_empty() {
            return Poll::Ready(Ok(()));
        }
        way.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Package, LinkError>> {
        let shared = Arc::clone(&self.shared);
        let mut state = lock(&shared);
        if state.cut {
            return Poll::Ready(Err(LinkError::Cut));
        }
        let way = &mut state.ways[self.out.back().index()];
        match way.arrival(Instant::now()) {
            Ok(package) => {
                if let Some(writer) = way.writer.take() {
                    writer.wake();
                }
                if let Some(left) = &mut way.packages_left {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        state.cut();
                    }
                }
                Poll::Ready(Ok(package))
            }
            Err(None) if way.has_ended() => Poll::Ready(Err(LinkError::ClosedByPeer)),
            Err(due) => {
                way.reader = Some(cx.waker().clone());
                self.set_alarm(cx, due);
                Poll::Pending
            }
        }
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        lock(&self.shared).finish(self.out);
        Poll::Ready(())
    }
}

impl Drop for MemoryWire {
    fn drop(&mut self) {
        lock(&self.shared).finish(self.out);
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::message::{
        Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source,
    };
    use tombolo_proto::session::kubeedge::Outgoing;

    use super::*;
    use crate::document::DocumentEvent;

    #[tokio::test(start_paused = true)]
    async fn documents_pass_through_memory_in_both_directions() {
        let (cloud, edge) = tokio::io::duplex(64);
        let mut cloud = documents(cloud, NodeId::parse("edge-1").ok()).await;
        let mut edge = documents(edge, None).await;
        assert_eq!(cloud.peer().node.as_ref().map(NodeId::as_str), Some("edge-1"));
        let id = MessageId::parse("m").unwrap();
        let (source, path) = (Source::EdgeController, ResourcePath::CaCertificate);
        let route = Route::new(source, Group::Resource, Operation::Query, path);
        let document = Outgoing::message(1, &Message::new(id, 1, route, Content::text(&"x".repeat(9000))));
        let sent = document.to_bytes();
        cloud.send(document.clone()).unwrap();
        edge.send(document).unwrap();
        let (mut down, mut up) = (None, None);
        while down.is_none() || up.is_none() {
            tokio::select! {
                event = cloud.next() => if let DocumentEvent::Document(document) = event { up = Some(document) },
                event = edge.next() => if let DocumentEvent::Document(document) = event { down = Some(document) },
            }
        }
        assert_eq!((down, up), (Some(sent.clone()), Some(sent)));
        drop(cloud);
        assert!(matches!(edge.next().await, DocumentEvent::Closed(_)));
    }
}
