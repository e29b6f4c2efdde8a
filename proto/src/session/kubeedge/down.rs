//! Classifies messages from a cloud (docs/reference/kubeedge.md#routing-at-the-edge).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::known::Kinds;
use super::typed;
use crate::frame::Change;
use crate::ids::{CloudRevision, Uid};
use crate::inventory::content_hash;
use crate::message::{
    BorrowedText, Content, Group, Message, MessageId, ObjectPath, Operation, Outcome, ResourcePath,
    ResourceType, Source,
};
use crate::object::{ObjectKey, ObjectVersion, SharedObject};

/// A message from a cloud, classified by its route. Closed.
#[derive(Debug, Clone, PartialEq)]
pub enum Down {
    /// `config`, `ping` or `pong`: answered with `ack` (docs/reference/kubeedge.md#websocket).
    Control(Message),
    /// The answer to a request of the edge.
    Reply(MessageId, Message),
    /// An object to hold, or to remove.
    Deliver(Message, Change),
    /// A delivery without an object that could be stored, and why.
    Broken(Message, Broken),
    /// Anything else: devices, node tasks, the router. Nothing here handles it.
    Other(Message),
}

/// Why a delivery cannot be stored. Closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// Its content or its path is not that of an object.
    Malformed(&'static str),
    /// Its kind is unknown, but the cluster's discovery may provide it later.
    UnknownKind(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => f.write_str(why),
            Self::UnknownKind(why) => f.write_str(why),
        }
    }
}

impl Down {
    /// Classifies a message. `kinds` are the known kinds of the cluster.
    #[must_use]
    pub fn of(kinds: &Kinds, message: Message) -> Self {
        let route = &message.route;
        match (&route.operation, &message.header.parent) {
            (Operation::Config | Operation::Ping | Operation::Pong, _) => Self::Control(message),
            (_, Some(parent)) => Self::Reply(parent.clone(), message),
            (Operation::Insert | Operation::Update | Operation::Delete, None) if is_delivery(&message) => {
                let ResourcePath::Object(path) = &route.resource else { return Self::Other(message) };
                let deleted = route.operation == Operation::Delete;
                match change(kinds, &message.content, &message.header.resource_version, deleted, path) {
                    Ok(change) => Self::Deliver(message, change),
                    Err(why) => Self::Broken(message, why),
                }
            }
            _ => Self::Other(message),
        }
    }

    /// The object in a reply that this edge is to hold; none when there is none. Pods in the answers to reports are
    /// ignored: a pod may be deleted by the time its report is answered, and deliveries show that.
    #[must_use]
    pub fn carried(reply: &Message) -> Option<Change> {
        use ResourceType as Type;
        let path = reply.route.resource.as_object()?;
        let (word, object) = match (&path.resource_type, Outcome::read(&reply.content)) {
            (Type::Node | Type::NodePatch, Ok(Outcome::Done(object))) => (Type::Node, object),
            (Type::NodePatch, _) => return None,
            (
                word @ (Type::Node
                | Type::ConfigMap
                | Type::Secret
                | Type::PersistentVolume
                | Type::PersistentVolumeClaim),
                _,
            ) => (word.clone(), reply.content.clone()),
            _ => return None,
        };
        if reply.route.operation == Operation::Error || !object.is_object() {
            return None;
        }
        let path = ObjectPath { resource_type: word, ..path.clone() };
        // These resource words are unambiguous by themselves.
        change(&Kinds::default(), &object, &reply.header.resource_version, false, &path).ok()
    }

