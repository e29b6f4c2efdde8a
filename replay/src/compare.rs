//! Compares whether two messages of the cloud mean the same.

mod absences;
mod answers;
mod services;

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::{Map, Value};

use crate::frame::Frame;
use crate::identifiers::{Draft, Identifiers, Sort};
use crate::rules::{Rule, Tally};

/// Where and how two messages differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// JSON pointer into the frame.
    pub pointer: String,
    /// What was recorded there, what arrived, or what contradicts it.
    pub problem: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pointer, self.problem)
    }
}

/// What the recorded cluster added by itself to objects that were written: pointer and value.
pub(crate) type Additions = Vec<(String, Value)>;

/// Properties of the run's own cluster.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// Uids of objects that the run's cluster manages by itself.
    pub(crate) uids: HashSet<String>,
    /// Heartbeats in the reports of older edges get the time of the run.
    pub(crate) moving_heartbeats: bool,
    /// What the run's API server added to each change and what it left out, by recorded uid.
    pub(crate) added: HashMap<String, Additions>,
    pub(crate) left_out: HashMap<String, Additions>,
}

/// One comparison. What it learns counts only if everything is equal.
pub(crate) struct Comparison<'a> {
    identifiers: Draft<'a>,
    rules: Vec<Rule>,
    additions: &'a Additions,
    own: &'a Own,
    /// The answer is a token, which is created when it is requested.
    token: bool,
}

/// What a comparison without a difference has learned.
pub(crate) struct Learned {
    identifiers: Identifiers,
    rules: Vec<Rule>,
}

impl Learned {
    pub(crate) fn keep(self, identifiers: &mut Identifiers, tally: &mut Tally) {
        identifiers.keep(self.identifiers);
        self.rules.into_iter().for_each(|rule| tally.count(rule));
    }
}

/// Go's zero time.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

type ComparisonResult = Result<(), Mismatch>;

