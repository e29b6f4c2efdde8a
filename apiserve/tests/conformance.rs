//! The same requests to the real kube-apiserver and to this server: code and body must be equal, field by field,
//! but for what [`DIFFERENCES`] names.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tombolo_apiserve::api::ApiServer;
use tombolo_apiserve::backend::{Endpoint, EndpointRequest};
use tombolo_apiserve::history::LogLimits;
use tombolo_apiserve::kinds::Kinds;
use tombolo_apiserve::memory::MemoryStore;
use tombolo_apiserve::registry::Registry;
use tombolo_apiserve::server::{Serving, serve};
use tombolo_apiserve::status::ApiError;
use tombolo_apiserve::write::LocalWrites;
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, cluster_or_skip, wait_for};

/// One request. The table is executed in order, so that later lines see what earlier ones did.
type Line<'a> = (&'a str, &'a str, &'a str, &'a str);

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Requests whose answers differ, and why. A line that no longer differs fails the test too.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        r#"POST /api/v1/namespaces/default/configmaps {"kind":"Secret","apiVersion":"v1","metadata":{"name":"b"}}"#,
        "the real text names internal Go packages",
    ),
    (
        r#"POST /api/v1/namespaces/default/configmaps {"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"b"}}"#,
        "the real text names a Go source file",
    ),
    ("POST /api/v1/namespaces/default/configmaps {bad", "the JSON parser has other words"),
    ("PATCH /api/v1/namespaces/default/configmaps/a {", "the JSON parser has other words"),
    (
        r#"PATCH /api/v1/namespaces/default/configmaps/a [{"op":"test","path":"/data/y","value":"3"}]"#,
        "the real server does not say which operation failed",
    ),
    (
        r#"PATCH /api/v1/namespaces/default/configmaps/a [{"op":"remove","path":"/data/none"}]"#,
        "the real server does not say which operation failed",
    ),
    (
        r#"PATCH /api/v1/namespaces/default/configmaps/a?fieldValidation=Strict {"foo":"bar"}"#,
        "the real text repeats the whole patched object, ours the patch",
    ),
    (
        r#"PATCH /apis/apps/v1/namespaces/default/deployments/d?fieldManager=m {"spec":{"template":{"spec":{"containers":[{"name":"c","image":"j"},{"name":"d","image":"k"}]}}}}"#,
        "the real server gives the ownership entry of a scale write no time, and so another place in the list",
    ),
    (
        "DELETE /apis/apps/v1/namespaces/default/deployments/d?propagationPolicy=Orphan ",
        "the real server gives the ownership entry of a scale write no time, and so another place in the list",
    ),
    (
        "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1 as application/yaml",
        "the real server also offers protobuf",
    ),
    (
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews as application/json;as=Table;g=meta.k8s.io;v=v1",
        "the real server also offers protobuf",
    ),
    (
        "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1 as text/html",
        "the real server also offers protobuf",
    ),
];

