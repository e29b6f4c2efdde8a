//! Recordings of live nodes by cloudcore can be replayed both ways.

use std::path::Path;

use kube::api::DeleteParams;
use tombolo_cli::replay::{ReplayTarget, play_edge, read};
use tombolo_replay::{Event, Frame, Transcript, play_cloud, with_api_lines};
use tombolo_testkit::{cluster_or_skip, wait_for};
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, DEADLINE, Transport, World, kubectl};

use crate::has_api_lines;
use crate::mutations::every_change_is_seen;

const NODE: &str = "edge-1";

/// A value that must not appear in any recording.
const SECRET: &str = "hunter2hunter2";

/// A node joins, runs a pod, receives changes, disconnects and returns, and its pod is deleted with a grace period.
async fn live(transport: Transport, folder: &Path) {
    let mut world = World::start(Api::Embedded, transport).await.unwrap();
    world.record_into(folder);
    world.kill_cloud();
    world.start_cloud().await.unwrap();
    world.start_edge(NODE).await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    objects.config_map("settings", "first").await.unwrap();
    objects.secret("password", SECRET).await.unwrap();
    wait_for("the node to be registered", DEADLINE, async || {
        world.kubectl(&["get", "node", NODE]).map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    objects.accepted_pod("web", NODE, &["settings"], &["password"]).await;
    reported(&world, "web").await;
    locally(&world, "configmap/settings", "first").await;
    objects.config_map("settings", "second").await.unwrap();
    locally(&world, "configmap/settings", "second").await;

    world.kill_edge(NODE);
    objects.config_map("settings", "third").await.unwrap();
    objects.pod("api", NODE, &["settings"], &[]).await.unwrap();
    world.start_edge(NODE).await.unwrap();
    locally(&world, "configmap/settings", "third").await;
    reported(&world, "api").await;

    objects.pods().delete("web", &DeleteParams::default()).await.unwrap();
    wait_for("the pod to be gone", DEADLINE, async || match objects.pods().get_opt("web").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    wait_for("the pod to be gone at the edge", DEADLINE, async || match at_edge(&world, "pod/web") {
        Err(error) if error.contains("NotFound") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // cloudcore is killed with the world, and unwritten lines are lost then.
    wait_for("the deletion of the pod to be recorded", DEADLINE, async || {
        let transcript = read(&folder.join(name(transport))).map_err(|error| error.to_string())?;
        match (tells_the_end_of_the_pod(&transcript), unanswered(&transcript)) {
            (true, None) => Ok(()),
            (false, _) => Err("no line has it".to_owned()),
            (true, Some(group)) => Err(format!("{group} is not answered")),
        }
    })
    .await;
}

/// File name of the node's recording.
fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::WebSocket => "edge-1.tombolo-websocket.jsonl",
        Transport::Quic => "edge-1.tombolo-quic.jsonl",
    }
}

fn tells_the_end_of_the_pod(transcript: &Transcript) -> bool {
    let is_pod_gone = |line: &tombolo_replay::Line| matches!(&line.event, Event::Api(tombolo_replay::Verb::Delete, object) if object["metadata"]["name"] == "web");
    transcript.lines.iter().any(is_pod_gone)
}

/// A subscription of the last connection without a recorded answer: a replay cannot distinguish an answer after the end
/// of the recording from a missing answer.
fn unanswered(transcript: &Transcript) -> Option<String> {
    let last = transcript.lines.iter().filter_map(|line| line.conn).max();
    let lines = || transcript.lines.iter().filter(|line| line.conn == last);
    let answered = |asked: &Frame| {
        lines().any(|line| {
            matches!(&line.event, Event::Down(frame)
                if frame.group() == asked.group() && ["closed", "caughtup"].contains(&frame.operation()))
        })
    };
    lines().find_map(|line| match &line.event {
        Event::Up(frame) if frame.operation() == "subscribe" && !answered(frame) => {
            Some(frame.group().to_owned())
        }
        _ => None,
    })
}

fn at_edge(world: &World, resource: &str) -> Result<String, String> {
    let kubeconfig = world.edge_kubeconfig(NODE).map_err(|error| error.to_string())?;
    let found = kubectl(&kubeconfig, &["get", resource, "-n", NAMESPACE, "-o", "jsonpath={.data}"]);
    found.map_err(|error| error.to_string())
}

async fn locally(world: &World, resource: &str, part: &str) {
    wait_for(&format!("{resource} with {part}"), DEADLINE, async || match at_edge(world, resource) {
        Ok(found) if found.contains(part) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

async fn reported(world: &World, pod: &str) {
    let arguments = ["get", "pod", pod, "-n", NAMESPACE, "-o", "jsonpath={.status.phase}"];
    wait_for(&format!("{pod} to run"), DEADLINE, async || match world.kubectl(&arguments) {
        Ok(phase) if phase == "Running" => Ok(()),
        other => Err(format!("{other:?}; the edge says {}", world.edge_log(NODE))),
    })
    .await;
}

fn check(folder: &Path, name: &str) -> Transcript {
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path).expect("a recording");
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, SECRET);
    assert!(!text.contains(SECRET) && !text.contains(&encoded), "a secret was recorded");
    assert!(!text.contains("eyJhbGciOi"), "a token was recorded");
    if let Ok(kept) = std::env::var("TOMBOLO_KEEP_RECORDINGS") {
        std::fs::copy(&path, Path::new(&kept).join(name)).expect("a copy");
    }
    let transcript = read(&path).expect("a transcript");
    assert!(has_api_lines(&transcript));
    let connections: std::collections::BTreeSet<u64> =
        transcript.lines.iter().filter_map(|line| line.conn).collect();
    assert!(connections.len() >= 2, "{connections:?}");
    assert!(tells_the_end_of_the_pod(&transcript));
    transcript
}

async fn plays_both_ways(transcript: &Transcript) {
    let summary = play_cloud(transcript).unwrap_or_else(|difference| panic!("as cloud: {difference}"));
    assert!(summary.matched > 20, "{summary:?}");
    let transcript = with_api_lines(transcript);
    let target = ReplayTarget::start().await.expect("a cloudcore");
    let run = play_edge(&transcript, &target).await.expect("a run");
    target.stop().await;
    let summary = run.outcome.unwrap_or_else(|difference| panic!("as edge: {difference}"));
    println!("{summary:?}");
    assert!(summary.matched > 20, "{summary:?}");
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_dialect_tombolo_over_websocket() {
    cluster_or_skip!("a_node_of_dialect_tombolo_over_websocket");
    let folder = tempfile::tempdir().expect("a folder");
    live(Transport::WebSocket, folder.path()).await;
    plays_both_ways(&check(folder.path(), name(Transport::WebSocket))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_dialect_tombolo_over_quic() {
    cluster_or_skip!("a_node_of_dialect_tombolo_over_quic");
    let folder = tempfile::tempdir().expect("a folder");
    live(Transport::Quic, folder.path()).await;
    plays_both_ways(&check(folder.path(), name(Transport::Quic))).await;
}
