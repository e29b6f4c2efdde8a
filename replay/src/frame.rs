//! One recorded message, and questions about it.
//!
//! Frames of dialect `tombolo` have the same members (`crate::tombolo`). Where they have a meaning of their own, their
//! `lane` distinguishes them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use tombolo_proto::message::ResourceType;
use tombolo_proto::session::kubeedge::{Kinds, is_word_of_object};

/// A message of dialect `kubeedge` as JSON (docs/reference/kubeedge.md#json-envelope), or a frame of dialect `tombolo`
/// in the same form. Missing members read as empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame(Value);

/// Namespace, resource word and name of an object on the wire (docs/reference/kubeedge.md#resource-paths).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Kind in lower case.
    pub kind: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// The key of an object of the Kubernetes API.
    #[must_use]
    pub fn of_object(object: &Value) -> Self {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        Self {
            kind: text("/kind").to_ascii_lowercase(),
            namespace: text("/metadata/namespace").to_owned(),
            name: text("/metadata/name").to_owned(),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// What a message of the edge requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Nothing: it keeps the connection alive.
    Keepalive,
    /// The message acknowledges something, or reports its failure.
    Ack,
    /// The current state of objects.
    Read,
    /// A change. Token requests count as changes: their answer is created, not looked up.
    Write,
    /// A list of watched objects.
    Sync,
    /// Nothing: a report without an answer, or an unknown message.
    Report,
    /// Nothing: the empty message that a KubeEdge edge sends when it stops, or anything that is not a message with an
    /// id.
    Zero,
}

impl Frame {
    /// Wraps recorded JSON.
    #[must_use]
    pub fn new(json: Value) -> Self {
        Self(json)
    }

    /// The frame as JSON.
    #[must_use]
    pub fn as_json(&self) -> &Value {
        &self.0
    }

    /// The frame as mutable JSON.
    pub fn as_json_mut(&mut self) -> &mut Value {
        &mut self.0
    }

    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Id of the message.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text("/header/msg_id")
    }

    /// Id of the message that this one answers; empty if it answers none.
    #[must_use]
    pub fn parent(&self) -> &str {
        self.text("/header/parent_msg_id")
    }

    /// Version in the header; empty if there is none.
    #[must_use]
    pub fn resource_version(&self) -> &str {
        self.text("/header/resourceversion")
    }

    /// Module that sent the message.
    #[must_use]
    pub fn source(&self) -> &str {
        self.text("/route/source")
    }

    /// Group that the message is for.
    #[must_use]
    pub fn group(&self) -> &str {
        self.text("/route/group")
    }

    /// Operation.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.text("/route/operation")
    }

    /// Resource path as on the wire.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.text("/route/resource")
    }

    /// Whether it is a frame of dialect `tombolo`.
    #[must_use]
    pub fn is_tombolo(&self) -> bool {
        self.0.get("lane").is_some()
    }

    /// Whether it is a frame of dialect `tombolo` of this group and operation.
    #[must_use]
    pub fn is_frame(&self, group: &str, operation: &str) -> bool {
        self.is_tombolo() && self.group() == group && self.operation() == operation
    }

    /// Content; `null` if there is none.
    #[must_use]
    pub fn content(&self) -> &Value {
        self.0.get("content").unwrap_or(&Value::Null)
    }

    /// Resource path of a delivery with the usual word for the kind. A KubeEdge cloud's dynamic controller derives its
    /// words from plurals; the other controllers use the kind (docs/reference/kubeedge.md#application-messages). Any
    /// other path is returned as on the wire.
    #[must_use]
    pub fn usual_resource(&self) -> String {
        match self.resource().splitn(3, '/').collect::<Vec<_>>()[..] {
            [namespace, word, name] => format!("{namespace}/{}/{name}", self.usual_word(word)),
            _ => self.resource().to_owned(),
        }
    }

    /// The kind of a delivery in lower case, if its word is one that a dynamic controller makes; otherwise the word.
    fn usual_word(&self, word: &str) -> String {
        if !self.is_push() || self.is_tombolo() {
            return word.to_owned();
        }
        let said = |name: &str| self.content().get(name).and_then(Value::as_str);
        let kind = match (said("apiVersion"), said("kind")) {
            (Some(version), Some(kind)) => is_word_of_object(word, version, kind).then(|| kind.to_owned()),
            _ => Kinds::default().named(&ResourceType::parse(word)).map(|(kind, _)| kind.to_owned()),
        };
        kind.map_or_else(|| word.to_owned(), |kind| kind.to_ascii_lowercase())
    }

    /// Key of the object that the path names. A subresource type names its object.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        if self.is_tombolo() && self.group() == "api" {
            return key_of_path(self.resource(), &self.content()["body"]);
        }
        if self.source() == "metaserver" && self.content().get("Key").is_some() {
            return key_of_record(self.content());
        }
        let mut parts = self.resource().splitn(3, '/');
        let (namespace, word, name) = (parts.next()?, parts.next()?, parts.next()?);
        let kind = match word {
            "nodepatch" | "nodestatus" => "node",
            "podpatch" | "podstatus" => "pod",
            other => &self.usual_word(other),
        };
        const OF_THE_CLUSTER: [&str; 4] =
            ["node", "persistentvolume", "volumeattachment", "certificatesigningrequest"];
        // Older edges, and queries for volumes, name a namespace that has no meaning
        // (docs/reference/kubeedge.md#upstream-messages).
        let is_bare = namespace == "null" || OF_THE_CLUSTER.contains(&kind);
        let namespace = if is_bare { "" } else { namespace };
        Some(Key { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// The name in an empty object that an edge receives in place of one that none of its pods needs
    /// (docs/reference/kubeedge.md#safe-answers).
    #[must_use]
    pub fn stands_in_for(&self) -> Option<&str> {
        let only = |members: &serde_json::Map<String, Value>, known: &[&str]| {
            members.len() == known.len() && known.iter().all(|name| members.contains_key(*name))
        };
        let object = self.content().as_object()?;
        let metadata = object.get("metadata")?.as_object()?;
        let is_empty =
            only(object, &["apiVersion", "kind", "metadata"]) && only(metadata, &["name", "namespace"]);
        let name = metadata.get("name")?.as_str()?;
        (is_empty && self.resource().ends_with(&format!("/{name}"))).then_some(name)
    }

    /// What a message of the edge requests (docs/reference/kubeedge.md#upstream-messages).
    #[must_use]
    pub fn ask(&self) -> Ask {
        if self.id().is_empty() && !self.is_tombolo() {
            return Ask::Zero;
        }
        if self.is_tombolo()
            && let Some(ask) = self.ask_of_frame()
        {
            return ask;
        }
        match self.operation() {
            "keepalive" => Ask::Keepalive,
            "response" | "error" => Ask::Ack,
            _ if self.resource() == "watchapp/sync" => Ask::Sync,
            _ if self.source() == "metaserver" && self.resource() != "k8s/ca.crt" => {
                match self.application("Verb").as_str() {
                    "get" | "list" => Ask::Read,
                    "watch" => Ask::Sync,
                    _ => Ask::Write,
                }
            }
            "query" if self.resource().split('/').nth(1) == Some("serviceaccounttoken") => Ask::Write,
            "query" => Ask::Read,
            "insert" | "update" | "patch" | "delete" => {
                let word = self.resource().split('/').nth(1).unwrap_or_default();
                if matches!(word, "event" | "rulestatus") { Ask::Report } else { Ask::Write }
            }
            _ => Ask::Report,
        }
    }

    /// Whether this answer says that the request was refused.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.operation() == "error" || self.content().get("Err").is_some_and(|error| !error.is_null())
    }

    /// Whether a message of the edge patches a status or comes from an application. Answers to these are the only ones
    /// that KubeEdge edges do not acknowledge (docs/reference/kubeedge.md#remote-calls).
    #[must_use]
    pub fn is_patch_or_application(&self) -> bool {
        self.operation() == "patch" || self.source() == "metaserver"
    }

    /// Whether a message of the edge creates an object.
    #[must_use]
    pub fn creates(&self) -> bool {
        self.operation() == "insert" || self.is_frame("api", "POST") || self.application("Verb") == "create"
    }

    /// What a frame of dialect `tombolo` requests; `None` for the KubeEdge messages in it.
    fn ask_of_frame(&self) -> Option<Ask> {
        Some(match (self.group(), self.operation()) {
            ("session", "hello" | "ping") => Ask::Sync,
            ("session", "ack" | "refuse" | "pong") => Ask::Ack,
            ("session", "renew") => Ask::Write,
            ("session", _) => Ask::Report,
            ("api", "GET") => Ask::Read,
            ("api", _) => Ask::Write,
            (group, "part") if group.starts_with("subscription/") => Ask::Ack,
            (group, "subscribe") if group.starts_with("subscription/") => Ask::Sync,
            (group, _) if group.starts_with("subscription/") => Ask::Report,
            _ => return None,
        })
    }

    /// Whether this message of the cloud delivers or deletes an object unasked.
    #[must_use]
    pub fn is_push(&self) -> bool {
        let gives = match self.operation() {
            "insert" | "update" | "delete" => true,
            "absent" | "adopt" | "unreadable" => self.is_tombolo(),
            _ => false,
        };
        gives && self.parent().is_empty()
    }

    /// Whether this is an unasked message of a KubeEdge cloud's controller for devices, node tasks, policies or routes,
    /// rather than for pods and similar objects (docs/reference/kubeedge.md#devices-and-node-tasks).
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        const SOURCES: [&str; 7] = [
            "devicecontroller",
            "policycontroller",
            "taskmanager",
            "nodeupgradejobcontroller",
            "router",
            "router_eventbus",
            "router_servicebus",
        ];
        let volume = matches!(
            self.operation(),
            "createvolume" | "deletevolume" | "controllerpublishvolume" | "controllerunpublishvolume"
        );
        self.parent().is_empty() && (SOURCES.contains(&self.source()) || volume || self.group() == "user")
    }

    /// Whether this is a notice of a KubeEdge cloud's hub about a connection, which it sends to the edge by mistake
    /// (docs/reference/kubeedge.md#connection-notices).
    #[must_use]
    pub fn is_hub_notice(&self) -> bool {
        self.parent().is_empty() && matches!(self.operation(), "connected" | "disconnected")
    }

    /// Whether this is an unasked frame of the cloud that is about no object: `CaughtUp`, a request for an inventory, a
    /// ping, a goodbye.
    #[must_use]
    pub fn is_notice(&self) -> bool {
        self.is_tombolo() && self.parent().is_empty() && !self.is_push()
    }

    /// A text member of a MetaServer record (docs/reference/kubeedge.md#application-records).
    #[must_use]
    pub fn application(&self, member: &str) -> String {
        self.content().get(member).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The options of a record; null if there are none.
    #[must_use]
    pub fn option(&self) -> Value {
        body_json(&self.application("Option")).unwrap_or_default()
    }

    /// The object that a message of the edge would create, with its kind if known.
    #[must_use]
    pub fn asked(&self) -> Option<Value> {
        if self.source() == "metaserver" {
            return body_json(&self.application("ReqBody"));
        }
        let mut object = self.content().is_object().then(|| self.content().clone())?;
        name_kind(&mut object, &self.key()?.kind);
        Some(object)
    }

    /// The body of a MetaServer answer, if it is JSON.
    #[must_use]
    pub fn application_body(&self) -> Option<Value> {
        body_json(self.content().get("RespBody")?.as_str()?)
    }

    /// The objects that a message of the cloud carries, each with `kind` and `apiVersion` if they are known. The scale
    /// of an object is a view of it, with its uid and version.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let mut objects = self.carried();
        objects.retain(|object| object["kind"] != "Scale");
        objects
    }

    fn carried(&self) -> Vec<Value> {
        let content = self.content();
        if self.operation() == "applicationResponse" {
            return self.application_body().map(items).unwrap_or_default();
        }
        if self.is_frame("api", "response") {
            let done = content["code"].as_u64().is_some_and(|code| code < 300);
            return if done { items(content["body"].clone()) } else { Vec::new() };
        }
        if self.is_tombolo() && self.operation() == "adopt" {
            return Vec::new();
        }
        let wrapped = content.get("Err").is_some() && content.get("Object").is_some();
        let object = if wrapped { &content["Object"] } else { content };
        if wrapped && !content["Err"].is_null() || !is_object(object) {
            return Vec::new();
        }
        let mut object = object.clone();
        if let Some(key) = self.key() {
            name_kind(&mut object, &key.kind);
        }
        vec![object]
    }

    /// Whether an answer says that the object does not exist.
    #[must_use]
    pub fn says_not_found(&self) -> bool {
        if self.is_frame("api", "response") {
            return self.content()["code"] == 404;
        }
        self.status().is_some_and(|status| status["reason"] == "NotFound")
    }

    /// The status with which an answer refuses; `None` for a success, and for a refusal without a status.
    #[must_use]
    pub fn status(&self) -> Option<&Value> {
        let content = self.content();
        if self.is_frame("api", "response") {
            return content["code"].as_u64().is_some_and(|code| code >= 400).then_some(&content["body"]);
        }
        let pointers = ["/Err/ErrStatus", "/ErrStatus", "/Error/ErrStatus"];
        let status = pointers.iter().find_map(|pointer| content.pointer(pointer))?;
        status["reason"].is_string().then_some(status)
    }
}

