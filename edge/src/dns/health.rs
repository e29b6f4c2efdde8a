//! Which servers do not answer.
//!
//! That a question has found no answer says nothing of the server: who asked it may own the name, and the server that has to
//! answer. A server counts as silent when it has left a question of this program unanswered and has answered nobody else meanwhile.

use std::collections::HashSet;
use std::net::SocketAddr;

use parking_lot::Mutex;
use tracing::info;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Heard>);

/// Bounded by the servers, see [`Health::retain`].
#[derive(Debug, Default)]
struct Heard {
    /// Those that have answered somebody since they were last asked by this program.
    answering: HashSet<SocketAddr>,
    silent: HashSet<SocketAddr>,
}

impl Health {
    /// A server has answered a question, whoever asked.
    pub(super) fn note_answer(&self, server: SocketAddr) {
        let mut heard = self.0.lock();
        heard.answering.insert(server);
        if heard.silent.remove(&server) {
            info!(%server, "this DNS server answers again");
        }
    }

    /// This program is about to ask a server.
    pub(super) fn begin(&self, server: SocketAddr) {
        self.0.lock().answering.remove(&server);
    }

    /// This program has waited in vain for a server.
    pub(super) fn note_silence(&self, server: SocketAddr) {
        let mut heard = self.0.lock();
        if !heard.answering.contains(&server) && heard.silent.insert(server) {
            info!(%server, "this DNS server does not answer, and is asked after the others");
        }
    }

    /// Whether any server is silent.
    pub(super) fn has_silent(&self) -> bool {
        !self.0.lock().silent.is_empty()
    }

    /// Puts silent servers behind the others, which stay in their order.
    pub(super) fn order(&self, servers: &mut [SocketAddr]) {
        let heard = self.0.lock();
        servers.sort_by_key(|server| heard.silent.contains(server));
    }

    /// Forgets servers that are not asked any more.
    pub(super) fn retain(&self, servers: &[SocketAddr]) {
        let mut heard = self.0.lock();
        heard.answering.retain(|server| servers.contains(server));
        heard.silent.retain(|server| servers.contains(server));
    }
}
