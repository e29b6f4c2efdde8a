//! Metrics of cloudcore. Labels come from closed sets only; node names are never labels.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tombolo_runtime::Share;

/// One label of a closed set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Label {
    /// The value.
    pub kind: &'static str,
}

/// The kind of memory that was refused to a node, and the bound that was reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    kind: &'static str,
    bound: &'static str,
}

/// Counters of memory refused to nodes. Clones share the same counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusals(Family<RefusalLabels, Counter>);

impl Refusals {
    /// Counts a refusal of `bytes` because the node's share, or the budget of all nodes, is used up.
    pub(crate) fn count(&self, kind: &'static str, share: &Share, bytes: usize) {
        let bound = if share.room() < bytes { "node" } else { "all" };
        self.0.get_or_create(&RefusalLabels { kind, bound }).inc();
    }

    /// Counts an item that exceeds the maximum length.
    pub(crate) fn too_long(&self, kind: &'static str) {
        self.0.get_or_create(&RefusalLabels { kind, bound: "length" }).inc();
    }

    #[cfg(test)]
    pub(crate) fn get(&self, kind: &'static str, bound: &'static str) -> u64 {
        self.0.get_or_create(&RefusalLabels { kind, bound }).get()
    }
}

/// All metrics of one cloudcore, one field for each metric. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Nodes connected.
    pub sessions: Gauge,
    /// Sessions ended, by reason.
    pub sessions_ended: Family<Label, Counter>,
    /// Connections refused because the node limit was reached.
    pub refused_connections: Counter,
    /// Sessions that proved that two processes use one node's identity.
    pub identities_contested: Counter,
    /// Connections refused because their certificate is not valid.
    pub refused_certificates: Counter,
    /// Bytes of the fullest Secret with records of certificates.
    pub certificate_record_bytes: Gauge,
    /// Names with certificate records.
    pub certificate_records: Gauge,
    /// Stored join tokens, including expired ones.
    pub join_tokens: Gauge,
    /// Deliveries acknowledged.
    pub acknowledged: Counter,
    /// Deliveries refused by an edge.
    pub refused: Counter,
    /// Seconds from sending to acknowledgement.
    pub delivery_seconds: Histogram,
    /// Requests of nodes in the form of messages.
    pub message_requests: Counter,
    /// Requests of nodes in the form of API calls.
    pub api_requests: Counter,
    /// Lease renewals stored.
    pub leases: Counter,
    /// Failures of watches, by kind.
    pub watch_failures: Family<Label, Counter>,
    /// Changes of the epoch.
    pub epochs: Counter,
    /// Attestations of edges with new content, or that are invalid, by kind.
    pub attestations: Family<Label, Counter>,
    /// Edge nodes known.
    pub nodes: Gauge,
    /// Objects in memory for edges.
    pub objects: Gauge,
    /// ConfigMaps and Secrets that pods refer to but that cannot be read.
    pub unreadable: Gauge,
    /// Objects whose bodies are not kept because there is no room for them.
    pub withheld: Gauge,
    /// Pods whose references are not delivered because the pods of their node refer to too much.
    pub unserved_pods: Gauge,
    /// Pods on edge nodes.
    pub pods: Gauge,
    /// Bytes of the bodies of these pods in memory.
    pub pod_bytes: Gauge,
    /// Bytes that the index keeps for nodes.
    pub index_bytes: Gauge,
    /// How often a watch reported a mirror pod of a node that has too many.
    pub unheeded_pods: Counter,
    /// Watches shared by subscriptions.
    pub shared_watches: Gauge,
    /// Bytes of the objects that these watches follow.
    pub shared_watch_bytes: Gauge,
    /// Shared watches that ended or were refused for lack of memory, by reason.
    pub shared_watches_ended: Family<Label, Counter>,
    /// Objects withheld from all subscriptions because their namespace has the most bytes, by the exhausted budget.
    pub shared_watch_withheld: Family<Label, Counter>,
    /// Bytes that the hub holds for nodes, beyond each node's own allowance.
    pub session_bytes: Gauge,
    /// The most bytes that the hub holds for one node, in total and in requests.
    pub node_bytes_highest: Family<Label, Gauge>,
    /// Memory that was refused to nodes.
    pub(crate) budget_refusals: Refusals,
    /// Subscriptions that were refused or closed, by reason.
    pub subscriptions_refused: Family<Label, Counter>,
    /// Unauthenticated connections.
    pub strangers: Gauge,
    /// Connections that ended unauthenticated, by reason.
    pub strangers_refused: Family<Label, Counter>,
    /// Reports of device twins, by outcome.
    pub device_reports: Family<Label, Counter>,
    /// Deliveries acknowledged, for the status handle.
    pub(crate) deliveries: Arc<AtomicU64>,
}