/// The object that a call of the Kubernetes API is about. A subresource names its object, and the body of a create
/// names the object.
fn key_of_path(path: &str, body: &Value) -> Option<Key> {
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let rest = match *parts.first()? {
        "api" => parts.get(2..)?,
        "apis" => parts.get(3..)?,
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if rest.len() > 1 => (*namespace, rest),
        rest => ("", rest),
    };
    let (plural, name) = match rest {
        [plural, name, ..] => (plural, *name),
        [plural] => (plural, body.pointer("/metadata/name")?.as_str()?),
        [] => return None,
    };
    Some(Key { kind: singular(plural), namespace: namespace.to_owned(), name: name.to_owned() })
}

/// The object that a MetaServer record is about (docs/reference/kubeedge.md#application-records). For a create, the
/// body names the object.
fn key_of_record(record: &Value) -> Option<Key> {
    let key = record["Key"].as_str()?.strip_prefix('/')?;
    let [_, _, plural, namespace, name] = key.split('/').collect::<Vec<_>>()[..] else { return None };
    let name = match name {
        "null" => body_json(record["ReqBody"].as_str()?)?.pointer("/metadata/name")?.as_str()?.to_owned(),
        name => name.to_owned(),
    };
    let namespace = if namespace == "null" { "" } else { namespace };
    Some(Key { kind: singular(plural), namespace: namespace.to_owned(), name })
}

