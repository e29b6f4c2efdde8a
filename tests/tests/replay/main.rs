//! Plays recorded traffic against our cloudcore and against our edges, and proves that a replay can fail.

mod faults;
mod made;
mod mutations;
mod real;
mod recorded;
mod tables;

use std::path::PathBuf;

use faults::{every_faulty_cloud_is_found, every_faulty_edge_is_found};
use mutations::every_change_is_seen;
use tables::check_excuses;
use tombolo_cli::replay::{ReplayTarget, Run, play_edge, read};
use tombolo_replay::{Event, Transcript, play_cloud, with_api_lines};

/// Set to `all` to alter every frame and to try every site of every fault: `cargo xtask mutations`.
const MUTATIONS_VARIABLE: &str = "TOMBOLO_MUTATIONS";

/// Whether everything is tried, instead of some of each form.
fn nightly() -> bool {
    std::env::var(MUTATIONS_VARIABLE).as_deref() == Ok("all")
}

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

/// Plays a transcript against an edge session, and proves that a faulty edge is found.
fn plays_as_cloud(name: &str, recorded: &Transcript) {
    let run = format!("{name} edge");
    let summary = play_cloud(recorded).unwrap_or_else(|difference| panic!("{run}: {difference}"));
    check_excuses(&run, &summary);
    every_faulty_edge_is_found(&run, recorded);
}

/// Plays a transcript against a cloudcore, and proves that a faulty cloud is found.
async fn plays_as_edge(run: &str, recorded: &Transcript) -> (Transcript, Run) {
    let transcript = with_api_lines(recorded);
    let played = play(&transcript).await;
    check_excuses(run, played.outcome.as_ref().expect("checked by play"));
    every_faulty_cloud_is_found(run, &transcript, &played.happenings);
    (transcript, played)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_joins_runs_goes_away_and_converges() {
    const NAME: &str = "kubeedge-join-run-offline";
    let recorded = recorded(&format!("{NAME}.jsonl"));
    plays_as_cloud(NAME, &recorded);
    let (transcript, run) = plays_as_edge(&format!("{NAME} cloud"), &recorded).await;
    assert!(run.preconditions.iter().any(|line| line.contains("node.kubernetes.io/not-ready")));
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_of_an_edge_read_and_watch() {
    const NAME: &str = "kubeedge-metaserver";
    let recorded = recorded(&format!("{NAME}.jsonl"));
    plays_as_cloud(NAME, &recorded);
    let (transcript, run) = plays_as_edge(&format!("{NAME} cloud"), &recorded).await;
    assert!(run.preconditions.iter().any(|line| line.ends_with("watch endpointslices.discovery.k8s.io")));
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_of_an_edge_watch_many_kinds_and_write() {
    const NAME: &str = "odd/kubeedge-many-watches";
    let recorded = recorded(&format!("{NAME}.jsonl"));
    plays_as_cloud(NAME, &recorded);
    plays_as_edge(&format!("{NAME} cloud"), &recorded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_recorded_replays_and_has_no_secret() {
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
