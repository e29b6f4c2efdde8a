//! Compares the hollow node with the recorded KubeEdge edges.

use tombolo_tests::kubeedge::recorded::{Line, play, read};
use tombolo_tests::source;

fn transcript(name: &str) -> (String, Vec<Line>) {
    read(&source::root().join("tests/transcripts").join(name)).unwrap()
}

#[tokio::test]
async fn a_node_that_joins_runs_and_was_away_speaks_as_recorded() {
    let (node, lines) = transcript("kubeedge-join-run-offline.jsonl");
    play(&node, &lines).await.unwrap();
}

#[tokio::test]
async fn a_node_with_a_local_api_speaks_as_recorded() {
    let (node, lines) = transcript("kubeedge-metaserver.jsonl");
    play(&node, &lines).await.unwrap();
}

/// Each alteration is a difference that the comparison must detect.
#[tokio::test]
async fn a_different_record_is_noticed() {
    type Change = (&'static str, fn(&Line) -> bool, fn(&mut Line));
    let changes: [Change; 4] = [
        (
            "an acknowledgement of another source",
            |line| is_up(line, "response", "default/configmap/app-config"),
            |line| {
                line.frame["route"]["source"] = "edged".into();
            },
        ),
        (
            "a deletion of another incarnation",
            |line| is_up(line, "delete", "default/pod/web-0"),
            |line| {
                line.frame["content"]["preconditions"]["uid"] = "another".into();
            },
        ),
        (
            "a query for something else",
            |line| is_up(line, "query", "default/secret/app-secret"),
            |line| {
                line.frame["route"]["resource"] = "default/secret/another".into();
            },
        ),
        (
            "a deletion that was not sent",
            |line| !line.up && says(line, "delete"),
            |line| {
                line.frame["route"]["operation"] = "update".into();
            },
        ),
    ];
    let (node, lines) = transcript("kubeedge-join-run-offline.jsonl");
    let runs = changes.map(|(what, concerned, change)| {
        let (node, mut lines) = (node.clone(), lines.clone());
        async move {
            change(lines.iter_mut().rfind(|line| concerned(line)).unwrap());
            let outcome = play(&node, &lines).await;
            assert!(outcome.is_err(), "{what}");
            println!("{what}: {:#}", outcome.unwrap_err());
        }
    });
    futures::future::join_all(runs).await;
}

fn is_up(line: &Line, operation: &str, resource: &str) -> bool {
    line.up && says(line, operation) && line.frame["route"]["resource"] == resource
}

fn says(line: &Line, operation: &str) -> bool {
    line.frame["route"]["operation"] == operation
}
