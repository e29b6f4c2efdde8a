//! Plays recorded traffic against our cloudcore and against our edges, and proves that a replay can fail.

mod made;
mod mutations;
mod real;
mod recorded;

use std::path::PathBuf;

use mutations::every_change_is_seen;
use tombolo_cli::replay::{ReplayTarget, Run, play_edge, read};
use tombolo_replay::{Event, Rule, Transcript, with_api_lines};

/// A transcript as in its file.
fn recorded(name: &str) -> Transcript {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("transcripts").join(name);
    read(&path).expect("a transcript")
}

/// A transcript with its lines of the API.
fn transcript(name: &str) -> Transcript {
    with_api_lines(&recorded(name))
}

/// Plays a transcript against its own cloudcore.
async fn play(transcript: &Transcript) -> Run {
    play_against(transcript, ReplayTarget::start().await.expect("an API server and a cloudcore")).await
}

async fn play_against(transcript: &Transcript, target: ReplayTarget) -> Run {
    let run = play_edge(transcript, &target).await.expect("a run");
    target.stop().await;
    if let Err(difference) = &run.outcome {
        panic!("{difference}");
    }
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_node_joins_runs_disconnects_and_converges() {
    let transcript = transcript("kubeedge-join-run-offline.jsonl");
    let run = play(&transcript).await;
    assert!(run.preconditions.iter().any(|line| line.contains("node.kubernetes.io/not-ready")));
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_of_an_edge_read_and_watch() {
    let transcript = transcript("kubeedge-metaserver.jsonl");
    let run = play(&transcript).await;
    assert!(run.preconditions.iter().any(|line| line.ends_with("watch endpointslices.discovery.k8s.io")));
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_of_an_edge_watch_many_kinds_and_write() {
    let recorded = recorded("odd/kubeedge-many-watches.jsonl");
    tombolo_replay::play_cloud(&recorded).unwrap_or_else(|difference| panic!("as cloud: {difference}"));
    let summary = play(&with_api_lines(&recorded)).await.outcome.expect("checked by play");
    let count =
        |wanted: Rule| summary.rules.iter().find(|(rule, _)| *rule == wanted).map_or(0, |(_, count)| count);
    assert!(count(Rule::WatchWord) > 0 && count(Rule::OlderTypes) > 0, "{summary:?}");
    // A pod's labels twice, and a Lease of the pod's own.
    assert_eq!(count(Rule::NodeRestriction), 3, "{summary:?}");
    assert!(summary.matched > 120, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_replay_and_contain_no_secret() {
    let origin = transcript("kubeedge-join-run-offline.jsonl");
    let folder = tempfile::tempdir().expect("a folder");
    play_against(&origin, ReplayTarget::start_recording(folder.path()).await.expect("a cloudcore")).await;
    let path = folder.path().join("edge-a.jsonl");
    let text = std::fs::read_to_string(&path).expect("a recording");
    let secret = origin.lines.iter().find_map(|line| match &line.event {
        Event::Api(_, object) if object["kind"] == "Secret" => object["data"]["password"].as_str(),
        _ => None,
    });
    assert!(!text.contains(secret.expect("the transcript has a secret")));
    assert!(!text.contains("eyJhbGciOi"), "a token was recorded");
    let recorded = read(&path).expect("a transcript");
    assert!(recorded.has_api_lines());
    assert!(recorded.lines.len() > 100, "{} lines", recorded.lines.len());
    // As the command plays it: a person who records observes the API with a separate watch.
    play(&with_api_lines(&recorded)).await;
    tombolo_replay::play_cloud(&recorded).unwrap_or_else(|difference| panic!("{difference}"));
}