/// The kind in lower case for a plural, by the English rules that Kubernetes kinds follow.
fn singular(plural: &str) -> String {
    match plural {
        "endpoints" => plural.to_owned(),
        _ if plural.ends_with("ies") => format!("{}y", plural.trim_end_matches("ies")),
        _ if ["sses", "xes", "ches", "shes"].iter().any(|end| plural.ends_with(end)) => {
            plural.trim_end_matches("es").to_owned()
        }
        _ => plural.strip_suffix('s').unwrap_or(plural).to_owned(),
    }
}

/// Decodes a base64 body that contains JSON.
#[must_use]
pub(crate) fn body_json(text: &str) -> Option<Value> {
    serde_json::from_slice(&STANDARD.decode(text).ok()?).ok()
}

/// Whether a value is an object with an identity.
pub(crate) fn is_object(value: &Value) -> bool {
    ["/metadata/name", "/metadata/uid"]
        .iter()
        .all(|pointer| value.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
}

/// The object, or the items of a list. A list names their kind only once.
fn items(body: Value) -> Vec<Value> {
    let kind = body["kind"].as_str().unwrap_or_default();
    let Some(kind) = kind.strip_suffix("List") else {
        return if is_object(&body) { vec![body] } else { Vec::new() };
    };
    let (kind, version) = (kind.to_owned(), body["apiVersion"].clone());
    let items = body["items"].as_array().cloned().unwrap_or_default();
    let named = items.into_iter().filter(is_object).map(|mut item| {
        let members = item.as_object_mut().map(std::mem::take).unwrap_or_default();
        let mut whole = Map::new();
        whole.insert("apiVersion".to_owned(), version.clone());
        whole.insert("kind".to_owned(), kind.clone().into());
        whole.extend(members);
        Value::Object(whole)
    });
    named.collect()
}

/// Adds the kind to an object that a frame carries without it (docs/reference/kubeedge.md#content).
fn name_kind(object: &mut Value, word: &str) {
    let known = Kinds::default();
    let Some((kind, version)) = known.named(&ResourceType::parse(word)) else { return };
    if object.get("kind").is_none() {
        object["kind"] = kind.into();
    }
    if object.get("apiVersion").is_none() {
        object["apiVersion"] = version.into();
    }
}

/// Whether a body is an API document that describes the server.
pub(crate) fn is_description(body: &Value) -> bool {
    const KINDS: [&str; 6] =
        ["APIVersions", "APIGroupList", "APIGroup", "APIResourceList", "APIGroupDiscoveryList", "Table"];
    // Documents without a kind: OpenAPI and its index, the version, the token issuer and its keys.
    const MEMBERS: [&str; 5] = ["openapi", "paths", "gitVersion", "jwks_uri", "keys"];
    let kind = body["kind"].as_str().unwrap_or_default();
    KINDS.contains(&kind) || (kind.is_empty() && MEMBERS.iter().any(|member| body.get(*member).is_some()))
}
