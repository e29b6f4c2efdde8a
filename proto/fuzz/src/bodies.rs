//! What the fuzz targets do with their bytes. The stable tests run the same functions for a bounded time.

use bytes::Bytes;
use tombolo_proto::frame::{Frame, Reply, ReplyBody, RequestBody};
use tombolo_proto::message::Content;
use tombolo_proto::package::{Assembler, Package, Reader};
use tombolo_proto::session::kubeedge::{
    CloudConfig, CloudSession, EdgeConfig, EdgeSession, Ledger, LedgerEntry,
};
use tombolo_proto::session::{CloudEvent, EdgeEvent, Lookup, NodeView};
use tombolo_proto::{
    CloudRevision, Epoch, Moment, NodeId, ObjectKey, Resource, SubscriptionId, Uid, codec, kubeedge,
};

/// KubeEdge's JSON: whatever is understood is written and understood alike again.
pub fn kubeedge_json(data: &[u8]) {
    if let Ok(message) = kubeedge::decode(&Bytes::copy_from_slice(data)) {
        let again = kubeedge::decode(&kubeedge::encode(&message)).expect("own output is understood");
        assert_eq!(again, message);
    }
}

/// A payload, a WebSocket message and a byte stream of dialect `tombolo`.
pub fn frame(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    payload(bytes.clone());
    if let Ok(package) = Package::parse(&bytes) {
        payload(package.payload);
    }
    stream(data);
}

fn payload(bytes: Bytes) {
    if let Ok(frame) = codec::decode(bytes) {
        for zstd in [false, true] {
            let again = codec::decode(codec::encode(&frame, zstd)).expect("own output is understood");
            match (&again, &frame) {
                // What could not be read is written as its place alone.
                (Frame::Undecodable(again), Frame::Undecodable(frame)) => {
                    assert_eq!((again.seq, again.subscription), (frame.seq, frame.subscription));
                }
                _ => assert_eq!(again, frame),
            }
        }
    }
}

/// The first byte says how the stream falls into reads; the result must not depend on it.
fn stream(data: &[u8]) {
    let Some((chunk, stream)) = data.split_first() else { return };
    let whole = frames(stream, stream.len().max(1));
    let pieces = frames(stream, usize::from(*chunk).max(1));
    assert_eq!(whole, pieces);
    whole.into_iter().for_each(payload);
}

fn frames(stream: &[u8], chunk: usize) -> Vec<Bytes> {
    let (mut reader, mut assembler, mut frames) = (Reader::new(), Assembler::new(), Vec::new());
    for bytes in stream.chunks(chunk) {
        reader.push(bytes);
        loop {
            match reader.pop().map(|package| package.map(|package| assembler.accept(package))) {
                Ok(Some(Ok(frame))) => frames.extend(frame.map(|(_, bytes)| bytes)),
                Ok(None) => break,
                Ok(Some(Err(_))) | Err(_) => return frames,
            }
        }
    }
    frames
}

/// Both sessions of dialect `kubeedge` fed with the lines of the input: whatever comes, they answer with documents that
/// can be read, and hold no more than their bounds.
pub fn kubeedge_session(data: &[u8]) {
    let node = NodeId::parse("edge1").expect("a name");
    let epoch = Epoch { cluster: Uid::parse("c").expect("a uid"), generation: 1 };
    let mut ledger = Ledger::default();
    let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "web");
    ledger.insert(key, LedgerEntry { kind: "ConfigMap".into(), uid: None, revision: None }).expect("room");
    let config = CloudConfig::new(node.clone(), epoch, 0, [7; 16]);
    let mut now = Moment::default();
    let mut cloud = CloudSession::new(config, ledger, now, &Nothing);
    let mut edge = EdgeSession::new(EdgeConfig::new(node, 0, [8; 16]), now);
    for line in data.split(|byte| *byte == b'\n').take(64) {
        now = now + std::time::Duration::from_millis(u64::from(line.first().copied().unwrap_or(0)) * 100);
        let document = Bytes::copy_from_slice(line);
        // An error ends the session, and that is all it may do.
        let _ = (cloud.handle_document(now, &document), edge.handle_document(now, &document));
        cloud.handle_timeout(now);
        edge.handle_timeout(now);
        drive_cloud(&mut cloud, now);
        drive_edge(&mut edge, now);
    }
}

fn drive_cloud(cloud: &mut CloudSession, now: Moment) {
    while let Some(event) = cloud.poll_event() {
        if let CloudEvent::Request(request) = event
            && let RequestBody::Message(message) = request.body
        {
            let reply = message.reply(message.header.id.clone(), 0, message.content.clone());
            cloud.reply(Reply { id: request.id, body: ReplyBody::Message(Box::new(reply)) });
        }
    }
    for _ in 0..256 {
        let Some(document) = cloud.poll_transmit(now, &Nothing) else { break };
        kubeedge::decode(&document.to_bytes()).expect("own output is understood");
        cloud.transmitted(now, document.number);
    }
    if let Some(write) = cloud.poll_ledger(now, &Nothing) {
        cloud.ledger_saved(write.number);
    }
    assert!(cloud.stats().in_flight <= 16 && cloud.stats().requests <= 256);
}

fn drive_edge(edge: &mut EdgeSession, now: Moment) {
    while let Some(event) = edge.poll_event() {
        if let EdgeEvent::Deliver { seq, .. } = event {
            edge.committed(now, seq);
        }
    }
    for _ in 0..256 {
        let Some(document) = edge.poll_transmit(now) else { break };
        let message = kubeedge::decode(&document.to_bytes()).expect("own output is understood");
        assert!(message.content != Content::null() || message.header.parent.is_none());
    }
}

/// A cloud in which the node should hold nothing.
struct Nothing;

impl NodeView for Nothing {
    fn wanted(&self, _subscription: SubscriptionId) -> Vec<ObjectKey> {
        Vec::new()
    }

    fn lookup(&self, _subscription: SubscriptionId, _key: &ObjectKey) -> Lookup {
        Lookup::Unwanted(None)
    }

    fn revision(&self, _subscription: SubscriptionId) -> CloudRevision {
        CloudRevision(0)
    }
}
