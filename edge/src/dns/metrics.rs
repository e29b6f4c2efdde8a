//! Metrics of the DNS server.

use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum QueryOutcome {
    /// Answered from the zone, negative answers included.
    Answered,
    /// Not answerable yet: this node does not know the deciding objects.
    Unknown,
    /// Answered by an upstream server.
    Forwarded,
    /// Answered from the cache.
    Cached,
    /// Answered from the cache with a stale answer, because no server has answered usefully.
    Stale,
    /// No upstream server has answered.
    Unanswered,
    /// Refused: this server does not support the query.
    Refused,
    /// Refused: not a valid query.
    Malformed,
    /// Refused: there is no upstream server.
    Nobody,
    /// Refused: too many queries wait for upstream servers, in total or of this client.
    Busy,
    /// Not answered, because it is no query.
    Dropped,
    /// Not answered, because its source address is not allowed.
    Foreign,
    /// A probe of this server that another server has sent back.
    Looped,
    /// A connection that was closed because its client has too many.
    Crowded,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueryLabels {
    outcome: QueryOutcome,
}

/// The metrics. The counters are looked up once, because a lookup takes a lock.
#[derive(Debug)]
pub(crate) struct DnsMetrics {
    questions: [Counter; 14],
}

const ALL: [QueryOutcome; 14] = [
    QueryOutcome::Answered,
    QueryOutcome::Unknown,
    QueryOutcome::Forwarded,
    QueryOutcome::Cached,
    QueryOutcome::Stale,
    QueryOutcome::Unanswered,
    QueryOutcome::Refused,
    QueryOutcome::Malformed,
    QueryOutcome::Nobody,
    QueryOutcome::Busy,
    QueryOutcome::Dropped,
    QueryOutcome::Foreign,
    QueryOutcome::Looped,
    QueryOutcome::Crowded,
];

impl DnsMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> Arc<Self> {
        let questions = Family::<QueryLabels, Counter>::default();
        let edge = registry.sub_registry_with_prefix("tombolo_edge");
        edge.register("dns_questions", "Packets to the DNS server by outcome", questions.clone());
        let counter = |outcome| questions.get_or_create(&QueryLabels { outcome }).clone();
        Arc::new(Self { questions: ALL.map(counter) })
    }

    #[cfg(test)]
    pub(super) fn counted(&self, outcome: QueryOutcome) -> u64 {
        self.questions[outcome as usize].get()
    }

    pub(super) fn count(&self, outcome: QueryOutcome) {
        self.questions[outcome as usize].inc();
    }
}
