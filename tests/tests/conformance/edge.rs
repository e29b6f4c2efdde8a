//! edgecore's local API with a cloud behind it, compared with the API of that kind of cloud. The requests are the same,
//! as far as they apply to an API that forwards writes and answers lists from copies.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::world::Api;

use crate::differences::at_edge::{DIFFERENCES, OF_REAL};
use crate::differences::{Difference, Judge, Where};
use crate::line::Answer;
use crate::lines::combinations;
use crate::target::Target;
use crate::{install_provider, lines, prepare};

/// How long an edge's copy may lag behind its cloud, and the interval between checks.
const BEHIND_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

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
fn compared(answer: Answer) -> Answer {
    let Answer { code, written, mut body, .. } = answer;
    plain(&mut body);
    Answer { code, warnings: Vec::new(), written, body }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_at_an_edge_equal_those_of_its_cloud() {
    install_provider();
    let (cloud, edge) = (Target::embedded().await.unwrap(), Target::edge(Api::Embedded).await.unwrap());
    compare(&cloud, &edge, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_at_an_edge_equal_those_of_kube_apiserver() {
    cluster_or_skip!("conformance at an edge with kube-apiserver");
    install_provider();
    let (cloud, edge) = (Target::real().await.unwrap(), Target::edge(Api::Real).await.unwrap());
    compare(&cloud, &edge, OF_REAL).await;
}

/// Sends the same requests to both; both must then have stored the same objects.
async fn compare(cloud: &Target, edge: &Target, more: &'static [Difference]) {
    tokio::join!(prepare(cloud), prepare(edge));
    let mut judge = Judge::new(&[DIFFERENCES, more]);
    for line in lines::at_an_edge() {
        let (expected, found) = tokio::join!(cloud.ask(&line), edge.ask(&line));
        let (expected, mut found) = (compared(expected), compared(found));
        let deadline = Instant::now() + BEHIND_MAX;
        // Lists come from a copy, which a write reaches a moment later.
        while line.method == "GET"
            && !judge.accepts(Where::Edge, &line.label, &expected, &found)
            && Instant::now() < deadline
        {
            sleep(PAUSE).await;
            found = compared(edge.ask(&line).await);
        }
        judge.compare(Where::Edge, &line.label, &expected, &found);
    }
    let (expected, found) = tokio::join!(combinations::ask(cloud), combinations::ask(edge));
    for ((path, expected), found) in combinations::paths().iter().zip(expected).zip(found) {
        judge.compare(Where::Edge, path, &compared(expected), &compared(found));
    }
    let wrong = judge.verdict();
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}
