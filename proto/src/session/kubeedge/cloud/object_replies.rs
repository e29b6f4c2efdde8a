//! Replies that carry an object: a KubeEdge edge treats them as deliveries of it
//! (docs/reference/kubeedge.md#remote-calls).

use serde::Deserialize;

use crate::ids::{CloudRevision, Moment, Uid};
use crate::inventory::content_hash;
use crate::message::{Message, MessageId, Operation, ResourceType};
use crate::object::{ObjectKey, ObjectVersion, SharedObject};
use crate::session::kubeedge::shape::{Fitted, ObjectIdentity};
use crate::session::kubeedge::{REPLY_SETTLES, RESEND_AFTER, kind_name, resource_of};

/// Most replies with an object under way at once; further ones wait.
const OBJECT_REPLIES_MAX: usize = 512;

/// The object in a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepliedObject {
    pub(super) key: ObjectKey,
    pub(super) kind: Box<str>,
    pub(super) uid: Uid,
    pub(super) revision: CloudRevision,
    /// The edge acknowledges the reply once it has stored the object; for patches it does not.
    pub(super) acknowledged: bool,
}

impl RepliedObject {
    /// The object of a reply that the edge stores together with pushed objects: its node, its pods, their ConfigMaps,
    /// Secrets and volumes. Other replies affect no pushed object.
    pub(super) fn of(asked: &Message, fitted: &Fitted) -> Option<Self> {
        let Fitted { message: answer, identity } = fitted;
        if answer.route.operation != Operation::Response || !answer.content.is_object() {
            return None;
        }
        let (word, acknowledged) = stored_as(asked)?;
        let path = asked.route.resource.as_object()?;
        let wrapped = identity.is_none().then(|| wrapped_identity(answer)).flatten();
        let ObjectIdentity { uid, resource_version } = identity.as_ref().or(wrapped.as_ref())?;
        let resource = resource_of(&word)?;
        let kind = kind_name(&resource, None)?;
        let key = ObjectKey::new(resource, path.namespace(), path.name.as_deref()?);
        let (uid, revision) =
            if uid.is_empty() && matches!(word, ResourceType::ConfigMap | ResourceType::Secret) {
                (stand_in(&key)?, CloudRevision(0))
            } else {
                (Uid::parse(uid).ok()?, CloudRevision::parse(resource_version).ok()?)
            };
        Some(Self { key, kind, uid, revision, acknowledged })
    }

    /// The same for an answer with the body that deliveries share, whose version is known without parsing.
    pub(super) fn of_shared(asked: &Message, object: &SharedObject) -> Option<Self> {
        let (_, acknowledged) = stored_as(asked)?;
        let kind = kind_name(object.key.resource(), None)?;
        let ObjectVersion { uid, revision, .. } = &object.version;
        Some(Self { key: object.key.clone(), kind, uid: uid.clone(), revision: *revision, acknowledged })
    }
}

/// The type under which the edge stores the object of the answer together with pushed objects, and whether it
/// acknowledges that.
fn stored_as(asked: &Message) -> Option<(ResourceType, bool)> {
    use {Operation as Op, ResourceType as Type};
    let path = asked.route.resource.as_object()?;
    Some(match (&path.resource_type, &asked.route.operation) {
        (Type::Node, Op::Insert) => (Type::Node, true),
        (Type::NodePatch, _) => (Type::Node, false),
        (Type::Pod, Op::Insert) => (Type::Pod, true),
        (Type::PodPatch, _) => (Type::Pod, false),
        (word @ (Type::ConfigMap | Type::Secret | Type::PersistentVolumeClaim), Op::Query) => {
            (word.clone(), true)
        }
        // The namespace of the request is part of the row's name, and a volume has none.
        (Type::PersistentVolume, Op::Query) if path.namespace().is_empty() => (Type::PersistentVolume, true),
        _ => return None,
    })
}

/// Prefix of the UIDs of [`stand_in`].
pub(super) const STAND_IN: &str = "none-";

