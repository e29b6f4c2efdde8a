//! One recorded message, and what it is about.
//!
//! Frames of dialect `tombolo` have the same members (`crate::tombolo`); where they mean something of their own, their
//! `lane` tells them apart.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use tombolo_proto::message::ResourceType;
use tombolo_proto::session::kubeedge::{Kinds, is_word_of_object};

/// A message of dialect `kubeedge` as JSON (docs/reference/kubeedge.md#json-envelope), or a frame of dialect `tombolo`
/// in the same form. Missing members read as empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame(Value);

/// Namespace, type word and name of an object on the wire (docs/reference/kubeedge.md#resource-paths).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Kind in lower case.
    pub kind: String,
    /// Empty for objects without one.
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

/// What a message of the edge asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Sent so that the connection lives.
    Keepalive,
    /// The acknowledgement, or failure, of something.
    Ack,
    /// The present state of objects.
    Read,
    /// A change. Token requests are changes: their answer is made, not looked up.
    Write,
    /// A list of what is watched.
    Sync,
    /// A report that nobody answers, or nothing that is known.
    Report,
    /// Nothing: the empty message that a stock edge sends when it stops, and what is no message with an id.
    Zero,
}

impl Frame {
    /// A frame of recorded JSON.
    #[must_use]
    pub fn new(json: Value) -> Self {
        Self(json)
    }

    /// The JSON.
    #[must_use]
    pub fn as_json(&self) -> &Value {
        &self.0
    }

    /// The JSON, to change.
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

    /// Id of the message that it answers; empty for none.
    #[must_use]
    pub fn parent(&self) -> &str {
        self.text("/header/parent_msg_id")
    }

    /// Version in the header; empty for none.
    #[must_use]
    pub fn resource_version(&self) -> &str {
        self.text("/header/resourceversion")
    }

    /// Module that sent it.
    #[must_use]
    pub fn source(&self) -> &str {
        self.text("/route/source")
    }

    /// Group that it is for.
    #[must_use]
    pub fn group(&self) -> &str {
        self.text("/route/group")
    }