const LINES: &[Line<'static>] = &[
    // Paths and parameters.
    ("GET", "/api/v1/namespaces/default/nothings", "", ""),
    ("GET", "/apis/apps/v1/nothings", "", ""),
    ("GET", "/api/v1/pods/x", "", ""),
    ("GET", "/api/v1/namespaces/x/nodes", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps/a/b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?limit=x", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%20in", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%20b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a=b%20c", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=-a", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a=-b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%3Ex", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=a%20in%20(b", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=!", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?labelSelector=%3D", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?fieldSelector=a", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?fieldSelector=spec.x=a", "", ""),
    ("GET", "/api/v1/pods?fieldSelector=spec.x=a", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersion=x", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersion=-1", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersionMatch=Exact", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersionMatch=Foo&resourceVersion=1", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?resourceVersionMatch=Exact&resourceVersion=0", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?sendInitialEvents=true", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=1&sendInitialEvents=true", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=1&resourceVersionMatch=NotOlderThan", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps/none", "", ""),
    ("GET", "/apis/apps/v1/namespaces/default/deployments/none", "", ""),
    ("DELETE", "/api/v1/namespaces", "", ""),
    ("POST", "/api/v1/configmaps", JSON, "{}"),
    ("POST", "/api/v1/namespaces/default/configmaps/a", JSON, "{}"),
    // Creation.
    ("POST", "/api/v1/namespaces/default/configmaps", JSON, r#"{"metadata":{"name":"a"},"data":{"x":"1"}}"#),
    ("POST", "/api/v1/namespaces/default/configmaps", JSON, r#"{"metadata":{"name":"a"}}"#),
    ("POST", "/api/v1/namespaces/default/configmaps", JSON, r#"{"metadata":{}}"#),
    ("POST", "/api/v1/namespaces/default/configmaps", JSON, r#"{"metadata":{"name":"A_b"}}"#),
    (
        "POST",
        "/api/v1/namespaces/default/configmaps",
        JSON,
        r#"{"metadata":{"name":"b","namespace":"other"}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/configmaps",
        JSON,
        r#"{"metadata":{"name":"b","resourceVersion":"5"}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/configmaps",
        JSON,
        r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"b"}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/configmaps",
        JSON,
        r#"{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"b"}}"#,
    ),
    ("POST", "/api/v1/namespaces/default/configmaps", JSON, "{bad"),
    ("POST", "/api/v1/namespaces/default/configmaps", JSON, r#"{"metadata":{"name":"b"},"data":{"x":1}}"#),
    ("POST", "/api/v1/namespaces/default/configmaps?dryRun=foo", JSON, r#"{"metadata":{"name":"b"}}"#),
    (
        "POST",
        "/api/v1/namespaces/default/configmaps?fieldValidation=Foo",
        JSON,
        r#"{"metadata":{"name":"b"}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/configmaps?fieldValidation=Strict",
        JSON,
        r#"{"metadata":{"name":"b"},"foo":1}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/configmaps?dryRun=All&fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"dry"},"data":{"x":"1"}}"#,
    ),
    ("GET", "/api/v1/namespaces/default/configmaps/dry", "", ""),
    (
        "POST",
        "/api/v1/namespaces/default/secrets?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"s","labels":{"a":"b"}},"stringData":{"k":"v"}}"#,
    ),
    (
        "POST",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"l"},"spec":{"holderIdentity":"me","leaseDurationSeconds":40}}"#,
    ),
    (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/new?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"new"},"spec":{"holderIdentity":"me","leaseDurationSeconds":40}}"#,
    ),
    (
        "POST",
        "/apis/apps/v1/namespaces/default/deployments?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    ),
    (
        "POST",
        "/apis/apps/v1/namespaces/default/deployments",
        JSON,
        r#"{"metadata":{"name":"e"},"spec":{"selector":{"matchLabels":{"a":"x"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#,
    ),
    // Updates.
    ("PUT", "/api/v1/namespaces/default/configmaps/a", JSON, r#"{"metadata":{"name":"b"}}"#),
    ("PUT", "/api/v1/namespaces/default/configmaps/a", JSON, r#"{"metadata":{}}"#),
    (
        "PUT",
        "/api/v1/namespaces/default/configmaps/a",
        JSON,
        r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#,
    ),
    ("PUT", "/api/v1/namespaces/default/configmaps/none", JSON, r#"{"metadata":{"name":"none"}}"#),
    (
        "PUT",
        "/api/v1/namespaces/default/configmaps/a?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"a","labels":{"q":"r"}},"data":{"y":"2"}}"#,
    ),
    (
        "PUT",
        "/apis/apps/v1/namespaces/default/deployments/d/status?fieldManager=s",
        JSON,
        r#"{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"other"}]}}},"status":{"replicas":3}}"#,
    ),
    ("GET", "/apis/apps/v1/namespaces/default/deployments/d/scale", "", ""),
    (
        "PATCH",
        "/apis/apps/v1/namespaces/default/deployments/d/scale?fieldManager=m",
        MERGE,
        r#"{"spec":{"replicas":4}}"#,
    ),
    ("PATCH", "/apis/apps/v1/namespaces/default/deployments/d/scale", MERGE, r#"{"spec":{"replicas":-4}}"#),
    (
        "PATCH",
        "/apis/apps/v1/namespaces/default/deployments/d?fieldManager=m",
        STRATEGIC,
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"j"},{"name":"d","image":"k"}]}}}}"#,
    ),
    (
        "PATCH",
        "/apis/apps/v1/namespaces/default/deployments/d",
        MERGE,
        r#"{"spec":{"selector":{"matchLabels":{"z":"z"}}}}"#,
    ),
    ("PATCH", "/api/v1/namespaces/default/configmaps/a", MERGE, r#"{"metadata":{"name":"zz"}}"#),
    ("PATCH", "/api/v1/namespaces/default/configmaps/a", MERGE, r#"{"metadata":{"resourceVersion":"1"}}"#),
    ("PATCH", "/api/v1/namespaces/default/configmaps/a", MERGE, "{"),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/a",
        PATCH,
        r#"[{"op":"test","path":"/data/y","value":"3"}]"#,
    ),
    ("PATCH", "/api/v1/namespaces/default/configmaps/a", PATCH, r#"[{"op":"remove","path":"/data/none"}]"#),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/a?fieldManager=m",
        PATCH,
        r#"[{"op":"replace","path":"/data/y","value":"3"}]"#,
    ),
    ("PATCH", "/api/v1/namespaces/default/configmaps/a?fieldValidation=Strict", MERGE, r#"{"foo":"bar"}"#),
    ("PATCH", "/api/v1/namespaces/default/configmaps/none", MERGE, "{}"),
    ("PATCH", "/api/v1/namespaces/default/configmaps/a?force=true", MERGE, "{}"),
    // Server-side apply.
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap"}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=one",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"1"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"2"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two&force=true",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"2","r":"3"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa"},"data":{"q":"2"}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa","managedFields":[{"manager":"x"}]}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/ssa?fieldManager=two",
        APPLY,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ssa","resourceVersion":"1"}}"#,
    ),
    // Lists and deletions.
    ("GET", "/api/v1/namespaces/default/secrets?labelSelector=a=b", "", ""),
    ("GET", "/api/v1/namespaces/default/secrets?fieldSelector=type=Opaque,metadata.name!=x", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/none", "", ""),
    (
        "DELETE",
        "/api/v1/namespaces/default/configmaps/a",
        JSON,
        r#"{"preconditions":{"resourceVersion":"1"}}"#,
    ),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a", JSON, r#"{"propagationPolicy":"Bogus"}"#),
    (
        "DELETE",
        "/api/v1/namespaces/default/configmaps/a",
        JSON,
        r#"{"propagationPolicy":"Foreground","orphanDependents":true}"#,
    ),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a?dryRun=All", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a?propagationPolicy=Foreground", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a", "", ""),
    (
        "PATCH",
        "/api/v1/namespaces/default/configmaps/a?fieldManager=m",
        MERGE,
        r#"{"metadata":{"finalizers":null}}"#,
    ),
    ("GET", "/api/v1/namespaces/default/configmaps/a", "", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/ssa?gracePeriodSeconds=5", "", ""),
    ("DELETE", "/apis/apps/v1/namespaces/default/deployments/d?propagationPolicy=Orphan", "", ""),
    ("DELETE", "/api/v1/namespaces/default/secrets?labelSelector=a=b", "", ""),
    ("GET", "/api/v1/namespaces/default/secrets?labelSelector=a=b", "", ""),
    // Kinds whose updates create, or must name what they replace, and whose deletion shows what is gone.
    (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/new",
        JSON,
        r#"{"metadata":{"name":"new"},"spec":{"holderIdentity":"you"}}"#,
    ),
    (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/new",
        JSON,
        r#"{"metadata":{"name":"new","resourceVersion":"0"},"spec":{"holderIdentity":"you"}}"#,
    ),
    (
        "PUT",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/r?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}"#,
    ),
    (
        "PUT",
        "/apis/node.k8s.io/v1/runtimeclasses/rc?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"rc"},"handler":"h"}"#,
    ),
    ("PUT", "/apis/node.k8s.io/v1/runtimeclasses/rc", JSON, r#"{"metadata":{"name":"rc"},"handler":"h"}"#),
    (
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"sc"},"provisioner":"x.example/y"}"#,
    ),
    ("DELETE", "/apis/storage.k8s.io/v1/storageclasses/sc", "", ""),
    (
        "POST",
        "/apis/storage.k8s.io/v1/csidrivers?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"cd.example"},"spec":{}}"#,
    ),
    (
        "PUT",
        "/apis/storage.k8s.io/v1/csidrivers/cd.example",
        JSON,
        r#"{"metadata":{"name":"cd.example"},"spec":{}}"#,
    ),
    ("DELETE", "/apis/storage.k8s.io/v1/csidrivers/cd.example", "", ""),
    // Lists of other kinds: only those of custom resources name the type of each item.
    ("GET", "/api/v1/namespaces/default/events", "", ""),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases?limit=1", "", ""),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases?fieldSelector=metadata.name=new", "", ""),
    (
        "POST",
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers?fieldManager=m",
        JSON,
        r#"{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}}"#,
    ),
    ("GET", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", "", ""),
    (
        "POST",
        "/apis/conformance.example/v1/namespaces/default/widgets?fieldManager=m",
        JSON,
        r#"{"kind":"Widget","apiVersion":"conformance.example/v1","metadata":{"name":"w"},"spec":{"size":1}}"#,
    ),
    ("GET", "/apis/conformance.example/v1/namespaces/default/widgets", "", ""),
    ("GET", "/apis/conformance.example/v1beta1/namespaces/default/widgets", "", ""),
    ("GET", "/apis/conformance.example/v1beta1/namespaces/default/widgets/w", "", ""),
    ("DELETE", "/apis/conformance.example/v1/namespaces/default/widgets?labelSelector=!x", "", ""),
];

/// A definition whose two versions differ in nothing but their name.
fn definition() -> Value {
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
            }}},
        })
    };
    json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "widgets.conformance.example"},
        "spec": {
            "group": "conformance.example", "scope": "Namespaced",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}

