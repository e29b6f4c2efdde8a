//! Transcripts written by hand from the protocol, for cases that the recorded ones lack. What each rule excuses in them is
//! in `excused.txt`, which faults are found in `faults.txt`.

use tombolo_replay::Event;

use crate::mutations::every_change_is_seen;
use crate::{nightly, plays_as_cloud, plays_as_edge, recorded};

/// Plays a transcript both ways, and as it would be without lines of the API.
async fn played(name: &str) {
    let name = &format!("made/{name}");
    let whole = recorded(&format!("{name}.jsonl"));
    let told = matches!(whole.lines.iter().find(|line| line.conn.is_none()), Some(line) if line.number != 0);
    assert!(told, "a made transcript has lines of the API");
    plays_as_cloud(name, &whole);
    let mut bare = whole.clone();
    bare.lines.retain(|line| !matches!(line.event, Event::Api(..)));
    let (transcript, run) = plays_as_edge(&format!("{name} derived"), &bare).await;
    if nightly() {
        every_change_is_seen(&transcript, &run.happenings);
    }
    let (transcript, run) = plays_as_edge(&format!("{name} cloud"), &whole).await;
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_edge_and_late_observer_are_replayed() {
    played("older-edge").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_requested() {
    played("volumes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_and_node_tasks_leave_the_rest_alone() {
    played("devices-and-tasks").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_in_one_file() {
    played("two-nodes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_settings_and_secrets_live_and_end() {
    played("lives-and-ends").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_restarts_and_a_node_that_restarts() {
    played("away").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_for_minutes() {
    played("long-absence").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_refusals_and_late_acknowledgements() {
    played("resends").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_write_and_watch() {
    played("applications").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_list_services_and_request_kinds_that_are_not_served() {
    played("services").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_reports_are_replayed() {
    played("reports").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_about_several_pods_and_requests_without_an_answer() {
    played("several-reports").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_a_volume_of_the_unix_socket() {
    played("certificates").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_that_only_their_frames_tell_apart() {
    played("nodes-by-frames").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_the_api_that_show_the_whole_cluster() {
    played("whole-cluster").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_at_once() {
    played("many").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_that_begins_in_the_middle_of_a_nodes_life() {
    played("middle").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untyped_objects() {
    played("typed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_after_its_node_was_deleted() {
    played("deleted-node").await;
}

/// Only rejections and incomplete lists report the actions of other clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_proved_by_refusals_and_lists_hold_in_the_run() {
    const NAME: &str = "made/refusals";
    let recorded = recorded(&format!("{NAME}.jsonl"));
    plays_as_cloud(NAME, &recorded);
    plays_as_edge(&format!("{NAME} cloud"), &recorded).await;
}