    /// Operation.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.text("/route/operation")
    }

    /// Resource path, as on the wire.
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

    /// Content; `null` for none.
    #[must_use]
    pub fn content(&self) -> &Value {
        self.0.get("content").unwrap_or(&Value::Null)
    }

    /// Resource path of a delivery with the usual word for the kind: a stock cloud's dynamic controller cuts words of plurals,
    /// its other controllers have the kind (docs/reference/kubeedge.md#application-messages). Any other path as on the wire.
    #[must_use]
    pub fn usual_resource(&self) -> String {
        match self.resource().splitn(3, '/').collect::<Vec<_>>()[..] {
            [namespace, word, name] => format!("{namespace}/{}/{name}", self.usual_word(word)),
            _ => self.resource().to_owned(),
        }
    }

    /// The kind of a delivery in lower case, where its word is one that a dynamic controller makes; otherwise the word.
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

    /// Key of the object that the path names. Types of subresources name their object.
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
        // Older edges, and queries for volumes, name a namespace that counts for nothing
        // (docs/reference/kubeedge.md#upstream-messages).
        let is_bare = namespace == "null" || OF_THE_CLUSTER.contains(&kind);
        let namespace = if is_bare { "" } else { namespace };
        Some(Key { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// The name in an empty object, which an edge is given in place of one that none of its pods needs
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

    /// What a message of the edge asks for (docs/reference/kubeedge.md#upstream-messages).
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

    /// Whether this answer says that nothing was done.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.operation() == "error" || self.content().get("Err").is_some_and(|error| !error.is_null())
    }

    /// Whether a message of the edge patches a status, or comes from an application: answers to these are the only ones
    /// that stock edges do not acknowledge (docs/reference/kubeedge.md#remote-calls).
    #[must_use]
    pub fn is_patch_or_application(&self) -> bool {
        self.operation() == "patch" || self.source() == "metaserver"
    }

    /// Whether a message of the edge makes an object that was not there.
    #[must_use]
    pub fn creates(&self) -> bool {
        self.operation() == "insert" || self.is_frame("api", "POST") || self.application("Verb") == "create"
    }

    /// What a frame of dialect `tombolo` asks for; none for the messages of KubeEdge in it.
    fn ask_of_frame(&self) -> Option<Ask> {
        Some(match (self.group(), self.operation()) {
            ("session", "hello" | "ping") => Ask::Sync,
            ("session", "ack" | "refuse" | "pong") => Ask::Ack,
            ("session", "renew") => Ask::Write,
            ("session", _) => Ask::Report,
            ("api", "GET") => Ask::Read,
            ("api", _) => Ask::Write,
            (group, "part") if group.starts_with("scope/") => Ask::Ack,
            (group, "subscribe") if group.starts_with("scope/") => Ask::Sync,
            (group, _) if group.starts_with("scope/") => Ask::Report,
            _ => return None,
        })
    }

    /// Whether this message of the cloud gives or takes an object unasked.
    #[must_use]
    pub fn is_push(&self) -> bool {
        let gives = match self.operation() {
            "insert" | "update" | "delete" => true,
            "absent" | "adopt" | "unreadable" => self.is_tombolo(),
            _ => false,
        };
        gives && self.parent().is_empty()
    }

    /// Whether this answers a call with a document that describes the cluster: discovery, versions, schemas, the issuer of
    /// tokens and its keys.
    #[must_use]
    pub fn describes_cluster(&self) -> bool {
        is_description(&self.content()["body"])
    }

    /// Whether another controller of a stock cloud than those that serve pods and their like says this unasked: about
    /// devices, node tasks, policies, routes (docs/reference/kubeedge.md#devices-and-node-tasks).
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

    /// Whether a stock cloud's hub speaks of a connection, which it does to the edge by mistake
    /// (docs/reference/kubeedge.md#connection-notices).
    #[must_use]
    pub fn is_hub_notice(&self) -> bool {
        self.parent().is_empty() && matches!(self.operation(), "connected" | "disconnected")
    }

    /// Whether this frame of the cloud says something unasked that is about no object: `CaughtUp`, a request for an
    /// inventory, a ping, a goodbye.
    #[must_use]
    pub fn is_notice(&self) -> bool {
        self.is_tombolo() && self.parent().is_empty() && !self.is_push()
    }

    /// A text member of a MetaServer record (docs/reference/kubeedge.md#application-records).
    #[must_use]
    pub fn application(&self, member: &str) -> String {
        self.content().get(member).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The options of a record; null for none.
    #[must_use]
    pub fn option(&self) -> Value {
        body_json(&self.application("Option")).unwrap_or_default()
    }

    /// The object that a message of the edge would make, with its kind as far as it is known.
    #[must_use]
    pub fn asked(&self) -> Option<Value> {
        if self.source() == "metaserver" {
            return body_json(&self.application("ReqBody"));
        }
        let mut object = self.content().is_object().then(|| self.content().clone())?;
        name_kind(&mut object, &self.key()?.kind);
        Some(object)
    }

    /// The body of a MetaServer answer, when it is JSON.
    #[must_use]
    pub fn application_body(&self) -> Option<Value> {
        body_json(self.content().get("RespBody")?.as_str()?)
    }

    /// The objects that a message of the cloud carries, each with `kind` and `apiVersion` as far as they are known. The
    /// scale of an object is a view of it, under its uid and version.
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

    /// The status with which an answer refuses; none for what was done, and for a refusal without one.
    #[must_use]
    pub fn status(&self) -> Option<&Value> {
        let content = self.content();
        if self.is_frame("api", "response") {
            return content["code"].as_u64().is_some_and(|code| code >= 400).then_some(&content["body"]);
        }
        let places = ["/Err/ErrStatus", "/ErrStatus", "/Error/ErrStatus"];
        let status = places.iter().find_map(|place| content.pointer(place))?;
        status["reason"].is_string().then_some(status)
    }
}

/// The object that a call of the Kubernetes API is about; subresources name their object, and what is put into a
/// collection names itself.
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

/// The object that a record of MetaServer is about (docs/reference/kubeedge.md#application-records): what is made names
/// itself.
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

/// The kind in lower case that a plural belongs to, by the rules of English that Kubernetes' kinds follow.
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

/// Decodes a base64 body that is JSON.
#[must_use]
pub(crate) fn body_json(text: &str) -> Option<Value> {
    serde_json::from_slice(&STANDARD.decode(text).ok()?).ok()
}

/// Whether a value is an object with identity.
pub(crate) fn is_object(value: &Value) -> bool {
    ["/metadata/name", "/metadata/uid"]
        .iter()
        .all(|pointer| value.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
}

/// The object, or those of a list, which name their kind only once.
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

/// Says the kind of an object that a frame carries without it (docs/reference/kubeedge.md#content).
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

/// Whether a body is a document of the Kubernetes API that describes the server.
pub(crate) fn is_description(body: &Value) -> bool {
    const KINDS: [&str; 6] =
        ["APIVersions", "APIGroupList", "APIGroup", "APIResourceList", "APIGroupDiscoveryList", "Table"];
    // Documents without a kind: OpenAPI and its index, the version, the issuer of tokens and its keys.
    const MEMBERS: [&str; 5] = ["openapi", "paths", "gitVersion", "jwks_uri", "keys"];
    let kind = body["kind"].as_str().unwrap_or_default();
    KINDS.contains(&kind) || (kind.is_empty() && MEMBERS.iter().any(|member| body.get(*member).is_some()))
}