/// Publishes the definition in the real server.
async fn define(client: &Client) {
    let body = definition().to_string();
    let line: Line<'_> = ("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", JSON, &body);
    assert_eq!(ask(client, &line).await.0, 201);
    let list: Line<'_> = ("GET", "/apis/conformance.example/v1/namespaces/default/widgets", "", "");
    wait_for("the custom kind", Duration::from_secs(30), || async {
        let (code, body) = ask(client, &list).await;
        if code == 200 { Ok(()) } else { Err(format!("{code} {body}")) }
    })
    .await;
}

/// Requests with a form of their own: method, path, `Accept`, content type and body.
const FORMS: &[(&str, &str, &str, &str, &str)] = &[
    ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", TABLE_ALONE, JSON, REVIEW),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1", "application/yaml", "", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1", "text/html", "", ""),
    (
        "GET",
        "/api/v1/namespaces/default/configmaps/none",
        "application/yaml;as=Table;g=meta.k8s.io;v=v1",
        "",
        "",
    ),
    ("GET", "/api/v1/namespaces/default/leases", TABLE, "", ""),
    ("GET", "/api/v1/namespaces/default/secrets", TABLE_ALONE, "", ""),
    ("GET", "/apis/conformance.example/v1/namespaces/default/widgets", TABLE_ALONE, "", ""),
    (
        "GET",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "",
        "",
    ),
    (
        "GET",
        "/apis/conformance.example/v1beta1/namespaces/default/widgets",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "",
        "",
    ),
];

