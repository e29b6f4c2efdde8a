//! Transcripts written by hand from the protocol: what the recorded ones do not show.

use tombolo_replay::{Rule, Summary, play_cloud};

use crate::mutations::every_change_is_seen;
use crate::{play, transcript};

/// Plays a transcript both ways and alters it; gives what the run as edge and the run as cloud have shown.
async fn played(name: &str) -> (Summary, Summary) {
    let transcript = transcript(&format!("made/{name}.jsonl"));
    let as_cloud = play_cloud(&transcript).unwrap_or_else(|difference| panic!("as cloud: {difference}"));
    let run = play(&transcript).await;
    every_change_is_seen(&transcript, &run.happenings);
    (run.outcome.expect("checked by play"), as_cloud)
}

fn count(summary: &Summary, rule: Rule) -> usize {
    summary.rules.iter().find(|(needed, _)| *needed == rule).map_or(0, |(_, count)| count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_edge_and_an_observer_who_is_late() {
    let (summary, _) = played("older-edge").await;
    // The node as it is after its report, the pod, and its end; nothing of that is excused.
    assert!(summary.matched >= 8, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_asked_for() {
    let (summary, _) = played("volumes").await;
    assert_eq!(count(&summary, Rule::QueryError), 1, "{summary:?}");
    assert!(summary.matched >= 9, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_and_node_tasks_leave_the_rest_alone() {
    let (summary, _) = played("devices-and-tasks").await;
    // The membership, the device and the task are not sent, and the report of the task is refused; the twin's reports are confirmed.
    assert_eq!(count(&summary, Rule::Elsewhere), 4, "{summary:?}");
    assert_eq!(count(&summary, Rule::TwinConfirmed), 2, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_in_one_file() {
    let (summary, _) = played("two-nodes").await;
    // A push that a node's own question overtakes is excused: it holds the object already.
    assert!(summary.matched + summary.excused >= 12, "{summary:?}");
}