/// The UID by which this side identifies the empty object that an edge was given instead of one that does not exist
/// (docs/reference/kubeedge.md#safe-answers). It is an incarnation of its own, so that the real object replaces it,
/// and its deletion is sent when a pod needs the real object. Each key has a different one, and none has a dot: both
/// name objects of an export. A user who finds two keys with the same half of the hash only causes one of two empty
/// objects to be missing in an export and to be reported again.
pub(super) fn stand_in(key: &ObjectKey) -> Option<Uid> {
    let (half, _) = content_hash(key.to_string().as_bytes()).halves();
    Uid::parse(&format!("{STAND_IN}{half:016x}")).ok()
}

/// Identity of the object in a wrapper.
fn wrapped_identity(answer: &Message) -> Option<ObjectIdentity> {
    #[derive(Deserialize)]
    struct Object {
        metadata: ObjectIdentity,
    }
    #[derive(Deserialize)]
    struct Wrapper {
        #[serde(rename = "Object")]
        object: Option<Object>,
    }
    let wrapper: Wrapper = answer.content.read().ok()?;
    Some(wrapper.object?.metadata)
}

/// One reply under way.
#[derive(Debug)]
struct ObjectReply {
    id: MessageId,
    object: RepliedObject,
    number: u64,
    /// Another version was under way at the same time.
    crossed: bool,
    /// None before the reply has left the socket.
    until: Option<Moment>,
}

/// The end of a reply.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) object: RepliedObject,
    /// The edge certainly holds the object of the reply, or at least nothing older than before.
    pub(super) sure: bool,
}

/// Replies with an object that the edge may still be storing.
#[derive(Debug, Default)]
pub(super) struct ObjectReplies {
    list: Vec<ObjectReply>,
}

impl ObjectReplies {
    /// Bytes that the replies take.
    pub(super) fn memory(&self) -> usize {
        self.list
            .iter()
            .map(|reply| size_of::<ObjectReply>().saturating_add(reply.object.key.text_len()))
            .sum()
    }

    pub(super) fn has_room(&self) -> bool {
        self.list.len() < OBJECT_REPLIES_MAX
    }

    /// Whether a reply with the object is under way.
    pub(super) fn carries(&self, key: &ObjectKey) -> bool {
        self.list.iter().any(|reply| reply.object.key == *key)
    }

    /// A reply is being sent. Two replies for one key cross each other when their versions differ.
    pub(super) fn push(&mut self, id: MessageId, object: RepliedObject, number: u64, mut crossed: bool) {
        crossed |= self.cross(&object.key, Some(object.revision));
        self.list.push(ObjectReply { id, object, number, crossed, until: None });
    }

    /// A version is being sent while replies with the object may be under way; true when one of them has another
    /// version.
    pub(super) fn cross(&mut self, key: &ObjectKey, revision: Option<CloudRevision>) -> bool {
        let others = self.list.iter_mut().filter(|reply| reply.object.key == *key);
        let mut crossed = false;
        for reply in others.filter(|reply| Some(reply.object.revision) != revision) {
            reply.crossed = true;
            crossed = true;
        }
        crossed
    }

    pub(super) fn transmitted(&mut self, now: Moment, number: u64) {
        for reply in self.list.iter_mut().filter(|reply| reply.number <= number) {
            let wait = if reply.object.acknowledged { RESEND_AFTER } else { REPLY_SETTLES };
            reply.until.get_or_insert(now + wait);
        }
    }

    /// The edge has stored a reply.
    pub(super) fn acked(&mut self, id: &MessageId) -> Option<Settled> {
        let index = self.list.iter().position(|reply| reply.id == *id && reply.object.acknowledged)?;
        let ObjectReply { object, crossed, .. } = self.remove(index);
        Some(Settled { object, sure: !crossed })
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.list.iter().filter_map(|reply| reply.until).min()
    }

    /// An expired reply; call it until it returns none.
    pub(super) fn expire(&mut self, now: Moment) -> Option<Settled> {
        let over = |reply: &ObjectReply| reply.until.is_some_and(|until| until <= now);
        let index = self.list.iter().position(over)?;
        let ObjectReply { object, crossed, .. } = self.remove(index);
        // A missing acknowledgement proves nothing: the edge may have stopped waiting for the reply.
        let sure = !crossed && !object.acknowledged;
        Some(Settled { object, sure })
    }

    fn remove(&mut self, index: usize) -> ObjectReply {
        let reply = self.list.swap_remove(index);
        if self.list.is_empty() {
            self.list = Vec::new();
        }
        reply
    }
}
