use std::path::PathBuf;

use bytes::BytesMut;
use tombolo_proto::codec;

use super::*;

/// The frames of the protocol's own fixtures, which cover every kind of frame.
fn frames() -> Vec<(String, Wire)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../proto/fixtures/v1");
    let files = std::fs::read_dir(folder).expect("fixtures").map(|entry| entry.expect("an entry").path());
    let read = |path: PathBuf| {
        let bytes = BytesMut::from(&*std::fs::read(&path).expect("readable")).freeze();
        (path.display().to_string(), codec::decode(bytes).expect("a frame"))
    };
    let all: Vec<_> = files.map(read).collect();
    assert!(all.len() > 20);
    all
}

#[test]
fn every_frame_is_written_and_read() {
    for (name, frame) in frames() {
        let rendered = render(3, Lane::Bulk, &frame);
        let text = rendered.as_json().to_string();
        let again = Frame::new(serde_json::from_str(&text).expect("JSON"));
        let (lane, read) = wire(&again).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert_eq!(lane, Lane::Bulk);
        // Members of bodies and the lanes of an acknowledgement may come in another order; the edge's process is not
        // recorded.
        assert_eq!(render(3, Lane::Bulk, &read), rendered, "{name}");
        let may_differ =
            ["upsert", "message", "api", "ack.bin", "instance"].iter().any(|word| name.contains(word));
        if !may_differ {
            assert_eq!(read, frame, "{name}");
        }
    }
}

#[test]
fn transcript_errors_are_named() {
    for (json, wanted) in [
        (json!({"lane": "fast"}), "/lane: must be control, delivery or bulk, not \"fast\""),
        (json!({"lane": "control"}), "/route: no frame has group \"\" and operation \"\""),
        (
            json!({"lane": "control", "header": {"msg_id": "1/ping/x"}, "route": {"group": "session", "operation": "ping"}}),
            "/header/msg_id: invalid digit found in string",
        ),
    ] {
        assert_eq!(wire(&Frame::new(json)).expect_err(wanted).to_string(), wanted);
    }
}
