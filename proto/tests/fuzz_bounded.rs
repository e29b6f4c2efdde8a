//! The fuzz targets' bodies on stable Rust, for a bounded number of inputs (see [`tombolo_testkit::fuzz`]).

#[path = "../fuzz/src/bodies.rs"]
#[allow(unreachable_pub)] // public in the fuzz workspace
mod bodies;

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use tombolo_proto::{Lane, package};
use tombolo_testkit::fuzz;

const RUNS: u64 = 20_000;

/// Every fixture as a payload and as a separate message, and all of them as a stream after a chunk size.
fn frames() -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/v1");
    let mut inputs: Vec<Vec<u8>> = fs::read_dir(folder)
        .expect("fixtures")
        .map(|entry| fs::read(entry.expect("an entry").path()).expect("readable"))
        .collect();
    let mut stream = vec![7];
    for (index, frame) in inputs.clone().into_iter().enumerate() {
        let lane = Lane::ALL[index % Lane::ALL.len()];
        inputs.push(package::whole(lane, &frame).expect("small").to_vec());
        let pieces = package::fragments(lane, Bytes::from(frame)).expect("small");
        pieces.for_each(|piece| stream.extend_from_slice(&piece));
    }
    inputs.push(stream);
    inputs
}

#[test]
fn frame() {
    fuzz("frame", RUNS, &frames(), bodies::frame);
}

#[test]
fn kubeedge_json() {
    let documents = [
        r#"{"header":{"msg_id":"3f0c1d2e-0000-4000-8000-00000000000a","timestamp":1786000000000},"route":{"source":"websocket","group":"resource","operation":"keepalive","resource":"node"},"content":"ping"}"#,
        r#"{"header":{"msg_id":"A","parent_msg_id":"G","timestamp":-1,"resourceversion":"4711","sync":true,"type":"channel"},"route":{"source":"edgecontroller","destination":"d","group":"resource","operation":"insert","resource":"default/pod/nginx"},"content":{"kind":"Pod","n":9007199254740993,"s":"\u003c\ud83d\ude00"}} trailing"#,
        r#"{"Header":{"MSG_ID":"\u0041","x":[{}]},"route":null,"CONTENT":"{\"status\":{}}"}"#,
    ];
    let valid: Vec<Vec<u8>> = documents.iter().map(|text| text.as_bytes().to_vec()).collect();
    fuzz("kubeedge_json", RUNS, &valid, bodies::kubeedge_json);
}

/// Complete conversations, one document per line: those of the transcripts, cut and mixed.
#[test]
fn kubeedge_session() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts");
    let mut valid = Vec::new();
    let entries = [folder.join("made"), folder].map(|folder| fs::read_dir(folder).expect("transcripts"));
    let paths = entries.into_iter().flatten().map(|entry| entry.expect("an entry").path());
    for path in paths.filter(|path| path.is_file()) {
        let text = fs::read_to_string(path).expect("readable");
        let frames = text.lines().filter_map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            let frame = value.get("frame")?.to_string();
            // With large objects, mutations would rarely hit the interesting places.
            (frame.len() < 2000).then_some(frame)
        });
        let frames: Vec<String> = frames.collect();
        valid.extend(frames.chunks(6).map(|frames| frames.join("\n").into_bytes()));
    }
    fuzz("kubeedge_session", RUNS, &valid, bodies::kubeedge_session);
}
