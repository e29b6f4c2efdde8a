//! Answers of an edge's local API that differ from those of its cloud.

use super::{Difference, Part, Where};

const fn listed(part: Part, lines: &'static [&'static str], why: &'static str) -> Difference {
    Difference { of: Where::Edge, part, sure: true, lines, _why: why }
}

/// A controller may be faster or slower than the request.
const fn raced(part: Part, lines: &'static [&'static str], why: &'static str) -> Difference {
    Difference { of: Where::Edge, part, sure: false, lines, _why: why }
}

const REJECTED_FORM: &str = "an unsupported form of the answer is rejected before the cloud answers";

const READ_ONLY_PATHS: &str = "paths that are not resources can only be read at an edge";

/// With any cloud.
pub(crate) const DIFFERENCES: &[Difference] = &[
    listed(
        Part::Verdicts("404 NotFound", "403 Forbidden"),
        &["GET /api/v1/namespaces/default/configmaps/a/b"],
        "subresources that this node cannot serve are rejected without a lookup",
    ),
    listed(
        Part::Text,
        &[r#"PATCH /api/v1/namespaces/default/configmaps/a?fieldValidation=Strict {"foo":"bar"}"#],
        "the refusal quotes the object, and objects at an edge come without managedFields",
    ),
    listed(
        Part::Text,
        &[
            "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion=99999999",
            "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion=18446744073709551615",
        ],
        "an edge assumes that a revision which it has not reached belongs to another history",
    ),
    listed(
        Part::Verdicts("409 AlreadyExists", "406 NotAcceptable"),
        &[
            r#"POST /api/v1/namespaces/default/configmaps {"metadata":{"name":"wire"}} as application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"#,
        ],
        REJECTED_FORM,
    ),
    listed(
        Part::Verdicts("404 NotFound", "406 NotAcceptable"),
        &[
            "DELETE /api/v1/namespaces/default/configmaps/none as application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        ],
        REJECTED_FORM,
    ),
    listed(Part::Verdicts("404", "403 Forbidden"), &["DELETE /nothing"], READ_ONLY_PATHS),
    listed(Part::Verdicts("405 MethodNotAllowed", "403 Forbidden"), &["POST /version {}"], READ_ONLY_PATHS),
    raced(
        Part::Answer,
        &[
            "DELETE /api/v1/namespaces/default/configmaps/a",
            r#"PATCH /api/v1/namespaces/default/configmaps/a?fieldManager=m {"metadata":{"finalizers":null}}"#,
        ],
        "it is being deleted already, and a controller of each cloud completes that in its own time",
    ),
    listed(
        Part::Text,
        &[r#"DELETE /api/v1/namespaces/default/configmaps/a {"preconditions":{"resourceVersion":"1"}}"#],
        "an edge has its own revisions, so it checks the precondition itself",
    ),
];

/// What controllers of workloads write beside the requests.
const WRITTEN: Part = Part::Members(&["status", "annotations"]);

macro_rules! replica_set {
    ($method:literal, $rest:literal) => {
        concat!($method, " /apis/apps/v1/namespaces/default/replicasets/sc", $rest)
    };
}

macro_rules! deployment {
    ($method:literal, $rest:literal) => {
        concat!($method, " /apis/apps/v1/namespaces/default/deployments/d", $rest)
    };
}

/// With kube-apiserver as the cloud, which has kube-controller-manager beside it.
pub(crate) const OF_REAL: &[Difference] = &[
    raced(
        WRITTEN,
        &[
            deployment!(
                "PUT",
                r#"/status?fieldManager=s {"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"other"}]}}},"status":{"replicas":3}}"#
            ),
            deployment!("GET", "/scale"),
            deployment!("PATCH", r#"/scale?fieldManager=m {"spec":{"replicas":4}}"#),
            deployment!(
                "PATCH",
                r#"?fieldManager=m {"spec":{"template":{"spec":{"containers":[{"name":"c","image":"j"},{"name":"d","image":"k"}]}}}}"#
            ),
            deployment!("DELETE", "?propagationPolicy=Orphan"),
            replica_set!("GET", "/scale"),
            replica_set!("PUT", r#"/scale?fieldManager=p {"metadata":{"name":"sc"},"spec":{"replicas":2}}"#),
            replica_set!("GET", ""),
            replica_set!("PATCH", r#"/scale?fieldManager=q {"spec":{"replicas":3}}"#),
            replica_set!("PATCH", r#"/scale?fieldManager=q {"spec":{"replicas":4}}"#),
            replica_set!(
                "PATCH",
                r#"/scale?fieldManager=q [{"op":"replace","path":"/spec/replicas","value":5}]"#
            ),
            replica_set!(
                "PATCH",
                "/scale?fieldManager=r&force=true apiVersion: autoscaling/v1\nkind: Scale\nmetadata:\n  name: sc\nspec:\n  replicas: 6"
            ),
            replica_set!(
                "PATCH",
                "?fieldManager=s&force=true apiVersion: apps/v1\nkind: ReplicaSet\nmetadata:\n  name: sc\nspec:\n  replicas: 7"
            ),
            replica_set!("DELETE", ""),
        ],
        "controllers write the status and the revision",
    ),
    raced(Part::Members(&["items"]), &["GET /api/v1/namespaces/default/events"], "controllers write events"),
    listed(
        Part::Text,
        &["GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1 as application/yaml"],
        "the real server also offers protobuf",
    ),
    listed(Part::Text, &["GET /version from kubectl/1"], "each reports its own build"),
];