fn mismatch(pointer: &str, problem: impl Into<String>) -> ComparisonResult {
    Err(Mismatch { pointer: pointer.to_owned(), problem: problem.into() })
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(120) {
        None => text,
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(identifiers: &'a Identifiers, additions: &'a Additions, own: &'a Own) -> Self {
        Self { identifiers: Draft::new(identifiers), rules: Vec::new(), additions, own, token: false }
    }

    /// What was learned, and which rules were needed.
    pub(crate) fn learned(self) -> Learned {
        Learned { identifiers: self.identifiers.learned(), rules: self.rules }
    }

    /// Compares a push.
    pub(crate) fn push(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        const CONTROLLERS: [&str; 2] = ["edgecontroller", "dynamiccontroller"];
        let sources = [recorded.source(), live.source()];
        if sources[0] != sources[1] && sources.iter().all(|source| CONTROLLERS.contains(source)) {
            self.rules.push(Rule::EitherController);
        } else {
            self.route(recorded, live, &["/route/source"])?;
        }
        self.route(recorded, live, &["/route/group", "/lane"])?;
        self.resource(recorded, live)?;
        let operations = (recorded.operation(), live.operation());
        match operations {
            (one, other) if one == other => {}
            ("insert", "update") | ("update", "insert") => self.rules.push(Rule::InsertOrUpdate),
            (one, other) => {
                return mismatch("/route/operation", format!("{one} was recorded, {other} arrived"));
            }
        }
        self.beside(recorded, live)?;
        if operations.1 == "delete" {
            return self.deletion(recorded, live);
        }
        self.content(recorded, live)?;
        self.header_version(recorded, live)
    }

    /// Compares the path of a delivery. It may use another resource word for the same kind, and a name that the API
    /// server generated.
    fn resource(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        let named = |path: &str| self.identifiers.translate(path);
        if named(recorded.resource()) == live.resource() {
            return Ok(());
        }
        let of_plural = recorded.source() == "dynamiccontroller";
        if of_plural && named(&recorded.usual_resource()) == live.resource() {
            self.rules.push(Rule::WatchWord);
            return Ok(());
        }
        self.route(recorded, live, &["/route/resource"])
    }

    /// Compares the members beside the object in a delivery of dialect `tombolo`. The hash is that of the run's own
    /// bytes.
    fn beside(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        let none = Value::Null;
        let beside = |frame: &'_ Frame| frame.as_json().get("deliver").cloned().unwrap_or_default();
        let (one, other) = (beside(recorded), beside(live));
        for member in ["resource", "dependencies"] {
            let (left, right) = (one.get(member).unwrap_or(&none), other.get(member).unwrap_or(&none));
            self.value(&format!("/deliver/{member}"), "", left, right)?;
        }
        match (one["uid"].as_str(), other["uid"].as_str()) {
            (Some(one), Some(other)) if !self.own.uids.contains(other) => {
                self.pair(Sort::Uid, "", one, other, "/deliver/uid")
            }
            _ => Ok(()),
        }
    }

    /// Compares what the cloud sends unasked about no object.
    pub(crate) fn notice(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        self.route(recorded, live, &["/lane", "/route/group", "/route/operation", "/route/resource"])?;
        match recorded.operation() {
            "caughtup" => {
                let epoch = |frame: &Frame| frame.content()["epoch"].clone();
                self.epoch("/content/epoch", &epoch(recorded), &epoch(live))
            }
            "goodbye" => {
                let (one, other) = (&recorded.content()["reason"], &live.content()["reason"]);
                self.value("/content/reason", "", one, other)
            }
            _ => self.content(recorded, live),
        }
    }

    /// Compares epochs: an epoch is a cluster and a count within it.
    fn epoch(&mut self, pointer: &str, one: &Value, other: &Value) -> ComparisonResult {
        let cluster = |epoch: &Value| epoch["cluster"].as_str().unwrap_or_default().to_owned();
        let generation = |epoch: &Value| epoch["generation"].as_u64().unwrap_or_default().to_string();
        self.pair(Sort::Uid, "", &cluster(one), &cluster(other), &format!("{pointer}/cluster"))?;
        let (mine, theirs) = (generation(one), generation(other));
        self.pair(Sort::Epoch, &cluster(one), &mine, &theirs, &format!("{pointer}/generation"))
    }

    fn route(&self, recorded: &Frame, live: &Frame, pointers: &[&str]) -> ComparisonResult {
        for pointer in pointers {
            let member = |frame: &Frame| frame.as_json().pointer(pointer).cloned().unwrap_or(Value::Null);
            let (one, other) = (member(recorded), member(live));
            if one != other {
                return mismatch(pointer, format!("{} was recorded, {} arrived", short(&one), short(&other)));
            }
        }
        Ok(())
    }

    /// Compares deletions. A deletion may carry the last object or only its identity.
    fn deletion(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        let (one, other) = (recorded.content(), live.content());
        for suffix in ["/metadata/name", "/metadata/namespace", "/metadata/uid"] {
            let value = |content: &Value| content.pointer(suffix).and_then(Value::as_str).map(str::to_owned);
            let pointer = format!("/content{suffix}");
            match (value(one), value(other)) {
                (None, None) => {}
                // A KubeEdge cloud deletes a pod by name if an older edge reports it and the pod does not exist
                // (docs/reference/kubeedge.md#deliveries).
                (None, Some(_)) if suffix == "/metadata/uid" => self.rules.push(Rule::DeletionForm),
                (Some(one), Some(other)) if suffix == "/metadata/uid" => {
                    self.pair(Sort::Uid, "", &one, &other, &pointer)?;
                }
                (Some(one), Some(other)) if one == other => {}
                (one, other) => {
                    return mismatch(&pointer, format!("{one:?} was recorded, {other:?} arrived"));
                }
            }
        }
        let is_whole = |content: &Value| content.get("spec").is_some() || content.get("data").is_some();
        if is_whole(one) && is_whole(other) {
            let before = self.identifiers.mark();
            let rules = self.rules.len();
            let same = self.content(recorded, live).and_then(|()| self.header_version(recorded, live));
            if same.is_ok() {
                return Ok(());
            }
            // The last object that the edge was given, where the recorded cloud sent the last state of the object.
            self.identifiers.reset(before);
            self.rules.truncate(rules);
        }
        if is_whole(one) || is_whole(other) {
            self.rules.push(Rule::DeletionForm);
        }
        Ok(())
    }

    fn header_version(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        let (one, other) = (recorded.resource_version(), live.resource_version());
        let pointer = "/header/resourceversion";
        if one.is_empty() || other.is_empty() {
            return if one == other {
                Ok(())
            } else {
                mismatch(pointer, format!("{one:?} was recorded, {other:?} arrived"))
            };
        }
        let came = live.content().pointer("/metadata").unwrap_or(&Value::Null);
        if self.is_own(came) {
            let right = came["resourceVersion"] == *other;
            return if right {
                Ok(())
            } else {
                mismatch(pointer, format!("{other} arrived, which is not the version of the object"))
            };
        }
        let uid = recorded
            .objects()
            .first()
            .and_then(|object| object["metadata"]["uid"].as_str().map(str::to_owned));
        self.version(&uid.unwrap_or_default(), one, other, pointer)
    }

    /// Compares versions. The version of an object advances when a controller of the run's cluster writes to it.
    fn version(&mut self, scope: &str, one: &str, other: &str, pointer: &str) -> ComparisonResult {
        let paired = self.pair(Sort::Version, scope, one, other, pointer);
        if paired.is_err() && self.identifiers.advance(scope, one, other) {
            self.rules.push(Rule::ClusterAdds);
            return Ok(());
        }
        paired
    }

    fn content(&mut self, recorded: &Frame, live: &Frame) -> ComparisonResult {
        self.value("/content", "", recorded.content(), live.content())
    }

    fn pair(&mut self, sort: Sort, scope: &str, one: &str, other: &str, pointer: &str) -> ComparisonResult {
        self.identifiers.pair(sort, scope, one, other).map_err(|problem| Mismatch {
            pointer: pointer.to_owned(),
            problem: format!("{one} was recorded, {other} arrived, but {problem}"),
        })
    }

    /// Compares two values. `scope` is the recorded uid of the enclosing object.
    pub(crate) fn value(
        &mut self,
        pointer: &str,
        scope: &str,
        one: &Value,
        other: &Value,
    ) -> ComparisonResult {
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => self.members(pointer, scope, one, other),
            (Value::Array(ones), Value::Array(others)) => {
                if ones.len() != others.len() {
                    return mismatch(
                        pointer,
                        format!("{} entries were recorded, {} arrived", ones.len(), others.len()),
                    );
                }
                let mut pairs = ones.iter().zip(others).enumerate();
                pairs.try_for_each(|(index, (one, other))| {
                    self.value(&format!("{pointer}/{index}"), scope, one, other)
                })
            }
            (Value::String(one), Value::String(other)) if one != other => {
                if self.identifiers.translate(one) == *other {
                    return Ok(());
                }
                mismatch(
                    pointer,
                    format!(
                        "{} was recorded, {} arrived",
                        short(&one.as_str().into()),
                        short(&other.as_str().into())
                    ),
                )
            }
            (one, other) if one == other => Ok(()),
            (one, other) => {
                mismatch(pointer, format!("{} was recorded, {} arrived", short(one), short(other)))
            }
        }
    }

    fn members(
        &mut self,
        pointer: &str,
        scope: &str,
        one: &Map<String, Value>,
        other: &Map<String, Value>,
    ) -> ComparisonResult {
        if self.is_own(other.get("metadata").unwrap_or(&Value::Null)) {
            return self.own_object(pointer, one, other);
        }
        let uid = one.get("metadata").and_then(|metadata| metadata["uid"].as_str());
        let scope = uid.unwrap_or(scope);
        let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
        names.sort();
        names.dedup();
        // Uids first: identifiers that are scoped by a uid must find its pair.
        names.sort_by_key(|name| (*name != "uid", *name != "metadata"));
        let is_csr = [one, other].iter().all(|spec| spec.contains_key("signerName"));
        for name in names {
            if is_csr && matches!(name.as_str(), "username" | "uid" | "groups" | "extra") {
                if one.get(name) != other.get(name) {
                    self.rules.push(Rule::Requester);
                }
                continue;
            }
            let inner = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
            let (left, right) =
                (one.get(name).unwrap_or(&Value::Null), other.get(name).unwrap_or(&Value::Null));
            if name == "name" && is_made_up(pointer, one, other) {
                let texts = [left, right].map(|text| text.as_str().unwrap_or_default());
                self.pair(Sort::Uid, "", texts[0], texts[1], &inner)?;
                continue;
            }
            self.member(pointer, &inner, name, scope, left, right)?;
        }
        Ok(())
    }

    fn is_own(&self, metadata: &Value) -> bool {
        metadata["uid"].as_str().is_some_and(|uid| self.own.uids.contains(uid))
    }

    /// Compares an object that the cluster manages by itself: it must be the same object, whatever its content.
    fn own_object(
        &mut self,
        pointer: &str,
        one: &Map<String, Value>,
        other: &Map<String, Value>,
    ) -> ComparisonResult {
        self.rules.push(Rule::ClusterObjects);
        let text = |object: &Map<String, Value>, name: &str| {
            object.get("metadata").and_then(|metadata| metadata[name].as_str()).unwrap_or_default().to_owned()
        };
        for name in ["name", "namespace"] {
            let (one, other) = (text(one, name), text(other, name));
            if one != other {
                let problem = format!("{one} was recorded, {other} arrived");
                return mismatch(&format!("{pointer}/metadata/{name}"), problem);
            }
        }
        self.pair(Sort::Uid, "", &text(one, "uid"), &text(other, "uid"), &format!("{pointer}/metadata/uid"))
    }

    fn member(
        &mut self,
        parent: &str,
        pointer: &str,
        name: &str,
        scope: &str,
        one: &Value,
        other: &Value,
    ) -> ComparisonResult {
        if let Some(rule) = self.allowed(parent, name, one, other) {
            if one != other {
                self.rules.push(rule);
            }
            return Ok(());
        }
        if let Some(outcome) = self.identifier(parent, pointer, name, scope, (one, other)) {
            return outcome;
        }
        if one.is_null() != other.is_null() {
            if self.is_addition(pointer, one, other) || self.is_servers(pointer, scope, one, other) {
                self.rules.push(Rule::ClusterAdds);
                return Ok(());
            }
            if is_hollow(one, other) {
                return Ok(());
            }
        }
        let none = Map::new();
        match (one, other) {
            (Value::Object(one), Value::Null) => self.members(pointer, scope, one, &none),
            (Value::Null, Value::Object(other)) => self.members(pointer, scope, &none, other),
            (one, other) => self.value(pointer, scope, one, other),
        }
    }

    /// The rule under which a member may differ, whatever its value.
    fn allowed(&self, parent: &str, name: &str, one: &Value, other: &Value) -> Option<Rule> {
        let in_metadata = parent.ends_with("/metadata");
        let both = one.is_string() && other.is_string();
        match name {
            _ if is_trimmed(parent, name) && (other.is_null() || name == "managedFields") => {
                Some(Rule::Trimmed)
            }
            "lastHeartbeatTime" if both && self.own.moving_heartbeats => Some(Rule::Heartbeats),
            "kind" | "apiVersion" if one.is_null() && is_object_root(parent) => Some(Rule::NamesKind),
            "ownerReferences" if in_metadata && one.is_array() && other.is_null() => Some(Rule::Owners),
            "creationTimestamp" if self.token && both => Some(Rule::Token),
            "token" | "certificate" | "expirationTimestamp" if parent.ends_with("/status") && both => {
                (one.as_str() == Some("")).eq(&(other.as_str() == Some(""))).then_some(Rule::Token)
            }
            "audiences" if self.token && one.is_array() && other.is_array() => Some(Rule::Token),
            _ => None,
        }
    }

    /// Compares a member that identifies something; `None` for any other member.
    fn identifier(
        &mut self,
        parent: &str,
        pointer: &str,
        name: &str,
        scope: &str,
        (one, other): (&Value, &Value),
    ) -> Option<ComparisonResult> {
        let in_metadata = parent.ends_with("/metadata");
        if let Some(outcome) = self.allotted(parent, pointer, name, (one, other)) {
            return Some(outcome);
        }
        if name == "generation" && in_metadata && one.is_u64() && other.is_u64() {
            return Some(self.pair(Sort::Generation, scope, &one.to_string(), &other.to_string(), pointer));
        }
        let (one, other) = (one.as_str()?, other.as_str()?);
        Some(match name {
            // A reference that was written before the object that it names was created.
            "uid" if !in_metadata && one == other => Ok(()),
            "uid" => self.pair(Sort::Uid, "", one, other, pointer),
            "resourceVersion" if in_metadata => self.version(scope, one, other, pointer),
            "creationTimestamp" | "deletionTimestamp" if in_metadata => {
                self.pair(Sort::Time, &format!("{scope}/{name}"), one, other, pointer)
            }
            "cloudcore" if parent.ends_with("/annotations") => {
                self.pair(Sort::Address, "", one, other, pointer)
            }
            _ => return None,
        })
    }

    /// Whether the run's API server sets this where it was not recorded, or drops what was recorded.
    fn is_servers(&self, pointer: &str, uid: &str, one: &Value, other: &Value) -> bool {
        let pointer = in_object(pointer);
        let has = |known: &HashMap<String, Additions>, value: &Value| {
            known.get(uid).is_some_and(|list| list.iter().any(|(at, known)| at == pointer && known == value))
        };
        if one.is_null() { has(&self.own.added, other) } else { has(&self.own.left_out, one) }
    }

    /// Whether the recorded cluster added this by itself.
    fn is_addition(&self, pointer: &str, one: &Value, other: &Value) -> bool {
        let pointer = in_object(pointer);
        other.is_null() && self.additions.iter().any(|(at, value)| at == pointer && value == one)
    }
}