/// A question that is answered and not stored; there are no columns for its answer.
const REVIEW: &str = r#"{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"namespace":"default","verb":"get","resource":"pods"}}}"#;

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json";
const TABLE_ALONE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// Timeouts of requests.
const TIMEOUTS: &[&str] = &["", "0", "0s", "30s", "1m0.5s", "-1s", "nothing", "5", "5q", "1h2", "."];

/// Every combination of the parameters of lists and watches; `{rv}` and `{token}` are each server's own.
fn combinations() -> Vec<String> {
    let base = "/api/v1/namespaces/kube-public/configmaps";
    let mut paths = Vec::new();
    let of = |name: &'static str, values: &'static [&'static str]| {
        std::iter::once(String::new()).chain(values.iter().map(move |value| format!("&{name}={value}")))
    };
    for revision in of("resourceVersion", &["0", "{rv}"]) {
        for mode in of("resourceVersionMatch", &["Exact", "NotOlderThan", "Foo"]) {
            for initial in of("sendInitialEvents", &["true", "false"]) {
                let shared = format!("{revision}{mode}{initial}");
                for bookmarks in of("allowWatchBookmarks", &["true"]) {
                    paths.push(format!("{base}?watch=1&timeoutSeconds=3{shared}{bookmarks}"));
                }
                for limit in of("limit", &["1"]) {
                    for token in of("continue", &["{token}"]) {
                        paths.push(format!(
                            "{base}?{}",
                            format!("{shared}{limit}{token}").trim_start_matches('&')
                        ));
                    }
                }
            }
        }
    }
    paths
}

