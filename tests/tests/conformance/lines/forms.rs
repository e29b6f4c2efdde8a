//! Requests with a form of their own, and timeouts.

use super::*;

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
const TABLE_ALONE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// A request that is answered but not stored; there are no columns for its answer.
const REVIEW: &str = r#"{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"namespace":"default","verb":"get","resource":"pods"}}}"#;

/// Path and `Accept`.
const READS: &[(&str, &str)] = &[
    ("/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1", "application/yaml"),
    ("/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1", "text/html"),
    ("/api/v1/namespaces/default/configmaps/none", "application/yaml;as=Table;g=meta.k8s.io;v=v1"),
    ("/api/v1/namespaces/default/leases", TABLE),
    ("/api/v1/namespaces/default/secrets", TABLE_ALONE),
    ("/apis/conformance.example/v1/namespaces/default/widgets", TABLE_ALONE),
    (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    ),
    (
        "/apis/conformance.example/v1beta1/namespaces/default/widgets",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    ),
];

const TIMEOUTS: &[&str] = &["", "0", "0s", "30s", "1m0.5s", "-1s", "nothing", "5", "5q", "1h2", "."];

pub(super) fn lines() -> impl Iterator<Item = Line> {
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = Line::new(&("POST", review, JSON, REVIEW)).accepting(TABLE_ALONE);
    let reads = READS.iter().map(|(path, accept)| Line::new(&("GET", path, "", "")).accepting(accept));
    let timeouts = TIMEOUTS
        .iter()
        .map(|timeout| Line::get(&format!("/api/v1/namespaces/default/configmaps/none?timeout={timeout}")));
    std::iter::once(review).chain(reads).chain(timeouts)
}