/// Whether this is the metadata of an object whose name the API server generated: the name differs in each cluster and
/// identifies the object as well as a uid does.
fn is_made_up(pointer: &str, one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let text = |side: &Map<String, Value>, name: &str| {
        side.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let start = text(one, "generateName");
    let made = |side| {
        let name = text(side, "name");
        name.len() > start.len() && name.starts_with(&start)
    };
    let same = !start.is_empty() && start == text(other, "generateName");
    pointer.ends_with("/metadata")
        && same
        && made(one)
        && made(other)
        && text(one, "name") != text(other, "name")
}

/// The pointer relative to the object that a frame carries.
fn in_object(pointer: &str) -> &str {
    let pointer = pointer.strip_prefix("/content").unwrap_or(pointer);
    ["/Object", "/RespBody", "/body"].iter().find_map(|start| pointer.strip_prefix(start)).unwrap_or(pointer)
}

/// Members that deliveries leave out.
fn is_trimmed(parent: &str, name: &str) -> bool {
    match name {
        "managedFields" | "selfLink" => parent.ends_with("/metadata"),
        "kubectl.kubernetes.io/last-applied-configuration" => parent.ends_with("/metadata/annotations"),
        "lastHeartbeatTime" => parent.contains("/status/conditions/"),
        // Of Nodes: a node reports its pulled images itself.
        "images" => parent.ends_with("/status"),
        _ => false,
    }
}

/// Whether the object of an answer is at this pointer.
fn is_object_root(pointer: &str) -> bool {
    matches!(pointer, "/content" | "/content/Object" | "/content/RespBody" | "/content/body")
}

/// Treats an object without members like no object.
fn is_hollow(one: &Value, other: &Value) -> bool {
    let hollow = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    hollow(one) && hollow(other)
}

/// What answers to inserts show beyond the request: plugins and controllers of the recorded cluster added it.
pub(crate) fn additions(asked: &Value, made: &Value) -> Additions {
    const SERVERS_OWN: [&str; 6] =
        ["uid", "resourceVersion", "creationTimestamp", "managedFields", "name", "namespace"];
    let mut found = Additions::new();
    collect("", asked, made, &mut found);
    let own = |pointer: &str| SERVERS_OWN.iter().any(|name| pointer == format!("/metadata/{name}"));
    found.retain(|(pointer, _)| !own(pointer));
    found
}

fn collect(pointer: &str, asked: &Value, made: &Value, found: &mut Additions) {
    if let (Some(asked), Some(made)) = (asked.as_array(), made.as_array())
        && asked.len() == made.len()
    {
        for (index, (asked, made)) in asked.iter().zip(made).enumerate() {
            collect(&format!("{pointer}/{index}"), asked, made, found);
        }
        return;
    }
    let Some(members) = made.as_object() else {
        if asked.is_null() && !made.is_null() {
            found.push((pointer.to_owned(), made.clone()));
        }
        return;
    };
    for (name, value) in members {
        let inner = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
        collect(&inner, asked.get(name).unwrap_or(&Value::Null), value, found);
    }
}

/// Learns the identifiers of an object that was put into the API from the API's answer.
pub(crate) fn learn(identifiers: &mut Identifiers, recorded: &Value, live: &Value) {
    let text = |object: &Value, name: &str| object["metadata"][name].as_str().map(str::to_owned);
    let scope = text(recorded, "uid").unwrap_or_default();
    let mut pair = |sort, scope: &str, name: &str| {
        if let (Some(one), Some(other)) = (text(recorded, name), text(live, name)) {
            // A contradiction is reported when a frame shows it.
            let _ = identifiers.pair(sort, scope, &one, &other);
        }
    };
    pair(Sort::Uid, "", "uid");
    let ends = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    if ends(recorded) && !ends(live) {
        // The object was deleted at once: what is known of it is its state before the deletion.
        return;
    }
    pair(Sort::Version, &scope, "resourceVersion");
    for name in ["creationTimestamp", "deletionTimestamp"] {
        pair(Sort::Time, &format!("{scope}/{name}"), name);
    }
    let generation =
        |object: &Value| object["metadata"]["generation"].as_u64().map(|number| number.to_string());
    if let (Some(one), Some(other)) = (generation(recorded), generation(live)) {
        let _ = identifiers.pair(Sort::Generation, &scope, &one, &other);
    }
    services::learn(identifiers, recorded, live);
}