/// What one server answers to all combinations; they change nothing, so that they are asked together.
async fn ask_combinations(client: &Client) -> Vec<(u16, Value)> {
    for name in ["a", "b", "c"] {
        let body = json!({"metadata": {"name": name}}).to_string();
        let path = "/api/v1/namespaces/kube-public/configmaps?fieldManager=m";
        assert_eq!(ask(client, &("POST", path, JSON, &body)).await.0, 201);
    }
    let first = client
        .request::<Value>(
            Request::get("/api/v1/namespaces/kube-public/configmaps?limit=1").body(Vec::new()).unwrap(),
        )
        .await
        .unwrap();
    let text = |name: &str| first["metadata"][name].as_str().unwrap().to_owned();
    let (revision, token) = (text("resourceVersion"), text("continue"));
    let answers = combinations().into_iter().map(|path| {
        let path = path.replace("{rv}", &revision).replace("{token}", &token);
        async move {
            let (code, mut body) = ask(client, &("GET", &path, "", "")).await;
            if let Value::Array(events) = &mut body {
                // When other bookmarks come is a matter of the clock.
                events.retain(|event| {
                    event["type"] != "BOOKMARK" || event["object"]["metadata"]["annotations"].is_object()
                });
            }
            (code, body)
        }
    });
    // Not all at once: the real server, too, must begin a watch within its timeout.
    futures::stream::iter(answers).buffered(16).collect().await
}

/// Gives a question back as its answer.
struct Echo;

impl Endpoint for Echo {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Result<(StatusCode, Value), ApiError>> {
        Box::pin(async move { Ok((StatusCode::CREATED, request.body)) })
    }
}

async fn ours() -> (Client, CancellationToken) {
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    let stop = CancellationToken::new();
    let kinds = Kinds::builtin().with_crd(&definition()).unwrap();
    let api = ApiServer::builder(Arc::new(store.clone()), Registry::new(kinds))
        .writes(Arc::new(LocalWrites::new(Arc::new(store))))
        .endpoint("authorization.k8s.io", "selfsubjectaccessreviews", "", Arc::new(Echo))
        .stop(stop.clone())
        .build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = Serving { tls: None, stop: stop.clone(), grace: Duration::from_secs(5) };
    tokio::spawn(serve(listener, api, serving));
    (Client::try_from(Config::new(url.parse().unwrap())).unwrap(), stop)
}

