//! What the subresources of a kind may change: approvals, finalizers of namespaces, ephemeral containers, sizes,
//! bindings.

use super::*;

/// A certificate request of its own key (`openssl req -new`, for the name `conformance`).
const REQUEST: &str = include_str!("csr.json");

macro_rules! csr {
    ($path:literal) => {
        concat!("/apis/certificates.k8s.io/v1/certificatesigningrequests", $path)
    };
}

macro_rules! pods {
    ($path:literal) => {
        concat!("/api/v1/namespaces/default/pods", $path)
    };
}

const BINDINGS: &str = "/api/v1/namespaces/default/bindings";

pub(crate) const LINES: &[Row] = &[
    ("POST", csr!("?fieldManager=m"), JSON, REQUEST),
    (
        "PATCH",
        csr!("/csr/approval?fieldManager=a"),
        MERGE,
        r#"{"metadata":{"annotations":{"a":"b"},"labels":{"l":"m"}},"spec":{"usages":["any"]},"status":{"certificate":"AAE=","conditions":[{"type":"Approved","status":"True","reason":"R","message":"M"}]}}"#,
    ),
    (
        "PATCH",
        csr!("/csr/status?fieldManager=s"),
        MERGE,
        r#"{"metadata":{"annotations":{"s":"t"}},"spec":{"usages":["any"]},"status":{"conditions":[{"type":"Approved","status":"True","reason":"other"},{"type":"Failed","status":"True"}]}}"#,
    ),
    (
        "PATCH",
        csr!("/csr/status?fieldManager=s"),
        MERGE,
        r#"{"status":{"conditions":[{"type":"Denied","status":"True"}]}}"#,
    ),
    ("PATCH", csr!("/csr/approval?fieldManager=a"), MERGE, r#"{"status":{"conditions":null}}"#),
    (
        "PATCH",
        csr!("/csr?fieldManager=p"),
        MERGE,
        r#"{"metadata":{"labels":{"x":"y"}},"status":{"conditions":null}}"#,
    ),
    ("DELETE", csr!("/csr"), "", ""),
    (
        "POST",
        "/api/v1/namespaces?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"finalized"},"spec":{"finalizers":["example.com/kept"]}}"#,
    ),
    (
        "PUT",
        "/api/v1/namespaces/finalized/finalize?fieldManager=f",
        JSON,
        r#"{"metadata":{"name":"finalized","labels":{"kubernetes.io/metadata.name":"finalized","x":"y"}},"spec":{"finalizers":["example.com/other"]},"status":{"phase":"Terminating"}}"#,
    ),
    ("PATCH", "/api/v1/namespaces/finalized?fieldManager=p", MERGE, r#"{"spec":{"finalizers":null}}"#),
    (
        "POST",
        pods!("?fieldManager=m"),
        JSON,
        r#"{"metadata":{"name":"sub"},"spec":{"serviceAccountName":"default","automountServiceAccountToken":false,"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"100m"}}}]}}"#,
    ),
    (
        "PATCH",
        pods!("/sub/ephemeralcontainers?fieldManager=e"),
        STRATEGIC,
        r#"{"metadata":{"labels":{"x":"y"}},"spec":{"activeDeadlineSeconds":5,"ephemeralContainers":[{"name":"e","image":"i"}]}}"#,
    ),
    (
        "PATCH",
        pods!("/sub/resize?fieldManager=r"),
        STRATEGIC,
        r#"{"metadata":{"labels":{"x":"y"}},"spec":{"activeDeadlineSeconds":5,"containers":[{"name":"c","image":"j","resources":{"requests":{"cpu":"200m"}}}]}}"#,
    ),
    (
        "PATCH",
        pods!("/sub/status?fieldManager=s"),
        STRATEGIC,
        r#"{"metadata":{"labels":{"x":"y"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"o","uid":"u"}]},"spec":{"activeDeadlineSeconds":5},"status":{"phase":"Running","qosClass":null,"conditions":[{"type":"Ready","status":"True"}]}}"#,
    ),
    (
        "PATCH",
        pods!("/sub?fieldManager=p"),
        MERGE,
        r#"{"status":{"phase":"Failed"},"metadata":{"labels":{"a":"b"}}}"#,
    ),
    ("DELETE", pods!("/sub?gracePeriodSeconds=0"), "", ""),
    (
        "POST",
        pods!("?fieldManager=m"),
        JSON,
        r#"{"metadata":{"name":"bound"},"spec":{"serviceAccountName":"default","automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}"#,
    ),
    ("POST", BINDINGS, JSON, r#"{"metadata":{"name":"bound"}}"#),
    ("POST", BINDINGS, JSON, r#"{"metadata":{"name":"bound"},"target":{"kind":"Pod"}}"#),
    ("POST", BINDINGS, JSON, r#"{"target":{"name":"n"}}"#),
    ("POST", BINDINGS, JSON, r#"{"metadata":{"name":"none"},"target":{"name":"n"}}"#),
    ("POST", BINDINGS, JSON, r#"{"metadata":{"name":"bound","namespace":"other"},"target":{"name":"n"}}"#),
    (
        "POST",
        pods!("/bound/binding"),
        JSON,
        r#"{"metadata":{"name":"bound"},"target":{"kind":"Pod","name":"x"}}"#,
    ),
    ("POST", pods!("/bound/binding"), JSON, r#"{"target":{"name":"n"}}"#),
    ("POST", pods!("/bound/binding"), JSON, r#"{"metadata":{"name":"other"},"target":{"name":"n"}}"#),
    (
        "POST",
        pods!("/bound/binding"),
        JSON,
        r#"{"metadata":{"name":"bound","namespace":"other"},"target":{"name":"n"}}"#,
    ),
    ("POST", pods!("/none/binding"), JSON, r#"{"metadata":{"name":"none"},"target":{"name":"n"}}"#),
    (
        "POST",
        pods!("/bound/binding"),
        JSON,
        r#"{"metadata":{"name":"bound","labels":{"l":"m"},"annotations":{"a":"b"}},"target":{"kind":"Node","name":"n"}}"#,
    ),
    (
        "POST",
        pods!("/bound/binding"),
        JSON,
        r#"{"metadata":{"name":"bound"},"target":{"kind":"Node","name":"n"}}"#,
    ),
    ("GET", pods!("/bound"), "", ""),
    ("DELETE", pods!("/bound?gracePeriodSeconds=0"), "", ""),
];
