//! Differences that are meant: each has a name and a reason.

use std::collections::BTreeMap;
use std::fmt;

/// A named deviation from the recorded cloud. Closed; `docs/protocol.md` shows the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A stopped edge's empty message.
    EmptyMessage,
    /// Fields that no node needs.
    Trimmed,
    /// An empty object beside an error.
    ObjectBesideError,
    /// Failed queries are operation `error`.
    QueryError,
    /// A pod's own status does not come back.
    StatusEcho,
    /// A node object that an answer carried is not pushed as well.
    NodeEcho,
    /// A newer version took its place.
    Coalesced,
    /// What a pod needs comes with it.
    Needed,
    /// A version between two that were recorded.
    Between,
    /// The node is pushed when it joins.
    NodeOnJoin,
    /// A version of something that the edge holds already.
    HeldAlready,
    /// The first delivery of a connection may be called insert or update.
    InsertOrUpdate,
    /// A frame that was recorded twice.
    Repeated,
    /// Text of a service account token.
    Token,
    /// What the recorded cluster's own controllers added.
    ClusterAdds,
    /// Documents about the cluster itself.
    ClusterDocuments,
    /// Confirmations for the device twin.
    TwinConfirmed,
    /// The recording ends before the answer.
    RecordingEnds,
    /// A deletion says less.
    DeletionForm,
    /// The wording of an error.
    ErrorWording,
    /// Equal questions travel once.
    SharedQuery,
    /// Objects of the cluster itself.
    ClusterObjects,
    /// Objects say their kind.
    NamesKind,
    /// What no pod needs is taken away.
    Released,
    /// Owners that the transcript does not show.
    Owners,
    /// Keepalives have a time of their own.
    Keepalive,
    /// Bodies that are no JSON.
    OtherBody,
    /// The edge held something before the recording.
    HeldBefore,
    /// The recorded cloud went away.
    CloudLeft,
    /// What the run's cluster does not serve.
    NotServed,
    /// Other controllers of a stock cloud.
    Elsewhere,
    /// Slices turned towards the node's own MetaServer.
    LocalSlices,
    /// Heartbeats of older edges.
    Heartbeats,
    /// An edge gives up a silent cloud.
    Patience,
    /// Refusals say why.
    WholeStatus,
    /// A refusal where a stock cloud is silent.
    Answered,
    /// A stock cloud's notices about its own connections.
    HubNotice,
    /// Which of two controllers sends an object.
    EitherController,
    /// Objects that nobody watches any more are taken away.
    Unwatched,
    /// Certificates are asked for in the name of the node.
    Requester,
    /// A node whose Node was deleted joins again.
    JoinsAgain,
    /// Words that a dynamic controller makes of plurals.
    WatchWord,
    /// Members that the types of the recorded cloud do not know.
    OlderTypes,
    /// Writes of applications that no node may make.
    NodeRestriction,
}

impl Rule {
    /// All rules, as the documents show them.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// Its name in the output of a run.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Which difference it allows.
    #[must_use]
    pub fn allows(self) -> &'static str {
        self.row().2
    }

    /// Why the difference is meant.
    #[must_use]
    pub fn reason(self) -> &'static str {
        self.row().3
    }

    fn row(self) -> &'static Row {
        // The table has the order of the enum, which a test checks.
        &TABLE[self as usize]
    }

    /// The table for `docs/protocol.md`.
    #[must_use]
    pub fn table() -> String {
        let mut table = String::from("| rule | allowed difference | reason |\n|---|---|---|\n");
        for rule in Self::all() {
            table.push_str(&format!("| `{}` | {} | {} |\n", rule.name(), rule.allows(), rule.reason()));
        }
        table
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each rule was needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Rule, usize>);

impl Tally {
    /// A rule that was needed so often.
    pub(crate) fn of(rule: Rule, count: usize) -> Self {
        Self((count > 0).then_some((rule, count)).into_iter().collect())
    }

    pub(crate) fn count(&mut self, rule: Rule) {
        *self.0.entry(rule).or_default() += 1;
    }

    /// The rules that were needed, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Rule, usize)> + '_ {
        self.0.iter().map(|(rule, count)| (*rule, *count))
    }
}

