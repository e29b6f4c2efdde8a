//! Outgoing documents: one JSON text in pieces, so that all nodes share the body of an object.

use bytes::Bytes;

use crate::kubeedge;
use crate::message::{Message, MessageId};
use crate::object::SharedObject;

/// A document for the link: one text message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Position among the documents of this session; the link reports it when the document has left the socket.
    pub number: u64,
    /// The pieces of the text, in order. Pieces of an object's body share its memory.
    pieces: [Bytes; PIECES],
}

/// Pieces of an update: the part of this message alone, the part of header and route that all nodes share, and the
/// object around its version.
const PIECES: usize = 6;

impl Outgoing {
    /// A document from a message. Its content is a piece, not a copy.
    #[must_use]
    pub fn message(number: u64, message: &Message) -> Self {
        let (open, content) = (kubeedge::encode_head(message).into(), message.content.as_json().clone());
        Self::of(number, [open, content, Bytes::from_static(b"}")])
    }

    /// A document from a text.
    #[must_use]
    pub fn document(number: u64, text: String) -> Self {
        Self::of(number, [text.into()])
    }

    /// A message whose content is an object, with `metadata.resourceVersion` added: shared bodies have none, and
    /// KubeEdge edges read it there.
    pub(super) fn object(number: u64, head: &Message, object: &SharedObject) -> Self {
        let [before, version, after] = content_parts(object);
        let open = kubeedge::encode_head(head).into();
        Self::of(number, [open, before, version, after, Bytes::from_static(b"}")])
    }

    /// The same for an update that many nodes receive: all but id and time is encoded once for all of them. `head`
    /// makes the message for this node.
    pub(super) fn update(
        number: u64,
        id: &MessageId,
        millis: i64,
        object: &SharedObject,
        head: impl Fn() -> Message,
    ) -> Self {
        let open = kubeedge::encode_opening(id, millis);
        let rest = |open: &[u8]| {
            let whole = kubeedge::encode_head(&head());
            whole.strip_prefix(open).map(Bytes::copy_from_slice)
        };
        match object.kubeedge_update(|| rest(&open)) {
            Some(shared) => {
                let [before, version, after] = content_parts(object);
                let (open, shared) = (open.into(), shared.clone());
                Self::of(number, [open, shared, before, version, after, Bytes::from_static(b"}")])
            }
            None => Self::object(number, &head(), object),
        }
    }

    fn of<const N: usize>(number: u64, pieces: [Bytes; N]) -> Self {
        let mut all: [Bytes; PIECES] = Default::default();
        for (slot, piece) in all.iter_mut().zip(pieces) {
            *slot = piece;
        }
        Self { number, pieces: all }
    }

    /// Length of the text, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Whether the text is empty, which is never the case.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces of the text, in order; some may be empty.
    #[must_use]
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The whole text as bytes, always UTF-8.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.pieces.concat().into()
    }
}

/// An object with its version, in three pieces.
fn content_parts(object: &SharedObject) -> [Bytes; 3] {
    match object.revision_parts() {
        Some((before, version, after)) => [before, version.into(), after],
        None => [Bytes::new(), Bytes::new(), object.body.clone()],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::ids::{CloudRevision, Uid};
    use crate::message::{Content, Group, ObjectPath, Operation, ResourceType, Route, Source, strategies};
    use crate::object::{ContentHash, ObjectKey, ObjectVersion, Resource};

    fn object(body: &str) -> SharedObject {
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "a");
        let uid = Uid::parse("u").expect("a uid");
        let version = ObjectVersion { uid, revision: CloudRevision(7), hash: ContentHash(0) };
        SharedObject::new(key, version, Bytes::copy_from_slice(body.as_bytes()), Vec::new())
    }

    #[test]
    fn version_is_inserted_where_it_was_removed() {
        for (body, expected) in [
            (
                r#"{"data":{},"metadata":{"name":"a"}}"#,
                r#"{"data":{},"metadata":{"resourceVersion":"7","name":"a"}}"#,
            ),
            (r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"7"}}"#),
            (r#"{"metadata":null}"#, r#"{"metadata":null}"#),
            (r#"{"data":{"metadata":{}}}"#, r#"{"data":{"metadata":{}}}"#),
            ("[]", "[]"),
        ] {
            let message =
                kubeedge::decode(&Bytes::from_static(br#"{"header":{"msg_id":"m"}}"#)).expect("a message");
            let document = Outgoing::object(1, &message, &object(body));
            let read = kubeedge::decode(&document.to_bytes()).expect(body);
            assert_eq!(read.content.as_json(), expected);
        }
    }

    #[test]
    fn shared_part_of_an_update_completes_each_document() {
        let object = object(r#"{"data":{},"metadata":{"name":"a"}}"#);
        let path = ObjectPath::new("default", ResourceType::ConfigMap, "a");
        let (from, to) = (Source::EdgeController, Group::Resource);
        let route = Route::new(from, to, Operation::Update, path.into());
        for (node, millis) in [(1, 1_700_000_000_000), (2, 7)] {
            let id = MessageId::from_random_bytes([node; 16]);
            let head = || Message::new(id.clone(), millis, route.clone(), Content::null());
            let head = || head().with_resource_version("7");
            let shared = Outgoing::update(1, &id, millis, &object, head);
            assert_eq!(shared.to_bytes(), Outgoing::object(1, &head(), &object).to_bytes());
            assert!(!shared.pieces[PIECES - 1].is_empty(), "header and route are a piece of their own");
        }
    }

    proptest! {
        #[test]
        fn pieces_equal_the_encoded_document(
            message in strategies::message(),
            names in proptest::collection::btree_map("[a-z]{1,4}", ".{0,6}", 0..4),
        ) {
            let body = serde_json::json!({"data": names.clone(), "metadata": names});
            let document = Outgoing::object(3, &message, &object(&body.to_string()));
            prop_assert_eq!(document.pieces().concat().len(), document.len());
            let read = kubeedge::decode(&document.to_bytes()).expect("own output");
            prop_assert_eq!((&read.header, &read.route), (&message.header, &message.route));
            let mut expected = body;
            expected["metadata"]["resourceVersion"] = "7".into();
            prop_assert_eq!(read.content.read::<Value>().expect("JSON"), expected);
            prop_assert_eq!(Outgoing::message(3, &message).to_bytes(), kubeedge::encode(&message));
        }
    }
}
