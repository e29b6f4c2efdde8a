use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tombolo_proto::frame::{Inventory, InventoryPart, Subscribe};
use tombolo_proto::{HeldState, InventoryEntry, Resource};

use super::*;

fn node() -> NodeId {
    NodeId::parse("edge1").expect("a name")
}

/// Number of lines in the node's only transcript, header included, after these documents were recorded.
async fn recorded(documents: &[String]) -> usize {
    let (folder, tasks) = (tempfile::tempdir().expect("a folder"), Tasks::new());
    let recorder = Recorder::start(folder.path(), &tasks).expect("begun");
    let connection = recorder.kubeedge(&node());
    for document in documents {
        connection.document(Direction::In, &Bytes::from(document.clone()));
    }
    recorder.finish().await;
    let text = std::fs::read_to_string(folder.path().join("edge1.jsonl")).expect("a transcript");
    text.lines().count()
}

#[tokio::test]
async fn message_that_would_expand_too_much_ends_the_recording() {
    let said =
        |content: serde_json::Value| json!({"header": {"msg_id": "a"}, "content": content}).to_string();
    let small = said(json!({"a": [1, 2, 3]}));
    let parts = format!("{{\"\":[{}0]}}", "{\"\":0},".repeat(300_000));
    let whole: serde_json::Value = json!({"data": "x".repeat(2_000_000), "text": "{\"a\":1}"});
    assert_eq!(recorded(&[small.clone(), said(whole), small.clone()]).await, 4, "length alone is no harm");
    let within = json!({"Data": STANDARD.encode(&parts)}).to_string();
    let large = [
        format!("{{\"content\":{parts}}}"),
        said(parts.clone().into()),
        said(json!({"RespBody": STANDARD.encode(&parts)})),
        said(json!({"Option": STANDARD.encode(within)})),
    ];
    for document in large {
        let begin: String = document.chars().take(60).collect();
        assert_eq!(recorded(&[small.clone(), document, small.clone()]).await, 2, "{begin}");
    }
}

#[tokio::test]
async fn queued_frames_count_with_their_size() {
    let (folder, tasks) = (tempfile::tempdir().expect("a folder"), Tasks::new());
    let recorder = Recorder::start(folder.path(), &tasks).expect("begun");
    let connection = recorder.own(&node(), Transport::Quic);
    let entry = |number: usize| {
        let key = ObjectKey::new(Resource::new("", "v1", "pods"), "default", &format!("pod-{number}"));
        InventoryEntry { key, held: HeldState::Absent }
    };
    let entries: Vec<_> = (0..500).map(entry).collect();
    let part = InventoryPart { subscription: SubscriptionId(1), entries: entries.clone(), last: true };
    let subscribe = Subscribe {
        subscription: SubscriptionId(1),
        resource: Resource::new("", "v1", "pods"),
        namespace: "default".to_owned(),
        label_selector: "a=b".to_owned(),
        field_selector: String::new(),
        caller_token: Some("t".repeat(4096)),
        epoch: None,
        inventory: Inventory::Full(entries),
    };
    for frame in [Frame::InventoryPart(part), Frame::Subscribe(subscribe)] {
        let before = recorder.waiting.load(Ordering::Relaxed);
        connection.frame(Instant::now(), Direction::In, Lane::Control, &frame);
        let weight = recorder.waiting.load(Ordering::Relaxed) - before;
        assert!(weight >= codec::encode(&frame, false).len(), "{weight}");
    }
}
