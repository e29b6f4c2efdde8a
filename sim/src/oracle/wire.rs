//! Reads the bytes of both dialects, written from docs/protocol.md and `proto/protocol/tombolo.proto`.
//!
//! A frame is read as far as the rules ask about it. What cannot be read is [`SeenFrame::Undecodable`], which is no
//! violation by itself: a hostile node sends anything.

mod documents;
mod fields;

use serde_json::Value;

pub use documents::document;

use self::documents::objects_in;
use self::fields::{Fields, UnreadableField};
use super::content;
use crate::observation::{ObjectId, SeenChange, SeenDelivery, SeenFrame, SeenVersion, Selection};

/// Bytes of a package header.
const HEADER_LEN: usize = 10;

/// Puts the packages of one direction of one connection together.
#[derive(Debug, Default)]
pub struct PackageReader {
    unread: Vec<u8>,
    lanes: [Vec<u8>; 4],
}

/// One frame: its lane, the length of its payload, and the frame.
pub type FrameOfLane = (u8, usize, SeenFrame);

impl PackageReader {
    /// Reads what arrived: one message of WebSocket, or any part of a stream of QUIC. Streams need a reader each.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<FrameOfLane> {
        self.unread.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some((header, rest)) = self.unread.split_first_chunk::<HEADER_LEN>() {
            let length = [header[6], header[7], header[8], header[9]];
            let length = u32::from_be_bytes(length) as usize;
            if header[0] != 1 || header[4] != 1 {
                let reason = format!("package header {header:02x?}");
                frames.push((0, self.unread.len(), SeenFrame::Undecodable { reason }));
                self.unread.clear();
                break;
            }
            let Some(piece) = rest.get(..length) else { break };
            let (more, lane) = (header[5] & 1 == 1, (header[5] >> 1) & 3);
            let whole = &mut self.lanes[usize::from(lane)];
            whole.extend_from_slice(piece);
            self.unread.drain(..HEADER_LEN + length);
            if !more {
                let payload = std::mem::take(&mut self.lanes[usize::from(lane)]);
                frames.push((lane, payload.len(), frame(&payload)));
            }
        }
        frames
    }
}

/// Reads the payload of a whole frame of dialect `tombolo`.
#[must_use]
pub fn frame(payload: &[u8]) -> SeenFrame {
    read_frame(payload).unwrap_or_else(|error| SeenFrame::Undecodable { reason: error.to_string() })
}

