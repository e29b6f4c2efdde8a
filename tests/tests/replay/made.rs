//! Transcripts written by hand from the protocol, for cases that the recorded ones lack.

use tombolo_replay::{Event, Rule, Summary, Transcript, play_cloud, with_api_lines};

use crate::mutations::every_change_is_seen;
use crate::{play, recorded};

/// Plays a transcript both ways and alters it, then plays it again as it would be without lines of the API. Returns the
/// results of the run as edge and of the run as cloud.
async fn played(name: &str) -> (Summary, Summary) {
    let whole = recorded(&format!("made/{name}.jsonl"));
    let told = matches!(whole.lines.iter().find(|line| line.conn.is_none()), Some(line) if line.number != 0);
    assert!(told, "a made transcript has lines of the API");
    let mut bare = whole.clone();
    bare.lines.retain(|line| !matches!(line.event, Event::Api(..)));
    let derived = both_ways(&bare).await;
    let summaries = both_ways(&whole).await;
    assert!(summaries.0.matched > 0 && derived.0.matched > 0, "{summaries:?} {derived:?}");
    summaries
}

async fn both_ways(recorded: &Transcript) -> (Summary, Summary) {
    let as_cloud = play_cloud(recorded).unwrap_or_else(|difference| panic!("as cloud: {difference}"));
    let transcript = with_api_lines(recorded);
    let run = play(&transcript).await;
    every_change_is_seen(&transcript, &run.happenings);
    (run.outcome.expect("checked by play"), as_cloud)
}

fn count(summary: &Summary, rule: Rule) -> usize {
    summary.rules.iter().find(|(needed, _)| *needed == rule).map_or(0, |(_, count)| count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_edge_and_late_observer_are_replayed() {
    let (summary, _) = played("older-edge").await;
    // The node after its report, the pod, and the pod's end; none of these is excused.
    assert!(summary.matched >= 8, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_requested() {
    let (summary, _) = played("volumes").await;
    assert_eq!(count(&summary, Rule::QueryError), 1, "{summary:?}");
    assert!(summary.matched >= 9, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_and_node_tasks_leave_the_rest_alone() {
    let (summary, _) = played("devices-and-tasks").await;
    // The membership, the device and the task are not sent, and the reports of the task and of the twin are rejected.
    assert_eq!(count(&summary, Rule::Elsewhere), 4, "{summary:?}");
    assert_eq!(count(&summary, Rule::TwinConfirmed), 2, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_in_one_file() {
    let (summary, _) = played("two-nodes").await;
    // A push that a node's own query overtakes is excused: the node holds the object already.
    assert!(summary.matched + summary.excused >= 12, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_settings_and_secrets_live_and_end() {
    let (summary, _) = played("lives-and-ends").await;
    // An optional ConfigMap that does not exist.
    assert_eq!(count(&summary, Rule::QueryError), 1, "{summary:?}");
    assert!(summary.matched >= 26, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_restarts_and_a_node_that_restarts() {
    let (summary, _) = played("away").await;
    // The answer that was lost with its connection.
    assert!(count(&summary, Rule::RecordingEnds) <= 1, "{summary:?}");
    assert!(summary.matched >= 26, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_for_minutes() {
    let (summary, _) = played("long-absence").await;
    assert!(summary.matched >= 15, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_refusals_and_late_acknowledgements() {
    let (summary, as_cloud) = played("resends").await;
    assert_eq!(count(&summary, Rule::Repeated), 3, "{summary:?}");
    // Each copy is acknowledged, and the rejected delivery once it can be stored.
    assert_eq!(as_cloud.excused, 0, "{as_cloud:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_write_and_watch() {
    let (summary, _) = played("applications").await;
    assert!(summary.matched >= 18, "{summary:?}");
    assert!(count(&summary, Rule::ClusterDocuments) >= 2, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_list_services_and_request_kinds_that_are_not_served() {
    let (summary, _) = played("services").await;
    assert_eq!(count(&summary, Rule::LocalSlices), 1, "{summary:?}");
    // A list and a watch of kinds that are not served.
    assert_eq!(count(&summary, Rule::WholeStatus), 2, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_reports_are_replayed() {
    let (summary, _) = played("reports").await;
    // One of the bus and one of a policy.
    assert_eq!(count(&summary, Rule::Elsewhere), 2, "{summary:?}");
    assert!(summary.matched >= 6, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_about_several_pods_and_requests_without_an_answer() {
    let (summary, _) = played("several-reports").await;
    assert_eq!(count(&summary, Rule::HubNotice), 1, "{summary:?}");
    assert!(count(&summary, Rule::Answered) >= 2, "{summary:?}");
    assert_eq!(count(&summary, Rule::Repeated), 1, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_a_volume_of_the_unix_socket() {
    let (summary, as_cloud) = played("certificates").await;
    assert!(summary.matched >= 4, "{summary:?}");
    assert!(count(&summary, Rule::Requester) >= 1, "{summary:?}");
    assert_eq!(count(&as_cloud, Rule::Elsewhere), 1, "{as_cloud:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_only_their_frames_tell_apart() {
    let (summary, _) = played("nodes-by-frames").await;
    assert!(summary.matched >= 16, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_the_api_that_show_the_whole_cluster() {
    let (summary, _) = played("whole-cluster").await;
    assert!(summary.matched >= 12, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_at_once() {
    let (summary, _) = played("many").await;
    assert!(summary.matched >= 36, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_that_begins_in_the_middle_of_a_nodes_life() {
    let (summary, as_cloud) = played("middle").await;
    // A KubeEdge cloud answers only the last of three equal queries; ours answers each of them.
    assert_eq!(count(&summary, Rule::Answered), 2, "{summary:?}");
    assert_eq!(count(&as_cloud, Rule::SharedQuery), 2, "{as_cloud:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untyped_objects() {
    let (summary, as_cloud) = played("typed").await;
    // A Node, a Service, a slice, a Lease, a Deployment and an object of a custom kind, inserted, updated and deleted.
    assert!(count(&summary, Rule::NamesKind) >= 9, "{summary:?}");
    // The Lease, whose path has the plural.
    assert!(count(&summary, Rule::WatchWord) >= 1, "{summary:?}");
    assert_eq!((count(&summary, Rule::NotServed), count(&as_cloud, Rule::NotServed)), (0, 0), "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_after_its_node_was_deleted() {
    let (summary, _) = played("deleted-node").await;
    assert_eq!(count(&summary, Rule::JoinsAgain), 1, "{summary:?}");
    assert!(summary.matched >= 15, "{summary:?}");
}

/// Only rejections and incomplete lists report the actions of other clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_proved_by_refusals_and_lists_hold_in_the_run() {
    let recorded = recorded("made/refusals.jsonl");
    play_cloud(&recorded).unwrap_or_else(|difference| panic!("as cloud: {difference}"));
    let summary = play(&with_api_lines(&recorded)).await.outcome.expect("checked by play");
    assert!(summary.matched >= 30, "{summary:?}");
}
