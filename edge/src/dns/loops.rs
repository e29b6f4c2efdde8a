//! Detects forwarding loops: upstream servers that forward their queries to this server. A query in a loop would go
//! round until no server has a free slot.
//!
//! Addresses do not reveal a loop: a local resolver that forwards to this server has another address, and there may be
//! more servers in between. So this process sends a probe that only it knows. When the probe comes back, the server
//! that it was sent to leads back here.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::health::Health;
use super::message::{DnsTransport, Question};
use super::upstreams::Upstreams;
use super::wire::Exchange;

/// How often servers in use are probed.
pub(super) const PROBE_EVERY: Duration = Duration::from_secs(60);

/// Shortest time between probes after a suspected loop or an unanswered query, and how often the list of servers is
/// checked for changes.
pub(super) const PROBE_PAUSE: Duration = Duration::from_secs(5);

/// The last label of a probe. No name exists below it.
const MARK: &str = "tombolo-loop-probe";

/// The servers that lead back here, and the probes that find them.
#[derive(Debug, Default)]
pub(super) struct Loops {
    /// Random labels of the probes in flight, the server of each, and whether it has come back. Bounded by the number
    /// of servers.
    probes: Mutex<HashMap<String, (SocketAddr, bool)>>,
    found: RwLock<HashSet<SocketAddr>>,
    suspected: Notify,
    /// Whether queries were forwarded since the last probe.
    used: AtomicBool,
}

impl Loops {
    /// Whether a server leads back here.
    pub(super) fn has(&self, server: SocketAddr) -> bool {
        self.found.read().contains(&server)
    }

    /// Records that a query is forwarded.
    pub(super) fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Requests a probe, because too many queries are in flight or one was not answered.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Whether a query is a probe of this server.
    pub(super) fn is_own(&self, question: &Question) -> bool {
        let mut labels = question.query.name().iter();
        let (Some(random), Some(mark), None) = (labels.next(), labels.next(), labels.next()) else {
            return false;
        };
        if !mark.eq_ignore_ascii_case(MARK.as_bytes()) {
            return false;
        }
        let random = String::from_utf8_lossy(random).to_ascii_lowercase();
        let server = match self.probes.lock().get_mut(&random) {
            Some((server, came_back)) => {
                *came_back = true;
                *server
            }
            None => return false,
        };
        if self.found.write().insert(server) {
            warn!(
                %server,
                "this DNS server forwards queries back to this node and is no longer used: set another server in \
                 dns.upstreams, or remove this node's DNS server from the settings of that server"
            );
        }
        true
    }

    /// Probes servers for ever: new ones at once, the others from time to time while they are in use, and silent ones
    /// more often.
    pub(super) async fn watch(
        &self,
        upstreams: &Upstreams,
        wire: &dyn Exchange,
        health: &Health,
        patience: Duration,
    ) {
        let (mut known, mut tried_at, mut suspected) = (Vec::new(), None::<Instant>, false);
        loop {
            let now = upstreams.now();
            let old = tried_at.is_none_or(|at| at.elapsed() >= PROBE_EVERY);
            let used = self.used.load(Ordering::Relaxed);
            let worth_it = used || !self.found.read().is_empty();
            if now != known || suspected || (old && worth_it) || (used && health.has_silent()) {
                self.used.store(false, Ordering::Relaxed);
                self.found.write().retain(|server| now.contains(server));
                health.retain(&now);
                join_all(now.iter().map(|server| self.probe(*server, wire, health, patience))).await;
                (known, tried_at) = (now, Some(Instant::now()));
            }
            suspected = self.pause(tried_at).await;
        }
    }

    /// Waits until the next check is due, and returns whether a probe was requested. Requests cannot make it check more
    /// often than every [`PROBE_PAUSE`].
    async fn pause(&self, tried_at: Option<Instant>) -> bool {
        tokio::select! {
            () = sleep(PROBE_PAUSE) => false,
            () = self.suspected.notified() => {
                sleep(PROBE_PAUSE.saturating_sub(tried_at.map_or(PROBE_PAUSE, |at| at.elapsed()))).await;
                true
            }
        }
    }

    async fn probe(&self, server: SocketAddr, wire: &dyn Exchange, health: &Health, patience: Duration) {
        let random = format!("{:016x}", rand::random::<u64>());
        let Some((packet, question)) = question(&random) else { return };
        let _under_way = UnderWay { loops: self, random: random.clone() };
        self.probes.lock().insert(random.clone(), (server, false));
        health.begin(server);
        // The content of the answer does not matter.
        match timeout(patience, wire.exchange(server, &packet, &question, DnsTransport::Udp)).await {
            Ok(Ok(_)) => health.note_answer(server),
            Ok(Err(_)) | Err(_) => health.note_silence(server),
        }
        let came_back = self.probes.lock().get(&random).is_some_and(|(_, came_back)| *came_back);
        if !came_back && self.found.write().remove(&server) {
            info!(%server, "this DNS server no longer forwards queries to this node and is used again");
        }
    }
}

/// Forgets a probe, also when its task is cancelled.
struct UnderWay<'a> {
    loops: &'a Loops,
    random: String,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.loops.probes.lock().remove(&self.random);
    }
}

fn question(random: &str) -> Option<(Vec<u8>, Question)> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let query = Query::query(Name::from_ascii(format!("{random}.{MARK}.")).ok()?, RecordType::HINFO);
    message.add_query(query.clone());
    let packet = message.to_vec().ok()?;
    Some((packet, Question { header: message.metadata, query, edns: None }))
}
