//! Intended differences from the recorded cloud, each with a name and a reason.

use std::collections::BTreeMap;
use std::fmt;

/// A named deviation from the recorded cloud. Closed; `docs/protocol.md` shows the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The empty message of a stopped edge is not answered.
    EmptyMessage,
    /// Members that no node needs are left out.
    Trimmed,
    /// The object beside an error is empty.
    ObjectBesideError,
    /// A failed query is answered with operation `error`.
    QueryError,
    /// A pod's own status is not sent back.
    StatusEcho,
    /// A node that an answer carried is not pushed as well.
    NodeEcho,
    /// A newer version was delivered instead.
    Coalesced,
    /// The objects that a pod needs are delivered with it.
    Needed,
    /// A version between two recorded ones.
    Between,
    /// The node is pushed when it joins.
    NodeOnJoin,
    /// A version of an object that the edge already holds.
    HeldAlready,
    /// The first delivery of a connection may be an insert or an update.
    InsertOrUpdate,
    /// A frame that was recorded more than once.
    Repeated,
    /// Text of a service account token, or an issued certificate.
    Token,
    /// Additions of the recorded cluster's own controllers.
    ClusterAdds,
    /// Documents about the cluster itself.
    ClusterDocuments,
    /// Confirmations for the device twin.
    TwinConfirmed,
    /// The recording ends before the answer.
    RecordingEnds,
    /// A deletion carries less.
    DeletionForm,
    /// The wording of an error.
    ErrorWording,
    /// Equal queries are sent once.
    SharedQuery,
    /// Objects of the cluster itself.
    ClusterObjects,
    /// Objects carry their kind.
    NamesKind,
    /// An object that no pod needs any more is deleted.
    Released,
    /// Owners that the transcript does not show.
    Owners,
    /// Keepalives follow the timer of the edge under test.
    Keepalive,
    /// Bodies that are not JSON.
    OtherBody,
    /// The edge held the object before the recording.
    HeldBefore,
    /// The recorded cloud ended the connection.
    CloudLeft,
    /// Kinds that the run's cluster does not serve.
    NotServed,
    /// Messages of other controllers of a KubeEdge cloud.
    Elsewhere,
    /// EndpointSlices that point to the node's own MetaServer.
    LocalSlices,
    /// Heartbeats of older edges.
    Heartbeats,
    /// An edge gives up on a silent cloud.
    Patience,
    /// Refusals carry a status.
    WholeStatus,
    /// A refusal where a KubeEdge cloud is silent.
    Answered,
    /// A KubeEdge cloud's notices about its own connections.
    HubNotice,
    /// Either of two controllers may send an object.
    EitherController,
    /// Objects that no client watches any more are deleted.
    Unwatched,
    /// Certificates are requested in the name of the node.
    Requester,
    /// A node whose Node was deleted joins again.
    JoinsAgain,
    /// Resource words that a dynamic controller derives from plurals.
    WatchWord,
    /// Members that the types of the recorded cloud do not know.
    OlderTypes,
    /// Writes of applications that no node may make.
    NodeRestriction,
}

impl Rule {
    /// All rules, in the order of the documentation.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The rule's name in the output of a run.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The difference that the rule allows.
    #[must_use]
    pub fn allows(self) -> &'static str {
        self.row().2
    }

    /// Why the difference is intended.
    #[must_use]
    pub fn reason(self) -> &'static str {
        self.row().3
    }

    fn row(self) -> &'static RuleRow {
        // A test checks that the table has the order of the enum.
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

/// How often each rule was applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Rule, usize>);

impl Tally {
    /// A rule that was applied `count` times.
    pub(crate) fn of(rule: Rule, count: usize) -> Self {
        Self((count > 0).then_some((rule, count)).into_iter().collect())
    }

    pub(crate) fn count(&mut self, rule: Rule) {
        *self.0.entry(rule).or_default() += 1;
    }

    /// The rules that were applied, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Rule, usize)> + '_ {
        self.0.iter().map(|(rule, count)| (*rule, *count))
    }
}