/// Rule, name, what it allows, why.
type Row = (Rule, &'static str, &'static str, &'static str);

const TABLE: &[Row] = &[
    (
        Rule::EmptyMessage,
        "empty-message",
        "the message with an empty id that a stock edge sends when it stops, and what is no message at all, is not answered",
        "it names nothing that could be answered",
    ),
    (
        Rule::Trimmed,
        "trimmed",
        "objects come without `managedFields`, the annotation of `kubectl apply`, the heartbeats of conditions and the images of nodes, or with the `managedFields` of this run",
        "no edge reads them; they are half of a pod's bytes, and heartbeats would cause a delivery each",
    ),
    (
        Rule::ObjectBesideError,
        "object-beside-error",
        "the object beside an error is empty",
        "an edge looks at its presence only",
    ),
    (
        Rule::QueryError,
        "query-error",
        "a failed query is answered with operation `error` and a sentence, or with an empty object where every pod calls it optional",
        "a stock edge stores what a `response` carries, errors too",
    ),
    (
        Rule::StatusEcho,
        "status-echo",
        "a pod is not pushed when only its status or its `managedFields` have changed",
        "the status came from the edge; each echo costs it two disk writes",
    ),
    (
        Rule::NodeEcho,
        "node-echo",
        "a node is not pushed when the edge has what it uses of it already",
        "an answer carried it, or only heartbeats, `managedFields` and the like have changed",
    ),
    (
        Rule::Coalesced,
        "coalesced",
        "a newer version, or the deletion, was delivered in place of a version",
        "pending work is state: the newest version is what an edge needs",
    ),
    (
        Rule::Needed,
        "needed",
        "an object that the recorded edge had to ask for is pushed",
        "what a pod refers to is delivered with the pod, so that a later question finds it",
    ),
    (
        Rule::Between,
        "between",
        "a version that the API had is delivered although the recorded cloud skipped it",
        "how many versions are skipped is a matter of time",
    ),
    (
        Rule::NodeOnJoin,
        "node-on-join",
        "the node is pushed after it has joined or come back, with some of its labels until all are set, and with what controllers of the run's cluster set on it",
        "an edge with an empty store learns its node in no other way",
    ),
    (
        Rule::HeldAlready,
        "held-already",
        "what the edge was given before is not sent again, or once more",
        "deliveries are repeated when it is not certain that the edge has the newest",
    ),
    (
        Rule::InsertOrUpdate,
        "insert-or-update",
        "a delivery is called `insert` where the recorded one is called `update`, or the other way round",
        "an edge writes the same row for both; which word stock uses depends on its caches",
    ),
    (
        Rule::Repeated,
        "repeated",
        "a frame that was recorded more than once comes once",
        "the replayed edge acknowledges at once",
    ),
    (
        Rule::Token,
        "token",
        "tokens, issued certificates, the times at which tokens begin and end and the audiences that nobody asked for differ; what local clients asked with a token of their own is not asked",
        "tokens and certificates are issued anew in each run, by another cluster, and recordings do not contain any token",
    ),
    (
        Rule::ClusterAdds,
        "cluster-adds",
        "what plugins and controllers of the recorded cluster added to a written object may be missing; what the run's API server sets by itself, or does not keep, may differ; a version may be a newer one when a controller wrote meanwhile",
        "clusters have other plugins and other versions; the run names additions to what edges insert as preconditions",
    ),
    (
        Rule::ClusterDocuments,
        "cluster-documents",
        "discovery, version and the keys of tokens, and addresses of the cloud, are those of this run's cluster",
        "they describe the cluster, not the channel",
    ),
    (
        Rule::TwinConfirmed,
        "twin-confirmed",
        "questions of the device twin are confirmed; its reports are refused, or confirmed with `devices: discard`",
        "an edge repeats what is not confirmed; a stock cloud without devices is silent, and devices are not managed here",
    ),
    (
        Rule::RecordingEnds,
        "recording-ends",
        "a request is answered whose connection ended before an answer was recorded",
        "nothing can be said about what would have come",
    ),
    (
        Rule::DeletionForm,
        "deletion-form",
        "a deletion carries the last object that there was, the last that the edge was given, or only its identity",
        "an edge reads kind, namespace, name and uid",
    ),
    (
        Rule::ErrorWording,
        "error-wording",
        "the sentence of an error differs; status, reason and code do not",
        "it is for people; servers word it differently",
    ),
    (
        Rule::SharedQuery,
        "shared-query",
        "an edge of ours sends one of several equal queries that are under way",
        "a stock cloud answers only the last of them",
    ),
    (
        Rule::ClusterObjects,
        "cluster-objects",
        "objects that every cluster makes of its own accord (`kube-root-ca.crt`, the service `kubernetes`) are watched and listed too, with the content and version of this cluster; they are there where the recorded cluster had not made them; what makes a cluster or its cloud work (its roles, what the cloud keeps about itself) is that of this run, wherever it is listed or watched",
        "its controllers put them right when the run changes them; the recorded content is compared with the lines of the API",
    ),
    (
        Rule::NamesKind,
        "names-kind",
        "an object in an answer or a delivery says `kind` and `apiVersion` where the recorded one does not; items of a list leave them to the list",
        "stock clouds send typed objects, which forget them; an edge knows them from the path and from discovery",
    ),
    (
        Rule::Released,
        "released",
        "a ConfigMap or Secret to which no pod on the node refers any more is deleted there, and is not delivered until one does again",
        "a stock cloud never forgets who has needed an object once, so that nodes go on receiving it",
    ),
    (
        Rule::Owners,
        "owners",
        "an object lacks owners that no line of the transcript shows",
        "garbage collection would take away an object whose owner does not exist; the recorded content is compared with the lines of the API",
    ),
    (
        Rule::Keepalive,
        "keepalive",
        "keepalives come when the timer of the edge under test says so",
        "they say that the connection lives; any other message does too",
    ),
    (
        Rule::OtherBody,
        "other-body",
        "bodies of API answers that are no JSON differ",
        "recordings have hashes in their place: they may hold secrets that cannot be found in them",
    ),
    (
        Rule::HeldBefore,
        "held-before",
        "an object is not deleted of which the transcript shows nothing but its deletion",
        "the recorded edge held it from before the recording; the edge of the run does not",
    ),
    (
        Rule::CloudLeft,
        "cloud-left",
        "the cloud does not say goodbye where the recorded one was stopped, was full or lost patience",
        "this is about the recorded process and its host, not about what was said",
    ),
    (
        Rule::NotServed,
        "not-served",
        "an object of a kind that the run's cluster does not serve is not delivered, and what an application reads of it is refused with 404; an edge refuses one that does not say its kind",
        "its definition is not in the transcript: the run names the kind as a precondition",
    ),
    (
        Rule::Elsewhere,
        "elsewhere",
        "what controllers for devices, node tasks, policies, volumes and routes say unasked does not come; reports to them are refused",
        "this cloudcore has no such controllers; it answers what an edge sends them so that the edge stays healthy",
    ),
    (
        Rule::LocalSlices,
        "local-slices",
        "of the EndpointSlices in a list only `default/kubernetes` names the node's own MetaServer",
        "a stock cloud turns every slice of a list towards it, so that services cannot be reached",
    ),
    (
        Rule::Heartbeats,
        "heartbeats",
        "where an edge reports with `nodestatus`, heartbeats of conditions are those of the run",
        "the cloud brings old ones to the present time, as a stock cloud does",
    ),
    (
        Rule::Patience,
        "patience",
        "an edge leaves a connection on which it waits for an answer and has heard nothing for 75 s",
        "a stock edge stays until a write fails, which may take as long as TCP does",
    ),
    (
        Rule::WholeStatus,
        "whole-status",
        "a refusal has status, reason and code where the recorded cloud gave a sentence or nothing",
        "a stock edge takes an error without a status for success, or hands it to a client that sees neither what failed nor why",
    ),
    (
        Rule::Answered,
        "answered",
        "a request to which the recorded cloud never said anything is answered: by a refusal, as an equal query that was under way, or as one of an application where the recorded cloud answers none",
        "a missing answer costs an edge a minute, and up to three attempts; of equal queries a stock cloud answers the last",
    ),
    (
        Rule::HubNotice,
        "hub-notice",
        "what a stock cloud's hub says about a connection to itself (`connected`, `disconnected`) does not come",
        "it is meant for other modules of the cloud; an edge has no use for it",
    ),
    (
        Rule::EitherController,
        "either-controller",
        "a delivery comes from `edgecontroller` where the recorded one came from `dynamiccontroller`, or the other way round",
        "an edge does the same for both; of an object that a pod needs and an application watches, a stock cloud sends whichever is first, and repeats everything as `edgecontroller`",
    ),
    (
        Rule::Unwatched,
        "unwatched",
        "an object that came for a watch is deleted at the node when it leaves the selection, or when nobody watches it any more",
        "a stock cloud leaves it there as it last was, and applications go on reading it",
    ),
    (
        Rule::Requester,
        "requester",
        "a certificate signing request names another requester than the recorded one",
        "requests are made in the name of the node; a stock cloud makes them in its own",
    ),
    (
        Rule::JoinsAgain,
        "joins-again",
        "the connection of a node ends with its Node, so that nothing more is said on it; a node that comes back after that joins again first",
        "a deleted Node's certificate opens nothing here; a stock cloud goes on with it",
    ),
    (
        Rule::WatchWord,
        "watch-word",
        "the path of a delivery has the kind (`lease`) where a stock dynamic controller has what it makes of the plural (`leases`)",
        "the other controllers of a stock cloud have the kind; an edge finds the object by what its content says",
    ),
    (
        Rule::OlderTypes,
        "older-types",
        "an object has members that no object of its kind has in the recorded cloud's deliveries, and that the same version has in the answer to an application or in a line of the API",
        "a stock cloud loses what the Kubernetes that it was built with did not know",
    ),
    (
        Rule::NodeRestriction,
        "node-restriction",
        "a write of an application to pods, nodes, leases and the like is refused with 403; the run makes it as its administrator and compares what comes of it",
        "NodeRestriction forbids it to every node, whatever its roles are; a stock cloud without authorization writes in its own name",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_enum() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{}", row.1);
        }
        assert_eq!(TABLE.len(), Rule::NodeRestriction as usize + 1);
    }
}
