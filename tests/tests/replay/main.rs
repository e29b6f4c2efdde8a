//! Plays recorded traffic against our cloudcore and against our edges, and proves that a replay can fail.

mod made;
mod mutations;
mod real;
mod recorded;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use mutations::every_change_is_seen;
use tombolo_apiserver::{Embedded, Options};
use tombolo_cli::replay::{ReplayTarget, Run, play_edge, read};
use tombolo_cloud::{App, Kube};
use tombolo_replay::{Event, Rule, Transcript, with_api_lines};
use tombolo_runtime::drain;

/// How long shutdown waits for the parts of a process.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

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

/// Plays a transcript against a cloudcore in this process that records into a folder.
async fn play_recording(transcript: &Transcript, folder: &Path) -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let api = Embedded::start(Options::new(data.path().join("cluster"))).await?;
    let kubeconfig = api.kubeconfig().to_owned();
    let (stop_api, api_drain) = drain::channel(DRAIN_GRACE);
    let api = tokio::spawn(api.run(api_drain));
    let mut config = tombolo_cloud::Config::local(&data.path().join("cloud"));
    config.record = Some(folder.to_owned());
    config.grids.enabled = false;
    let parsed = Kubeconfig::read_from(&kubeconfig)?;
    let parsed = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    let cloud = App::build(config, Kube::from_config(parsed)?).await?;
    let websocket = cloud.websocket_addr().expect("a WebSocket listener").to_string();
    let quic = cloud.quic_addr().map(|address| address.to_string());
    let join = cloud.join_addr().to_string();
    let (stop_cloud, cloud_drain) = drain::channel(DRAIN_GRACE);
    let cloud = tokio::spawn(cloud.run(cloud_drain));
    let target = ReplayTarget::given(&websocket, quic.as_deref(), &join, &kubeconfig).await?;
    play_against(transcript, target).await;
    stop_cloud.start();
    cloud.await??;
    stop_api.start();
    api.await??;
    Ok(())
}

/// Whether the recorder saw the Kubernetes API.
fn has_api_lines(transcript: &Transcript) -> bool {
    transcript.lines.iter().any(|line| matches!(line.event, Event::Api(..)))
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
    play_recording(&origin, folder.path()).await.expect("a recording cloudcore");
    let path = folder.path().join("edge-a.jsonl");
    let text = std::fs::read_to_string(&path).expect("a recording");
    let secret = origin.lines.iter().find_map(|line| match &line.event {
        Event::Api(_, object) if object["kind"] == "Secret" => object["data"]["password"].as_str(),
        _ => None,
    });
    assert!(!text.contains(secret.expect("the transcript has a secret")));
    assert!(!text.contains("eyJhbGciOi"), "a token was recorded");
    let recorded = read(&path).expect("a transcript");
    assert!(has_api_lines(&recorded));
    assert!(recorded.lines.len() > 100, "{} lines", recorded.lines.len());
    // As the command plays it: a person who records observes the API with a separate watch.
    play(&with_api_lines(&recorded)).await;
    tombolo_replay::play_cloud(&recorded).unwrap_or_else(|difference| panic!("{difference}"));
}