impl Metrics {
    /// Creates the metrics and registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let requests = Family::<Label, Counter>::default();
        // Looked up once: counting a request must not cost more than parsing it.
        let of_form = |kind| requests.get_or_create(&Label { kind }).clone();
        let metrics = Self {
            sessions: Gauge::default(),
            sessions_ended: Family::default(),
            refused_connections: Counter::default(),
            identities_contested: Counter::default(),
            refused_certificates: Counter::default(),
            certificate_record_bytes: Gauge::default(),
            certificate_records: Gauge::default(),
            join_tokens: Gauge::default(),
            acknowledged: Counter::default(),
            refused: Counter::default(),
            delivery_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 16)),
            message_requests: of_form("message"),
            api_requests: of_form("api"),
            leases: Counter::default(),
            watch_failures: Family::default(),
            epochs: Counter::default(),
            attestations: Family::default(),
            nodes: Gauge::default(),
            objects: Gauge::default(),
            unreadable: Gauge::default(),
            withheld: Gauge::default(),
            unserved_pods: Gauge::default(),
            pods: Gauge::default(),
            pod_bytes: Gauge::default(),
            index_bytes: Gauge::default(),
            unheeded_pods: Counter::default(),
            shared_watches: Gauge::default(),
            shared_watch_bytes: Gauge::default(),
            shared_watches_ended: Family::default(),
            shared_watch_withheld: Family::default(),
            session_bytes: Gauge::default(),
            node_bytes_highest: Family::default(),
            budget_refusals: Refusals::default(),
            subscriptions_refused: Family::default(),
            strangers: Gauge::default(),
            strangers_refused: Family::default(),
            device_reports: Family::default(),
            deliveries: Arc::default(),
        };
        let registry = registry.sub_registry_with_prefix("tombolo_cloud");
        registry.register("sessions", "Nodes connected", metrics.sessions.clone());
        registry.register("sessions_ended", "Sessions ended, by reason", metrics.sessions_ended.clone());
        let text = "Connections refused because the node limit was reached";
        registry.register("refused_connections", text, metrics.refused_connections.clone());
        let text = "Sessions that proved that two processes use one node's identity";
        registry.register("identities_contested", text, metrics.identities_contested.clone());
        let text = "Connections refused because their certificate is not in force";
        registry.register("refused_certificates", text, metrics.refused_certificates.clone());
        registry.register("acknowledged", "Deliveries acknowledged", metrics.acknowledged.clone());
        registry.register("refused", "Deliveries refused by an edge", metrics.refused.clone());
        let text = "Time from sending an object to its acknowledgement";
        registry.register("delivery_seconds", text, metrics.delivery_seconds.clone());
        registry.register("requests", "Requests of nodes, by form", requests);
        registry.register("leases", "Lease renewals stored", metrics.leases.clone());
        registry.register("watch_failures", "Watch failures, by kind", metrics.watch_failures.clone());
        registry.register("epochs", "Changes of the epoch", metrics.epochs.clone());
        registry.register("nodes", "Edge nodes known", metrics.nodes.clone());
        let text = "Reports of device twins that were refused or discarded: devices are not managed here";
        registry.register("device_reports", text, metrics.device_reports.clone());
        metrics.register_pods(registry);
        metrics.register_budgets(registry);
        metrics.register_identities(registry);
        metrics
    }

    fn register_identities(&self, registry: &mut Registry) {
        let text = "Attestations of edges that contained something new or invalid, by kind";
        registry.register("attestations", text, self.attestations.clone());
        let text = "Bytes of the fullest Secret with records of certificates, at most 921600";
        registry.register("certificate_record_bytes", text, self.certificate_record_bytes.clone());
        let text = "Names with records of certificates";
        registry.register("certificate_records", text, self.certificate_records.clone());
        let text = "Join tokens that are stored, including those that can no longer be used";
        registry.register("join_tokens", text, self.join_tokens.clone());
    }

    fn register_pods(&self, registry: &mut Registry) {
        let text = "ConfigMaps and Secrets that pods on edge nodes refer to and that cannot be read";
        registry.register("unreadable", text, self.unreadable.clone());
        let text = "Objects that are not delivered because there is no room left for them in the index";
        registry.register("withheld", text, self.withheld.clone());
        let text =
            "Pods whose references are withheld because the pods of their node refer to too many objects";
        registry.register("unserved_pods", text, self.unserved_pods.clone());
        registry.register("objects", "Objects in memory for edges", self.objects.clone());
        registry.register("pods", "Pods on edge nodes", self.pods.clone());
        registry.register("pod_bytes", "Bytes of the bodies of pods in memory", self.pod_bytes.clone());
        let text = "Bytes kept of pods, of the objects that they refer to, and of Nodes";
        registry.register("index_bytes", text, self.index_bytes.clone());
        let text = "How often a watch reported a mirror pod of a node that has too many";
        registry.register("unheeded_pods", text, self.unheeded_pods.clone());
    }

    fn register_budgets(&self, registry: &mut Registry) {
        let text = "Bytes of the objects that subscriptions follow";
        registry.register("shared_watch_bytes", text, self.shared_watch_bytes.clone());
        let text = "Shared watches that ended or were refused for lack of memory, by reason";
        registry.register("shared_watches_ended", text, self.shared_watches_ended.clone());
        let text =
            "Objects withheld from all subscriptions because their namespace has the most bytes, by budget";
        registry.register("shared_watch_withheld", text, self.shared_watch_withheld.clone());
        let text = "Bytes that the hub holds for nodes, beyond each node's own allowance";
        registry.register("session_bytes", text, self.session_bytes.clone());
        let text = "The most bytes that the hub holds for one node, in total and in requests";
        registry.register("node_bytes_highest", text, self.node_bytes_highest.clone());
        let text = "Refusals to nodes for lack of memory, by the bound that was reached";
        registry.register("budget_refusals", text, self.budget_refusals.0.clone());
        let text = "Watches shared by subscriptions";
        registry.register("shared_watches", text, self.shared_watches.clone());
        let text = "Subscriptions that were refused or closed, by reason";
        registry.register("subscriptions_refused", text, self.subscriptions_refused.clone());
        registry.register("strangers", "Connections that are not authenticated", self.strangers.clone());
        let text = "Connections that ended without being authenticated, by reason";
        registry.register("strangers_refused", text, self.strangers_refused.clone());
    }
}

#[cfg(test)]
mod tests {
    use tombolo_runtime::Budget;

    use super::*;

    #[test]
    fn refusal_names_the_bound_that_was_reached() {
        let (refusals, whole) = (Refusals::default(), Budget::new(1000));
        let (small, large) = (whole.share(100), whole.share(usize::MAX));
        assert!(small.take(101).is_none());
        refusals.count("request", &small, 101);
        let max = tombolo_runtime::budget::OWN_BYTES + 1000;
        let _held = large.take(max).expect("its own part, and the total");
        assert!(large.take(1).is_none());
        refusals.count("answer", &large, 1);
        refusals.too_long("answer");
        let counted = [("request", "node"), ("answer", "all"), ("answer", "length")];
        assert_eq!(counted.map(|(kind, bound)| refusals.get(kind, bound)), [1, 1, 1]);
    }
}
