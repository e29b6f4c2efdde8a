//! Tracks which upstream servers do not answer.
//!
//! An unanswered client query proves nothing about the upstream server: the client may own the name and the server that
//! must answer for it. A server counts as silent when it has not answered a probe of this program and has answered no
//! client query meanwhile.

use std::collections::HashSet;
use std::net::SocketAddr;

use parking_lot::Mutex;
use tracing::info;

/// The health of the upstream servers.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Heard>);

/// Bounded by the number of servers, see [`Health::retain`].
#[derive(Debug, Default)]
struct Heard {
    /// Servers that have answered any query since their last probe.
    answering: HashSet<SocketAddr>,
    silent: HashSet<SocketAddr>,
}

impl Health {
    /// Records that a server has answered a probe or a client query.
    pub(super) fn note_answer(&self, server: SocketAddr) {
        let mut heard = self.0.lock();
        heard.answering.insert(server);
        if heard.silent.remove(&server) {
            info!(%server, "this DNS server answers again");
        }
    }

    /// Records that a probe is about to be sent to a server.
    pub(super) fn begin(&self, server: SocketAddr) {
        self.0.lock().answering.remove(&server);
    }

    /// Records that a server has not answered a probe.
    pub(super) fn note_silence(&self, server: SocketAddr) {
        let mut heard = self.0.lock();
        if !heard.answering.contains(&server) && heard.silent.insert(server) {
            info!(%server, "this DNS server does not answer; other servers are tried first");
        }
    }

    /// Whether any server is silent.
    pub(super) fn has_silent(&self) -> bool {
        !self.0.lock().silent.is_empty()
    }

    /// Moves silent servers behind the others and keeps the order otherwise.
    pub(super) fn order(&self, servers: &mut [SocketAddr]) {
        let heard = self.0.lock();
        servers.sort_by_key(|server| heard.silent.contains(server));
    }

    /// Forgets servers that are no longer in use.
    pub(super) fn retain(&self, servers: &[SocketAddr]) {
        let mut heard = self.0.lock();
        heard.answering.retain(|server| servers.contains(server));
        heard.silent.retain(|server| servers.contains(server));
    }
}
