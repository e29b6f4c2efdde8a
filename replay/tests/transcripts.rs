//! Replays recorded traffic of KubeEdge, as far as this works without a cluster.

use std::path::{Path, PathBuf};

use serde_json::json;
use tombolo_replay::{Event, Rule, Transcript, Verb, play_cloud, with_api_lines};

/// The transcripts in a folder and its subfolders, except those that were written by hand.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).expect("transcripts").map(|entry| entry.expect("an entry").path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    files.extend(folders.iter().filter(|one| !one.ends_with("made")).flat_map(|one| self::files(one)));
    files
}

fn transcripts() -> Vec<(String, Transcript)> {
    let files = files(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("readable");
        (path.display().to_string(), Transcript::parse(&text).expect("a transcript"))
    };
    let all: Vec<_> = files.into_iter().map(read).collect();
    assert!(all.len() >= 3);
    all
}

#[test]
fn edge_session_sends_the_frames_of_the_recorded_kubeedge_edge() {
    for (name, transcript) in transcripts() {
        let summary = play_cloud(&transcript).unwrap_or_else(|difference| panic!("{name}: {difference}"));
        assert!(summary.matched > 40, "{name}: {summary:?}");
    }
}

#[test]
fn lines_of_the_api_are_derived_once() {
    for (name, transcript) in transcripts() {
        let with = with_api_lines(&transcript);
        assert!(with.lines.iter().any(|line| matches!(line.event, Event::Api(..))), "{name}");
        // A second pass may refine the order by each other's versions.
        let again = with_api_lines(&with);
        assert_eq!(again.lines.len(), with.lines.len(), "{name}");
        assert!(again.lines.iter().all(|line| with.lines.contains(line)), "{name}");
    }
}

fn line(
    at_us: u64,
    dir: &str,
    id: &str,
    parent: &str,
    operation: &str,
    resource: &str,
    content: &serde_json::Value,
) -> String {
    let mut header = json!({"msg_id": id, "timestamp": 1});
    if !parent.is_empty() {
        header["parent_msg_id"] = parent.into();
    }
    let (source, group) = if dir == "up" { ("edged", "meta") } else { ("edgecontroller", "resource") };
    let route = json!({"source": source, "group": group, "operation": operation, "resource": resource});
    json!({"at_us": at_us, "conn": 1, "dir": dir, "frame": {"header": header, "route": route, "content": content}}).to_string()
}

fn object(uid: &str, revision: &str, data: &str) -> serde_json::Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a": data},
        "metadata": {"name": "c", "namespace": "n", "uid": uid, "resourceVersion": revision}})
}

#[test]
fn derivation_follows_its_rules() {
    let lines = [
        "{\"node\":\"e\"}".to_owned(),
        line(1, "up", "q1", "", "query", "n/configmap/c", &json!(null)),
        line(2, "up", "q2", "", "query", "n/lease/l", &json!(null)),
        line(3, "down", "d1", "q1", "response", "n/configmap/c", &object("u1", "5", "x")),
        line(4, "down", "d2", "", "update", "n/configmap/c", &object("u1", "7", "y")),
        line(5, "up", "q3", "", "query", "n/configmap/c", &json!(null)),
        line(6, "down", "d3", "q3", "response", "n/configmap/c", &object("u1", "5", "x")),
        line(7, "down", "d4", "", "insert", "n/configmap/c", &object("u2", "9", "z")),
        line(8, "down", "d5", "", "delete", "n/configmap/c", &object("u2", "10", "z")),
    ];
    let with = with_api_lines(&Transcript::parse(&lines.join("\n")).expect("a transcript"));
    let told: Vec<String> = with
        .lines
        .iter()
        .map(|line| match &line.event {
            Event::Api(verb, object) => {
                format!("{} {}", verb.word(), object["metadata"]["resourceVersion"].as_str().unwrap_or("?"))
            }
            Event::Up(frame) | Event::Down(frame) => frame.id().to_owned(),
        })
        .collect();
    // A lagging cache (d3) does not restore an older version; another uid is another object.
    let expected = [
        "create 5", "q1", "q2", "d1", "update 7", "d2", "q3", "d3", "delete 7", "create 9", "d4", "delete 9",
        "d5",
    ];
    assert_eq!(told, expected);
    assert!(with.lines.iter().any(|line| matches!(line.event, Event::Api(Verb::Create, _))));
}

#[test]
fn the_documents_show_every_rule() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    let text = std::fs::read_to_string(path).expect("docs/protocol.md");
    assert!(text.contains(&Rule::table()), "docs/protocol.md must contain:\n{}", Rule::table());
}
