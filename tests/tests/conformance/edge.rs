//! edgecore's local API with a cloud behind it, compared with the API of that kind of cloud. The requests are the same,
//! as far as they apply to an API that forwards writes and answers lists from copies.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::world::Api;

use crate::differences::matches;
use crate::line::Answer;
use crate::lines::combinations;
use crate::target::Target;
use crate::{install_provider, lines, prepare};

/// How long an edge's copy may lag behind its cloud, and the interval between checks.
const BEHIND_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Requests whose answers differ at an edge, and why. A `*` at the beginning or end matches anything.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "GET /api/v1/namespaces/default/configmaps/a/b",
        "subresources that this node cannot serve are rejected without a lookup",
    ),
    (
        r#"PATCH /api/v1/namespaces/default/configmaps/a?fieldValidation=Strict {"foo":"bar"}"#,
        "the refusal quotes the object, and objects at an edge come without managedFields",
    ),
    (
        "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion=99999999",
        "an edge assumes that a revision which it has not reached belongs to another history",
    ),
    (
        "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion=18446744073709551615",
        "an edge assumes that a revision which it has not reached belongs to another history",
    ),
    (
        r#"POST /api/v1/namespaces/default/configmaps {"metadata":{"name":"wire"}} as application/json;as=PartialObjectMetadataList*"#,
        "an unsupported form of the answer is rejected before the cloud answers",
    ),
    (
        "DELETE /api/v1/namespaces/default/configmaps/none as application/json;as=PartialObjectMetadataList*",
        "an unsupported form of the answer is rejected before the cloud answers",
    ),
    ("DELETE /nothing", "paths that are not resources can only be read at an edge"),
    ("POST /version {}", "paths that are not resources can only be read at an edge"),
    (
        r#"PATCH /api/v1/namespaces/default/configmaps/held {"metadata":{"finalizers":null}}"#,
        "a patch that completes a deletion is answered with the edge's last state of the object",
    ),
    (
        "DELETE /api/v1/namespaces/default/configmaps/a",
        "it is being deleted already, and a controller of each cloud completes that in its own time",
    ),
    (
        r#"PATCH /api/v1/namespaces/default/configmaps/a?fieldManager=m {"metadata":{"finalizers":null}}"#,
        "a controller completes the deletion",
    ),
    (
        r#"DELETE /api/v1/namespaces/default/configmaps/a {"preconditions":{"resourceVersion":"1"}}"#,
        "an edge has its own revisions, so it checks the precondition itself",
    ),
];

/// The same with kube-apiserver as the cloud, which has kube-controller-manager beside it.
const REAL_DIFFERENCES: &[(&str, &str)] = &[
    ("*/apis/apps/v1/namespaces/default/*", "controllers write the status"),
    ("GET /api/v1/namespaces/default/events", "controllers write events"),
    (
        "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1 as application/yaml",
        "the real server also offers protobuf",
    ),
    ("GET /version from kubectl/1", "each reports its own build"),
];

fn listed(list: &[(&str, &str)], label: &str) -> bool {
    list.iter().any(|(line, _)| matches(line, label))
}

/// Objects at an edge have no `managedFields`, because no node needs them.
fn plain(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("managedFields");
            members.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

/// The compared parts: replies that pass the hub carry no warnings.
fn compared(answer: Answer) -> (u16, String, Value) {
    let Answer { code, written, mut body, .. } = answer;
    plain(&mut body);
    (code, written, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_at_an_edge_are_those_of_its_cloud() {
    install_provider();
    let (cloud, edge) = (Target::embedded().await.unwrap(), Target::edge(Api::Embedded).await.unwrap());
    compare(&cloud, &edge, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_at_an_edge_of_kube_apiserver_are_those_of_kube_apiserver() {
    cluster_or_skip!("conformance at an edge with kube-apiserver");
    install_provider();
    let (cloud, edge) = (Target::real().await.unwrap(), Target::edge(Api::Real).await.unwrap());
    compare(&cloud, &edge, REAL_DIFFERENCES).await;
}

/// Sends the same requests to both; both must then have stored the same objects.
async fn compare(cloud: &Target, edge: &Target, more: &[(&str, &str)]) {
    tokio::join!(prepare(cloud), prepare(edge));
    let mut wrong = Vec::new();
    let (mut same, mut known) = (0, 0);
    let mut judge = |label: &str, expected: Answer, found: Answer| {
        let (expected, found) = (compared(expected), compared(found));
        match (expected == found, listed(DIFFERENCES, label) || listed(more, label)) {
            (true, _) => same += 1,
            (false, true) => known += 1,
            (false, false) => wrong.push(format!("{label}\n  cloud {expected:?}\n  edge  {found:?}")),
        }
    };
    for line in lines::at_an_edge() {
        let (expected, mut found) = tokio::join!(cloud.ask(&line), edge.ask(&line));
        let known = listed(DIFFERENCES, &line.label) || listed(more, &line.label);
        let deadline = Instant::now() + BEHIND_MAX;
        // Lists come from a copy, which a write reaches a moment later.
        while line.method == "GET"
            && !known
            && compared(found.clone()) != compared(expected.clone())
            && Instant::now() < deadline
        {
            sleep(PAUSE).await;
            found = edge.ask(&line).await;
        }
        judge(&line.label, expected, found);
    }
    let (expected, found) = tokio::join!(combinations::ask(cloud), combinations::ask(edge));
    for ((path, expected), found) in combinations::paths().iter().zip(expected).zip(found) {
        judge(path, expected, found);
    }
    println!("{same} answers are the same, {known} differ by name");
    assert!(
        wrong.is_empty(),
        "{} of {} answers differ:\n{}",
        wrong.len(),
        same + wrong.len(),
        wrong.join("\n")
    );
}