async fn ask(client: &Client, line: &Line<'_>) -> (u16, Value) {
    ask_for(client, line, "").await
}

/// The code and the body, of a watch the list of its events.
async fn ask_for(client: &Client, line: &Line<'_>, accept: &str) -> (u16, Value) {
    let (method, path, content_type, body) = *line;
    let mut request = Request::builder().method(method).uri(path).header("user-agent", "conformance/1");
    if !accept.is_empty() {
        request = request.header("accept", accept);
    }
    if !content_type.is_empty() {
        request = request.header("content-type", content_type);
    }
    let body = kube::client::Body::from(body.as_bytes().to_vec());
    let response = client.send(request.body(body).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
    let events = || serde_json::Deserializer::from_slice(&bytes).into_iter().collect::<Result<_, _>>();
    let watched = path.contains("watch=1") && status == 200;
    let value = if watched { events().map(Value::Array) } else { serde_json::from_slice(&bytes) };
    let mut value = value.unwrap_or_else(|_| text());
    normalise(&mut value);
    (status, value)
}

/// Replaces what cannot be equal: identities, revisions, times, continue tokens.
fn normalise(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                let varies = matches!(
                    name.as_str(),
                    "uid" | "resourceVersion" | "creationTimestamp" | "deletionTimestamp" | "time"
                );
                if let (true, Some(text)) = (name == "message", member.as_str()) {
                    // Revisions in texts vary too.
                    let cut = text.find("in record (").unwrap_or(text.len());
                    *member = text[..cut].into();
                }
                let token = name == "continue" && member.as_str().is_some_and(|token| !token.is_empty());
                if token || (varies && !member.is_null()) {
                    *member = json!("*");
                } else {
                    normalise(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        _ => {}
    }
}

/// Notes an answer that differs without a reason, or no longer differs.
fn judge(label: &str, real: &(u16, Value), ours: &(u16, Value), wrong: &mut Vec<String>) {
    let known = DIFFERENCES.iter().any(|(line, _)| *line == label);
    match (real == ours, known) {
        (true, false) => {}
        (false, true) => {
            if real.0 != ours.0 {
                wrong.push(format!("{label}\n  only bodies may differ: real {} ours {}", real.0, ours.0));
            }
        }
        (true, true) => wrong.push(format!("{label}\n  no longer differs; remove it from the list")),
        (false, false) => {
            wrong.push(format!("{label}\n  real {} {}\n  ours {} {}", real.0, real.1, ours.0, ours.1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_kube_apiserver() {
    cluster_or_skip!("apiserve: conformance with kube-apiserver");
    let real = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let real = (real.admin_client().await.unwrap(), real);
    define(&real.0).await;
    let (own, stop) = ours().await;
    let mut wrong = Vec::new();
    for line in LINES {
        let label = format!("{} {} {}", line.0, line.1, line.3);
        let (wanted, found) = (ask(&real.0, line).await, ask(&own, line).await);
        judge(&label, &wanted, &found, &mut wrong);
    }
    for (method, path, accept, content_type, body) in FORMS {
        let line = (*method, *path, *content_type, *body);
        let (wanted, found) = (ask_for(&real.0, &line, accept).await, ask_for(&own, &line, accept).await);
        let label = format!("{method} {path} as {accept}");
        judge(&label, &wanted, &found, &mut wrong);
    }
    for timeout in TIMEOUTS {
        let path = format!("/api/v1/namespaces/default/configmaps/none?timeout={timeout}");
        let line: Line<'_> = ("GET", &path, "", "");
        judge(&path, &ask(&real.0, &line).await, &ask(&own, &line).await, &mut wrong);
    }
    let (wanted, found) = tokio::join!(ask_combinations(&real.0), ask_combinations(&own));
    for ((path, wanted), found) in combinations().iter().zip(&wanted).zip(&found) {
        judge(path, wanted, found, &mut wrong);
    }
    stop.cancel();
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}