    /// Whether a KubeEdge cloud waits for the acknowledgement of this message and holds everything else back meanwhile
    /// (docs/reference/kubeedge.md#acknowledged-deliveries); decided by types and not by parts of names.
    #[must_use]
    pub fn wants_acknowledgement(message: &Message) -> bool {
        use {Operation as Op, ResourceType as Type};
        let (route, path) = (&message.route, message.route.resource.as_object());
        let word = path.map(|path| &path.resource_type);
        let unacknowledged =
            matches!(
                route.resource,
                ResourcePath::CaCertificate
                    | ResourcePath::Membership
                    | ResourcePath::MembershipDetail
                    | ResourcePath::TwinCloudUpdated
                    | ResourcePath::ApplicationReply
                    | ResourcePath::WatchSync
            ) || matches!(word, Some(Type::PodList | Type::ServiceAccountToken | Type::Membership))
                || route.operation.is_volume_operation()
                || route.operation == Op::ApplicationResponse
                || matches!(route.group, Group::User | Group::Twin)
                || matches!(route.source, Source::TaskManager | Source::NodeUpgradeJobController)
                || (route.operation == Op::Response && message.content.is_ok())
                || route.operation == Op::Error;
        let silent_type = match word {
            Some(Type::Node) => route.operation != Op::Update,
            Some(Type::Pod) => route.operation == Op::Response,
            Some(
                Type::Lease
                | Type::NodePatch
                | Type::PodPatch
                | Type::PodStatus
                | Type::CertificateSigningRequest,
            ) => true,
            _ => false,
        };
        !(unacknowledged || route.source == Source::EdgeController && silent_type)
    }
}

/// Whether the group and source are those of objects that the edge holds
/// (docs/reference/kubeedge.md#accepted-sources).
fn is_delivery(message: &Message) -> bool {
    matches!(message.route.group, Group::Resource | Group::Func)
        && matches!(message.route.source, Source::EdgeController | Source::DynamicController)
}

/// The change that a content means for the object of a path. `version` is the one in the header.
fn change(
    kinds: &Kinds,
    content: &Content,
    version: &str,
    deleted: bool,
    path: &ObjectPath,
) -> Result<Change, Broken> {
    #[derive(serde::Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Object<'a> {
        #[serde(borrow)]
        kind: Option<Cow<'a, str>>,
        #[serde(borrow)]
        api_version: Option<Cow<'a, str>>,
        #[serde(borrow)]
        metadata: Option<Metadata<'a>>,
    }
    #[derive(serde::Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata<'a> {
        #[serde(borrow)]
        uid: Option<Cow<'a, str>>,
        #[serde(borrow)]
        resource_version: Option<BorrowedText<'a>>,
    }
    let name = path.name.as_deref().ok_or(Broken::Malformed("its path has no name"))?;
    let payload = content.payload();
    let object: Object<'_> = if content.is_null() {
        Object::default()
    } else {
        serde_json::from_slice(&payload).map_err(|_| Broken::Malformed("its content is not an object"))?
    };
    let said = object.api_version.as_deref().zip(object.kind.as_deref());
    let said = said.filter(|(version, kind)| !version.is_empty() && !kind.is_empty());
    let resource = kinds.resource(&path.resource_type, said).map_err(Broken::UnknownKind)?;
    let key = ObjectKey::new(resource, path.namespace(), name);
    let metadata = object.metadata.unwrap_or_default();
    let revision = metadata.resource_version.as_ref().map(|BorrowedText(text)| text.as_ref());
    let revision = revision.filter(|text| !text.is_empty()).unwrap_or(version);
    let revision = CloudRevision::parse(revision).ok();
    let body = if content.is_object() { content.as_json().clone() } else { Bytes::copy_from_slice(&payload) };
    let body = typed::completed(kinds, key.resource(), &body);
    // This differs from the hash that our hub would give: it only distinguishes contents within one dialect.
    let hash = content_hash(&body);
    let uid = Uid::parse(&metadata.uid.unwrap_or_default());
    if deleted {
        let revision = revision.unwrap_or_default();
        let version = uid.ok().map(|uid| ObjectVersion { uid, revision, hash });
        return Ok(Change::Delete { key, version });
    }
    let uid = uid.map_err(|_| Broken::Malformed("its object has no uid"))?;
    let revision = revision.ok_or(Broken::Malformed("its object has no version"))?;
    let version = ObjectVersion { uid, revision, hash };
    Ok(Change::Upsert(Arc::new(SharedObject::new(key, version, body, Vec::new()))))
}
