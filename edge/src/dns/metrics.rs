//! Metrics of the DNS server.

use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Outcome {
    /// Answered from the zone, also that there is no such name.
    Answered,
    /// Not answerable yet: what decides was never heard of here.
    Unknown,
    /// Answered by another server.
    Forwarded,
    /// Answered as another server has answered before.
    Cached,
    /// The same, though it is too old, because nobody has answered now.
    Stale,
    /// No other server has answered.
    Unanswered,
    /// Refused: what is asked for is not answered here.
    Refused,
    /// Refused: it cannot be read, or is no question.
    Malformed,
    /// Refused: there is no other server to ask.
    Nobody,
    /// Refused: too many questions wait for other servers, or too many of this client.
    Busy,
    /// Not worth an answer.
    Dropped,
    /// From an address that is not answered.
    Foreign,
    /// A question of this server that another one has sent back.
    Looped,
    /// A connection that was closed because its client has its share of them.
    Crowded,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    outcome: Outcome,
}

/// What is counted. The counters are found once: looking one up takes a lock.
#[derive(Debug)]
pub(crate) struct DnsMetrics {
    questions: [Counter; 14],
}

const ALL: [Outcome; 14] = [
    Outcome::Answered,
    Outcome::Unknown,
    Outcome::Forwarded,
    Outcome::Cached,
    Outcome::Stale,
    Outcome::Unanswered,
    Outcome::Refused,
    Outcome::Malformed,
    Outcome::Nobody,
    Outcome::Busy,
    Outcome::Dropped,
    Outcome::Foreign,
    Outcome::Looped,
    Outcome::Crowded,
];

impl DnsMetrics {
    /// Metrics, all registered.
    pub(crate) fn register(registry: &mut Registry) -> Arc<Self> {
        let questions = Family::<Labels, Counter>::default();
        let edge = registry.sub_registry_with_prefix("tombolo_edge");
        edge.register("dns_questions", "Packets to the DNS server by what became of them", questions.clone());
        let counter = |outcome| questions.get_or_create(&Labels { outcome }).clone();
        Arc::new(Self { questions: ALL.map(counter) })
    }

    #[cfg(test)]
    pub(super) fn told(&self, outcome: Outcome) -> u64 {
        self.questions[outcome as usize].get()
    }

    pub(super) fn count(&self, outcome: Outcome) {
        self.questions[outcome as usize].inc();
    }
}
