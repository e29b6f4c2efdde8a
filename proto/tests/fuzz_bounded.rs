//! The fuzz targets' bodies on stable Rust, for a bounded number of inputs: random bytes and damaged valid ones.
//!
//! The seed of a run is printed; `TOMBOLO_FUZZ_SEED=<seed>` repeats it and `TOMBOLO_FUZZ_RUNS` sets the number.

#[path = "../fuzz/src/bodies.rs"]
#[allow(unreachable_pub)] // public in the fuzz workspace
mod bodies;

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use tombolo_proto::{Lane, package};

const RUNS: u64 = 20_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")))
}

/// Calls `body` with mutations of the valid inputs and with plain noise.
fn run(name: &str, valid: &[Vec<u8>], body: fn(&[u8])) {
    let seed = number("TOMBOLO_FUZZ_SEED").unwrap_or_else(|| rand::rng().next_u64());
    println!("{name}: TOMBOLO_FUZZ_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    valid.iter().for_each(|input| body(input));
    for _ in 0..number("TOMBOLO_FUZZ_RUNS").unwrap_or(RUNS) {
        let mut input = match valid.choose(&mut rng) {
            Some(input) if rng.random_ratio(9, 10) => input.clone(),
            _ => noise(&mut rng),
        };
        for _ in 0..rng.random_range(0..6) {
            mutate(&mut rng, &mut input, valid);
        }
        body(&input);
    }
}

fn noise(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..256)];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn mutate(rng: &mut StdRng, input: &mut Vec<u8>, valid: &[Vec<u8>]) {
    let at = rng.random_range(0..=input.len());
    match rng.random_range(0..5) {
        0 => input.truncate(at),
        1 => input.insert(at, rng.random()),
        2 => {
            let piece = valid.choose(rng).expect("there are valid inputs");
            let from = rng.random_range(0..=piece.len());
            input.splice(at..at, piece.iter().skip(from).take(40).copied());
        }
        3 => {
            let end = rng.random_range(at..=input.len());
            input.drain(at..end);
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << rng.random_range(0..8);
            }
        }
    }
}

/// Every fixture as a payload, as a message of its own, and all together as a stream after a chunk size.
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
    run("frame", &frames(), bodies::frame);
}

#[test]
fn kubeedge_json() {
    let documents = [
        r#"{"header":{"msg_id":"3f0c1d2e-0000-4000-8000-00000000000a","timestamp":1786000000000},"route":{"source":"websocket","group":"resource","operation":"keepalive","resource":"node"},"content":"ping"}"#,
        r#"{"header":{"msg_id":"A","parent_msg_id":"G","timestamp":-1,"resourceversion":"4711","sync":true,"type":"channel"},"route":{"source":"edgecontroller","destination":"d","group":"resource","operation":"insert","resource":"default/pod/nginx"},"content":{"kind":"Pod","n":9007199254740993,"s":"\u003c\ud83d\ude00"}} trailing"#,
        r#"{"Header":{"MSG_ID":"\u0041","x":[{}]},"route":null,"CONTENT":"{\"status\":{}}"}"#,
    ];
    let valid: Vec<Vec<u8>> = documents.iter().map(|text| text.as_bytes().to_vec()).collect();
    run("kubeedge_json", &valid, bodies::kubeedge_json);
}

/// Whole conversations, a document a line: those of the transcripts, cut and mixed.
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
            // Large objects make mutations rare where they matter.
            (frame.len() < 2000).then_some(frame)
        });
        let frames: Vec<String> = frames.collect();
        valid.extend(frames.chunks(6).map(|frames| frames.join("\n").into_bytes()));
    }
    run("kubeedge_session", &valid, bodies::kubeedge_session);
}