fn read_frame(payload: &[u8]) -> Result<SeenFrame, UnreadableField> {
    let outer = Fields::read(payload)?;
    let Some((kind, body)) = outer.only() else { return Err(UnreadableField("not one frame")) };
    let fields = Fields::read(body)?;
    Ok(match kind {
        1 => SeenFrame::Deliver(delivery(&fields)?),
        2 => {
            let lanes = fields.messages(1)?;
            SeenFrame::Ack {
                lanes: lanes.iter().map(|lane| (small(lane.number(1)), lane.number(2))).collect(),
            }
        }
        3..=6 | 20 => SeenFrame::Keepalive,
        7 => SeenFrame::Request { id: fields.number(1), what: asked(&fields)?, token: fields.text(5) },
        8 => reply(&fields)?,
        9 => SeenFrame::Refuse { lane: small(fields.number(1)), seq: fields.number(2) },
        10 => SeenFrame::CaughtUp { subscription: short(fields.number(1)), epoch: epoch(&fields, 2)? },
        11 => {
            let has_list = fields.bytes(10).is_none();
            SeenFrame::Hello { inventory: if has_list { Some(entries(&fields, 9)?) } else { None } }
        }
        12 => SeenFrame::Welcome { epoch: epoch(&fields, 2)? },
        13 => SeenFrame::InventoryRequest { subscription: short(fields.number(1)) },
        14 => SeenFrame::InventoryPart {
            subscription: short(fields.number(1)),
            objects: entries(&fields, 2)?,
            last: fields.number(3) == 1,
        },
        15 => subscribe(&fields),
        16 => SeenFrame::Unsubscribe { subscription: short(fields.number(1)) },
        17 => SeenFrame::SubscriptionClosed { subscription: short(fields.number(1)) },
        18 => SeenFrame::Goodbye { reason: fields.number(1) },
        _ => return Err(UnreadableField("a kind of a later version")),
    })
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn delivery(fields: &Fields<'_>) -> Result<SeenDelivery, UnreadableField> {
    let key = fields.message(4)?.ok_or(UnreadableField("a delivery without object"))?;
    let object = object_id(&key);
    let version = fields.message(5)?.unwrap_or_default();
    let (uid, revision) = (uid(&version, 1, 2), version.number(3));
    let change = match fields.number(3) {
        1 => SeenChange::Upsert(SeenVersion { uid, revision, ..body_version(&object, fields)? }),
        2 => SeenChange::Delete,
        3 => SeenChange::Absent,
        4 => SeenChange::Adopt { uid, revision },
        5 => SeenChange::Unreadable,
        _ => return Err(UnreadableField("an unknown change")),
    };
    let dependencies = fields.messages(6)?.iter().map(object_id).collect();
    Ok(SeenDelivery {
        subscription: short(fields.number(2)),
        seq: fields.number(1),
        object,
        change,
        dependencies,
    })
}

fn body_version(object: &ObjectId, fields: &Fields<'_>) -> Result<SeenVersion, UnreadableField> {
    let body = fields.bytes(15).unwrap_or_default();
    let length = usize::try_from(fields.number(8)).unwrap_or(usize::MAX);
    let unpacked;
    let body = match fields.number(7) {
        0 => body,
        1 if length <= 32 << 20 => {
            unpacked =
                zstd::bulk::decompress(body, length).map_err(|_| UnreadableField("a compressed body"))?;
            &unpacked[..]
        }
        _ => return Err(UnreadableField("an unknown encoding")),
    };
    let value: Value = serde_json::from_slice(body).map_err(|_| UnreadableField("a body that is no JSON"))?;
    Ok(content::version(&object.resource, &value))
}

/// A UID in the usual form is 16 bytes, any other one text.
fn uid(fields: &Fields<'_>, bytes: u32, text: u32) -> String {
    match fields.bytes(bytes).filter(|bytes| !bytes.is_empty()) {
        Some(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
            format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
        }
        None => fields.text(text).unwrap_or_default(),
    }
}

fn object_id(key: &Fields<'_>) -> ObjectId {
    let text = |number| key.text(number).unwrap_or_default();
    let resource = resource(&text(1), &text(3));
    ObjectId { resource, namespace: text(4), name: text(5) }
}

fn resource(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// The objects of an inventory of which a version is held. Known absences are not listed.
fn entries(fields: &Fields<'_>, number: u32) -> Result<Vec<ObjectId>, UnreadableField> {
    let mut held = Vec::new();
    for entry in fields.messages(number)? {
        if entry.bytes(2).is_some()
            && let Some(key) = entry.message(1)?
        {
            held.push(object_id(&key));
        }
    }
    Ok(held)
}

fn epoch(fields: &Fields<'_>, number: u32) -> Result<String, UnreadableField> {
    let Some(epoch) = fields.message(number)? else { return Ok(String::new()) };
    let cluster = epoch.message(1)?.unwrap_or_default();
    Ok(format!("{}/{}", uid(&cluster, 1, 2), epoch.number(2)))
}

fn subscribe(fields: &Fields<'_>) -> SeenFrame {
    let text = |number| fields.text(number).unwrap_or_default();
    let selection = Selection {
        resource: resource(&text(2), &text(4)),
        namespace: text(5),
        labels: text(6),
        fields: text(7),
    };
    SeenFrame::Subscribe { subscription: short(fields.number(1)), selection, token: fields.text(8) }
}

fn asked(fields: &Fields<'_>) -> Result<String, UnreadableField> {
    if let Some(api) = fields.message(4)? {
        let text = |number| api.text(number).unwrap_or_default();
        return Ok(format!("{} {}", text(1), text(2)));
    }
    let route = match fields.message(3)? {
        Some(message) => message.message(2)?.unwrap_or_default(),
        None => Fields::default(),
    };
    let text = |number| route.text(number).unwrap_or_default();
    Ok(format!("{} {}", text(3), text(4)))
}

fn reply(fields: &Fields<'_>) -> Result<SeenFrame, UnreadableField> {
    let id = fields.number(1);
    if let Some(api) = fields.message(3)? {
        let body = api.bytes(3).and_then(|body| serde_json::from_slice(body).ok()).unwrap_or(Value::Null);
        return Ok(SeenFrame::Reply { id, code: short(api.number(1)), objects: objects_in(&body, "") });
    }
    let message = fields.message(2)?.unwrap_or_default();
    let route = message.message(2)?.unwrap_or_default();
    let content = message.bytes(3).and_then(|body| serde_json::from_slice(body).ok()).unwrap_or(Value::Null);
    let objects = objects_in(&content, &route.text(4).unwrap_or_default());
    Ok(SeenFrame::Reply { id, code: 0, objects })
}

#[cfg(test)]
mod tests {
    use super::fields::testing::{bytes, number};
    use super::*;

    fn key(plural: &str, name: &str) -> Vec<u8> {
        [bytes(2, b"v1"), bytes(3, plural.as_bytes()), bytes(4, b"d"), bytes(5, name.as_bytes())].concat()
    }

    fn config() -> Vec<u8> {
        let version = [bytes(1, &[0x11; 16]), number(3, 42)].concat();
        let body = br#"{"metadata":{"name":"c","uid":"x"},"data":{"k":"v"}}"#;
        let packed = zstd::bulk::compress(body, 3).unwrap();
        let delivery = [
            number(1, 7),
            number(2, 3),
            number(3, 1),
            bytes(4, &key("configmaps", "c")),
            bytes(5, &version),
            bytes(6, &key("secrets", "s")),
            number(7, 1),
            number(8, body.len() as u64),
            bytes(15, &packed),
        ];
        bytes(1, &delivery.concat())
    }

    #[test]
    fn a_delivery_is_read_with_its_compressed_body() {
        let SeenFrame::Deliver(delivery) = frame(&config()) else { panic!("{:?}", frame(&config())) };
        assert_eq!((delivery.seq, delivery.subscription), (7, 3));
        assert_eq!(delivery.object.to_string(), "configmaps/d/c");
        assert_eq!(delivery.dependencies[0].to_string(), "secrets/d/s");
        let SeenChange::Upsert(version) = delivery.change else { panic!("no object") };
        assert_eq!((&*version.uid, version.revision), ("11111111-1111-1111-1111-111111111111", 42));
        let body = serde_json::json!({"metadata": {"name": "c", "uid": "x"}, "data": {"k": "v"}});
        assert_eq!(version.content, content::version("configmaps", &body).content);
    }

    #[test]
    fn packages_are_put_together_lane_by_lane() {
        let package = |flags: u8, piece: &[u8]| {
            let length = u32::try_from(piece.len()).unwrap().to_be_bytes();
            [&[1, 1, 1, 0, 1, flags][..], &length, piece].concat()
        };
        let large = config();
        let ping = bytes(5, &number(1, 1));
        let all = [package(0b11, &large[..9]), package(0, &ping), package(0b10, &large[9..])].concat();
        let mut reader = PackageReader::default();
        assert!(reader.read(&all[..25]).is_empty());
        let frames = reader.read(&all[25..]);
        assert_eq!((frames[0].0, &frames[0].2), (0, &SeenFrame::Keepalive));
        assert_eq!((frames[1].0, frames[1].1), (1, large.len()));
        assert!(matches!(frames[1].2, SeenFrame::Deliver(_)));
        assert!(matches!(reader.read(&[9; 20])[..], [(_, 20, SeenFrame::Undecodable { .. })]));
    }

    #[test]
    fn frames_of_the_edge_are_read() {
        let lane = |lane, seq| bytes(1, &[number(1, lane), number(2, seq)].concat());
        let ack = bytes(2, &[lane(0, 4), lane(2, 9)].concat());
        assert_eq!(frame(&ack), SeenFrame::Ack { lanes: vec![(0, 4), (2, 9)] });
        let entry = |with: bool| {
            let version = if with { bytes(2, &number(3, 1)) } else { Vec::new() };
            bytes(9, &[bytes(1, &key("pods", "p")), version].concat())
        };
        let hello = bytes(11, &[entry(true), entry(false)].concat());
        let inventory = Some(vec!["pods/d/p".parse().unwrap()]);
        assert_eq!(frame(&hello), SeenFrame::Hello { inventory });
        let digest = bytes(11, &bytes(10, &number(1, 900)));
        assert_eq!(frame(&digest), SeenFrame::Hello { inventory: None });
        let api = [bytes(1, b"GET"), bytes(2, b"/api/v1/nodes/n")].concat();
        let request = bytes(7, &[number(1, 5), bytes(4, &api), bytes(5, b"t")].concat());
        let what = "GET /api/v1/nodes/n".to_owned();
        assert_eq!(frame(&request), SeenFrame::Request { id: 5, what, token: Some("t".to_owned()) });
        for broken in [vec![], vec![0xff; 12], bytes(1, b""), bytes(99, b"")] {
            assert!(matches!(frame(&broken), SeenFrame::Undecodable { .. }), "{broken:?}");
        }
    }

    #[test]
    fn an_answer_shows_its_objects() {
        let list =
            br#"{"kind":"SecretList","apiVersion":"v1","items":[{"metadata":{"name":"s","namespace":"d"}}]}"#;
        let api = [number(1, 200), bytes(3, list)].concat();
        let SeenFrame::Reply { code: 200, objects, .. } =
            frame(&bytes(8, &[number(1, 5), bytes(3, &api)].concat()))
        else {
            panic!("no reply")
        };
        assert_eq!(objects[0].0.to_string(), "secrets/d/s");
    }
}
