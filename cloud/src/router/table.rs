//! The existing rules, so that only additions and deletions are reported.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Change, Router, RouterMessage, RouterObject};
use crate::kube::{ObjectEvent, RawObject};

/// Maximum number of objects of one kind; further ones are left out, with a warning.
pub(super) const OBJECTS_MAX: usize = 10_000;

/// Maximum memory that these objects take, in bytes; objects beyond it are left out as well.
pub(super) const OBJECTS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes that an object takes besides its texts, and that each member of its maps takes.
const OBJECT_OVERHEAD: usize = 512;
const MEMBER_OVERHEAD: usize = 128;

/// The watched kinds. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterKind {
    Rule,
    RuleEndpoint,
}

impl RouterKind {
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Rule => "rules",
            Self::RuleEndpoint => "ruleendpoints",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rule => "Rule",
            Self::RuleEndpoint => "RuleEndpoint",
        }
    }

    fn read(self, object: &Value) -> Result<RouterObject, serde_json::Error> {
        use serde::Deserialize as _;
        Ok(match self {
            Self::Rule => RouterObject::Rule(super::Rule::deserialize(object)?),
            Self::RuleEndpoint => RouterObject::RuleEndpoint(super::RuleEndpoint::deserialize(object)?),
        })
    }
}

/// Namespace and name.
type Name = (String, String);

/// The known objects of one kind.
#[derive(Debug)]
pub(super) struct Table {
    kind: RouterKind,
    /// At most [`OBJECTS_MAX`] objects and [`OBJECTS_BYTES_MAX`] bytes.
    known: BTreeMap<Name, RouterMessage>,
    bytes: usize,
    /// While a list is being received: the known objects seen in it so far.
    listed: Option<BTreeSet<Name>>,
}

impl Table {
    pub(super) fn new(kind: RouterKind) -> Self {
        Self { kind, known: BTreeMap::new(), bytes: 0, listed: None }
    }

    /// Takes a watch event, and notifies the router of additions and deletions.
    pub(super) fn handle(&mut self, event: ObjectEvent, router: &dyn Router) {
        match event {
            ObjectEvent::RelistStart => self.listed = Some(BTreeSet::new()),
            ObjectEvent::Applied(object) => self.applied(&object, router),
            ObjectEvent::Deleted(object) => self.gone(&name_of(&object), router),
            ObjectEvent::RelistEnd => {
                let Some(listed) = self.listed.take() else { return };
                let gone: Vec<_> =
                    self.known.keys().filter(|name| !listed.contains(*name)).cloned().collect();
                gone.iter().for_each(|name| self.gone(name, router));
            }
        }
    }

    /// The kind is no longer served: all its objects were deleted with its definition.
    pub(super) fn clear(&mut self, router: &dyn Router) {
        self.listed = None;
        let names: Vec<_> = self.known.keys().cloned().collect();
        names.iter().for_each(|name| self.gone(name, router));
    }

    fn applied(&mut self, object: &RawObject, router: &dyn Router) {
        let name = name_of(object);
        if let Some(listed) = &mut self.listed
            && self.known.contains_key(&name)
        {
            listed.insert(name.clone());
        }
        let read = match self.kind.read(object.value()) {
            Ok(read) => read,
            Err(error) => {
                let (namespace, name) = name;
                tracing::warn!(kind = self.kind.name(), namespace, name, %error, "object cannot be used by a router");
                return;
            }
        };
        if self.known.get(&name).is_some_and(|known| uid_of(&known.object) == uid_of(&read)) {
            return;
        }
        self.gone(&name, router);
        let bytes = memory_of(&read);
        if self.known.len() >= OBJECTS_MAX || self.bytes + bytes > OBJECTS_BYTES_MAX {
            let (namespace, name) = name;
            tracing::warn!(
                kind = self.kind.name(),
                namespace,
                name,
                OBJECTS_MAX,
                OBJECTS_BYTES_MAX,
                "too many objects, or too large ones: ignoring this one"
            );
            return;
        }
        let version = object.value().pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let message = RouterMessage {
            change: Change::Insert,
            resource_version: version.unwrap_or_default().to_owned(),
            object: read,
        };
        self.bytes += bytes;
        if let Some(listed) = &mut self.listed {
            listed.insert(name.clone());
        }
        self.known.insert(name, message.clone());
        router.handle(message);
    }

    fn gone(&mut self, name: &Name, router: &dyn Router) {
        if let Some(known) = self.known.remove(name) {
            self.bytes -= memory_of(&known.object);
            router.handle(RouterMessage { change: Change::Delete, ..known });
        }
    }
}

fn name_of(object: &RawObject) -> Name {
    let text = |pointer: &str| object.value().pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    (text("/metadata/namespace").to_owned(), text("/metadata/name").to_owned())
}

/// Bytes that an object takes in memory.
fn memory_of(object: &RouterObject) -> usize {
    let metadata = object.metadata();
    let texts = [&metadata.namespace, &metadata.name, &metadata.uid].map(String::len).iter().sum::<usize>();
    let members = |map: &BTreeMap<String, String>| {
        map.iter().map(|(name, value)| MEMBER_OVERHEAD + name.len() + value.len()).sum::<usize>()
    };
    let spec = match object {
        RouterObject::Rule(super::Rule { spec, .. }) => {
            let maps = members(&spec.source_resource) + members(&spec.target_resource);
            spec.source.len() + spec.target.len() + maps
        }
        RouterObject::RuleEndpoint(endpoint) => members(&endpoint.spec.properties),
    };
    OBJECT_OVERHEAD + texts + spec
}

fn uid_of(object: &RouterObject) -> &str {
    match object {
        RouterObject::Rule(rule) => &rule.metadata.uid,
        RouterObject::RuleEndpoint(endpoint) => &endpoint.metadata.uid,
    }
}