/// Rule, name, the difference that it allows, the reason.
type RuleRow = (Rule, &'static str, &'static str, &'static str);

const TABLE: &[RuleRow] = &[
    (
        Rule::EmptyMessage,
        "empty-message",
        "the message with an empty id that a KubeEdge edge sends when it stops, and anything that is not a message, is not answered",
        "it contains nothing that could be answered",
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
        "an edge only checks whether it is present",
    ),
    (
        Rule::QueryError,
        "query-error",
        "a failed query is answered with operation `error` and a sentence, or with an empty object where every pod calls it optional",
        "a KubeEdge edge stores the content of a `response`, even an error",
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
        "a node is not pushed when the edge already has everything of it that it uses",
        "an answer carried it, or only heartbeats, `managedFields` and the like have changed",
    ),
    (
        Rule::Coalesced,
        "coalesced",
        "a newer version, or the deletion, was delivered in place of a version",
        "pending deliveries are states: an edge needs only the newest version",
    ),
    (
        Rule::Needed,
        "needed",
        "an object that the recorded edge had to request is pushed",
        "the objects that a pod refers to are delivered with the pod, so that a later query finds them",
    ),
    (
        Rule::Between,
        "between",
        "a version that the API had is delivered although the recorded cloud skipped it",
        "how many versions are skipped depends on timing",
    ),
    (
        Rule::NodeOnJoin,
        "node-on-join",
        "the node is pushed after it has joined or come back, with some of its labels until all are set, and with what controllers of the run's cluster set on it",
        "an edge with an empty store receives its node in no other way",
    ),
    (
        Rule::HeldAlready,
        "held-already",
        "an object that the edge already has is not sent again, or is sent once more",
        "deliveries are repeated when it is not certain that the edge has the newest version",
    ),
    (
        Rule::InsertOrUpdate,
        "insert-or-update",
        "a delivery is called `insert` where the recorded one is called `update`, or the other way round",
        "an edge writes the same row for both; which of the two KubeEdge uses depends on its caches",
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
        "tokens, issued certificates, the start and end times of tokens and the audiences that were not requested differ; requests that local clients made with their own tokens are not sent",
        "each run's cluster issues its own tokens and certificates, and recordings do not contain any token",
    ),
    (
        Rule::ClusterAdds,
        "cluster-adds",
        "what plugins and controllers of the recorded cluster added to a written object may be missing; what the run's API server sets by itself, or does not keep, may differ; a version may be newer if a controller wrote to the object in between",
        "clusters have other plugins and other versions; the run names additions to what edges insert as preconditions",
    ),
    (
        Rule::ClusterDocuments,
        "cluster-documents",
        "discovery, version, token keys and the cloud's addresses are those of this run's cluster",
        "they describe the cluster, not the channel",
    ),
    (
        Rule::TwinConfirmed,
        "twin-confirmed",
        "queries of the device twin are confirmed; its reports are refused, or confirmed with `devices: discard`",
        "an edge repeats unconfirmed messages; a KubeEdge cloud without devices is silent, and devices are not managed here",
    ),
    (
        Rule::RecordingEnds,
        "recording-ends",
        "a request is answered although its connection ended before an answer was recorded",
        "the answer that would have followed is unknown",
    ),
    (
        Rule::DeletionForm,
        "deletion-form",
        "a deletion carries the last state of the object, the last state that the edge received, or only its identity",
        "an edge reads kind, namespace, name and uid",
    ),
    (
        Rule::ErrorWording,
        "error-wording",
        "the message of an error differs; status, reason and code do not",
        "messages are for people; servers word them differently",
    ),
    (
        Rule::SharedQuery,
        "shared-query",
        "an edge of ours sends one of several equal queries in flight",
        "a KubeEdge cloud answers only the last of them",
    ),
    (
        Rule::ClusterObjects,
        "cluster-objects",
        "objects that every cluster creates by itself (`kube-root-ca.crt`, the service `kubernetes`) are watched and listed too, with the content and version of this cluster; they may exist where the recorded cluster had not created them yet; objects that make a cluster or its cloud work (its roles, the cloud's own objects) are those of this run, wherever they are listed or watched",
        "controllers restore these objects when the run changes them; the recorded content is compared with the API lines",
    ),
    (
        Rule::NamesKind,
        "names-kind",
        "an object in an answer or a delivery has `kind` and `apiVersion` where the recorded one does not; items of a list may leave them to the list",
        "KubeEdge clouds send typed objects, which lose them; an edge knows them from the path and from discovery",
    ),
    (
        Rule::Released,
        "released",
        "a ConfigMap or Secret to which no pod on the node refers any more is deleted there, and is not delivered until a pod refers to it again",
        "a KubeEdge cloud never forgets that a node once needed an object, so the node goes on receiving it",
    ),
    (
        Rule::Owners,
        "owners",
        "an object lacks owner references to objects that no line of the transcript shows",
        "garbage collection would delete an object whose owner does not exist; the recorded content is compared with the API lines",
    ),
    (
        Rule::Keepalive,
        "keepalive",
        "keepalives follow the timer of the edge under test",
        "they show that the connection is alive, as any other message does",
    ),
    (
        Rule::OtherBody,
        "other-body",
        "bodies of API answers that are not JSON differ",
        "recordings contain hashes instead: such bodies may contain secrets that cannot be found in them",
    ),
    (
        Rule::HeldBefore,
        "held-before",
        "an object of which the transcript shows only the deletion is not deleted",
        "the recorded edge held it from before the recording; the edge of the run does not",
    ),
    (
        Rule::CloudLeft,
        "cloud-left",
        "the cloud does not say goodbye where the recorded one stopped, was full or gave up",
        "this is about the recorded process and its host, not about the messages",
    ),
    (
        Rule::NotServed,
        "not-served",
        "an object of a kind that the run's cluster does not serve is not delivered, and reads of it by applications are refused with 404; an edge refuses one without a kind",
        "its definition is not in the transcript: the run names the kind as a precondition",
    ),
    (
        Rule::Elsewhere,
        "elsewhere",
        "unasked messages of controllers for devices, node tasks, policies, volumes and routes are missing; reports to these controllers are refused",
        "this cloudcore has no such controllers; it answers what an edge sends them so that the edge stays healthy",
    ),
    (
        Rule::LocalSlices,
        "local-slices",
        "in a list of EndpointSlices, only `default/kubernetes` points to the node's own MetaServer",
        "a KubeEdge cloud points every slice of a list to it, so that services cannot be reached",
    ),
    (
        Rule::Heartbeats,
        "heartbeats",
        "where an edge reports with `nodestatus`, heartbeats of conditions are those of the run",
        "the cloud replaces old ones by the current time, as a KubeEdge cloud does",
    ),
    (
        Rule::Patience,
        "patience",
        "an edge leaves a connection on which it waits for an answer and has received nothing for 75 s",
        "a KubeEdge edge stays until a write fails, which may take as long as TCP does",
    ),
    (
        Rule::WholeStatus,
        "whole-status",
        "a refusal has status, reason and code where the recorded cloud sent a message or nothing",
        "a KubeEdge edge treats an error without a status as success, or passes it to a client that learns neither what failed nor why",
    ),
    (
        Rule::Answered,
        "answered",
        "a request that the recorded cloud never answered is answered: by a refusal, as one of several equal queries in flight, or as a request of an application where the recorded cloud answers none",
        "a missing answer costs an edge a minute, and up to three attempts; of several equal queries, a KubeEdge cloud answers only the last",
    ),
    (
        Rule::HubNotice,
        "hub-notice",
        "notices that a KubeEdge cloud's hub sends to itself about a connection (`connected`, `disconnected`) are missing",
        "they are meant for other modules of the cloud; an edge does not use them",
    ),
    (
        Rule::EitherController,
        "either-controller",
        "a delivery comes from `edgecontroller` where the recorded one came from `dynamiccontroller`, or the other way round",
        "an edge treats both alike; for an object that a pod needs and an application watches, a KubeEdge cloud uses whichever controller is first, and repeats everything as `edgecontroller`",
    ),
    (
        Rule::Unwatched,
        "unwatched",
        "an object that was delivered for a watch is deleted at the node when it leaves the selection, or when no client watches it any more",
        "a KubeEdge cloud leaves its last state there, and applications go on reading it",
    ),
    (
        Rule::Requester,
        "requester",
        "a certificate signing request names a different requester",
        "requests are made in the name of the node; a KubeEdge cloud makes them in its own",
    ),
    (
        Rule::JoinsAgain,
        "joins-again",
        "the connection of a node ends when its Node is deleted, and nothing more is sent on it; a node that comes back later joins again first",
        "the certificate of a deleted Node is not accepted here; a KubeEdge cloud goes on with it",
    ),
    (
        Rule::WatchWord,
        "watch-word",
        "the path of a delivery has the kind (`lease`) where KubeEdge's dynamic controller has a word derived from the plural (`leases`)",
        "the other controllers of a KubeEdge cloud use the kind; an edge finds the object by its content",
    ),
    (
        Rule::OlderTypes,
        "older-types",
        "an object has members that no object of its kind has in the recorded cloud's deliveries, but that the same version has in the answer to an application or in an API line",
        "a KubeEdge cloud loses members that its version of Kubernetes does not know",
    ),
    (
        Rule::NodeRestriction,
        "node-restriction",
        "a write of an application to pods, nodes, leases and the like is refused with 403; the run makes the write as its administrator and compares the result",
        "NodeRestriction forbids it to every node, regardless of its roles; a KubeEdge cloud without authorization writes with its own credentials",
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
