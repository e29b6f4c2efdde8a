//! Reads the table of facts about built-in kinds (`data/builtin.txt`, written by `cargo xtask facts`).
//!
//! The table is part of the binary; names borrow from it, so that a loaded table costs only its nodes.

use std::collections::HashMap;

use super::types::{
    Field, ListMerge, ListShape, Name, Node, NodeId, Presence, Rest, Shape, StringKind, StructShape,
    Topology, Types, Wire, WireForm,
};

const TABLE: &str = include_str!("../../data/builtin.txt");

/// One built-in kind as discovery shows it.
#[derive(Debug, Clone)]
pub(crate) struct KindFact {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<&'static str>,
    pub(crate) short_names: Vec<&'static str>,
    pub(crate) categories: Vec<&'static str>,
    pub(crate) subresources: Vec<SubresourceFact>,
    pub(crate) node: NodeId,
}

/// One subresource of a built-in kind.
#[derive(Debug, Clone)]
pub(crate) struct SubresourceFact {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) verbs: Vec<&'static str>,
}

/// The table, loaded.
pub(crate) struct Facts {
    pub(crate) types: Types,
    pub(crate) kinds: Vec<KindFact>,
}

/// Loads the table. This takes well below a millisecond; a server does it once.
pub(crate) fn load() -> Facts {
    let mut loader = Loader::default();
    for line in TABLE.lines() {
        loader.line(line);
    }
    loader.close();
    Facts { types: loader.types, kinds: loader.kinds }
}

#[derive(Default)]
struct Loader {
    types: Types,
    kinds: Vec<KindFact>,
    group: &'static str,
    version: &'static str,
    open: Option<(NodeId, &'static str, bool)>,
    fields: Vec<Field>,
    /// Nodes without their own flags are shared.
    shared: HashMap<&'static str, NodeId>,
}

impl Loader {
    fn line(&mut self, line: &'static str) {
        let mut words = line.split_ascii_whitespace();
        if line.starts_with(' ') {
            if let (Some(name), Some(ty), Some(presence)) = (words.next(), words.next(), words.next()) {
                self.field(name, ty, presence, words);
            }
            return;
        }
        match words.next() {
            Some("gv") => (self.group, self.version) = split_group_version(words.next().unwrap_or_default()),
            Some("kind") => self.kind(words),
            Some("sub") => self.subresource(words),
            Some("type") => {
                self.close();
                let name = words.next().unwrap_or_default();
                let id = self.types.named_or_reserve(name);
                self.open = Some((id, name, words.next() == Some("atomic")));
            }
            _ => {}
        }
    }

    fn kind(&mut self, mut words: impl Iterator<Item = &'static str>) {
        let mut next = || words.next().unwrap_or_default();
        let (plural, kind, singular, scope) = (next(), next(), next(), next());
        let verbs = next().split(',').collect();
        let mut fact = KindFact {
            group: self.group,
            version: self.version,
            plural,
            kind,
            singular,
            namespaced: scope == "ns",
            verbs,
            short_names: Vec::new(),
            categories: Vec::new(),
            subresources: Vec::new(),
            node: self.types.named_or_reserve("meta.v1.ObjectMeta"),
        };
        for word in words {
            match word.split_once('=') {
                Some(("short", names)) => fact.short_names = names.split(',').collect(),
                Some(("cat", names)) => fact.categories = names.split(',').collect(),
                Some(("type", name)) => fact.node = self.types.named_or_reserve(name),
                _ => {}
            }
        }
        self.kinds.push(fact);
    }

    fn subresource(&mut self, mut words: impl Iterator<Item = &'static str>) {
        let mut next = || words.next().unwrap_or_default();
        let name = next();
        let (group, version) = split_group_version(next());
        let (kind, verbs) = (next(), next().split(',').collect());
        if let Some(of) = self.kinds.last_mut() {
            of.subresources.push(SubresourceFact { name, group, version, kind, verbs });
        }
    }

    fn field(
        &mut self,
        name: &'static str,
        ty: &'static str,
        presence: &str,
        flags: impl Iterator<Item = &'static str>,
    ) {
        let presence = match presence {
            // An empty list of managed fields is a client's way to reset them, so it must be kept.
            "o" if name == "managedFields" => Presence::Keep,
            "o" => Presence::Omit,
            "e" => Presence::Emit,
            "n" => Presence::Null,
            _ => Presence::Keep,
        };
        let mut field = Field {
            name: Name::Borrowed(name),
            node: self.types.named_or_reserve("meta.v1.ObjectMeta"),
            required: false,
            presence,
            retain_keys: false,
            default: None,
            go: None,
            wire: None,
        };
        let mut list = ListFlags::default();
        for flag in flags {
            match flag.split_once('=') {
                None if flag == "req" => field.required = true,
                None if flag == "retain" => field.retain_keys = true,
                None if flag == "merges" => list.merge = Some(ListMerge { key: None }),
                Some(("list", "set")) => list.topology = Some(Topology::Set),
                Some(("list", keys)) => list.topology = keys.strip_prefix("map:").map(map_keys),
                Some(("map", _)) => list.atomic_map = true,
                Some(("merge", key)) => list.merge = Some(ListMerge { key: Some(Name::Borrowed(key)) }),
                Some(("def", json)) => field.default = Some(Name::Borrowed(json)),
                Some(("go", go)) => field.go = Some(Name::Borrowed(go)),
                Some(("pb", text)) => field.wire = Some(Box::new(wire(text))),
                _ => {}
            }
        }
        field.node = self.node(ty, list);
        self.fields.push(field);
    }

    fn node(&mut self, ty: &'static str, flags: ListFlags) -> NodeId {
        let plain = flags.is_plain();
        if let Some(id) = self.shared.get(ty).filter(|_| plain) {
            return *id;
        }
        let shape = if let Some(item) = ty.strip_prefix("[]") {
            let item = self.node(item, ListFlags::default());
            let topology = flags.topology.unwrap_or(Topology::Atomic);
            Shape::List(ListShape { item, topology, merge: flags.merge })
        } else if let Some(value) = ty.strip_prefix("{}") {
            Shape::Map { value: self.node(value, ListFlags::default()), atomic: flags.atomic_map }
        } else {
            match scalar(ty) {
                Some(shape) => shape,
                None => return self.types.named_or_reserve(ty),
            }
        };
        let id = self.types.add(Node::new(shape));
        if plain {
            self.shared.insert(ty, id);
        }
        id
    }

    fn close(&mut self) {
        let Some((id, name, atomic)) = self.open.take() else { return };
        let mut fields = std::mem::take(&mut self.fields);
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let shape = StructShape { fields: fields.into(), rest: Rest::Pruned, atomic, embedded: false };
        let mut node = Node::new(Shape::Struct(shape));
        node.name = Some(Name::Borrowed(name));
        self.types.set(id, node);
    }
}

#[derive(Default)]
struct ListFlags {
    topology: Option<Topology>,
    merge: Option<ListMerge>,
    atomic_map: bool,
}

impl ListFlags {
    fn is_plain(&self) -> bool {
        self.topology.is_none() && self.merge.is_none() && !self.atomic_map
    }
}

fn map_keys(keys: &'static str) -> Topology {
    Topology::Map(keys.split(',').map(Name::Borrowed).collect())
}

/// `2.1` or `30:or-bool`.
fn wire(text: &str) -> Wire {
    let (path, form) = text.split_once(':').unwrap_or((text, ""));
    let form = match form {
        "or-bool" => WireForm::SchemaOrBool,
        "or-list" => WireForm::SchemaOrList,
        "or-names" => WireForm::SchemaOrNames,
        _ => WireForm::Text,
    };
    Wire { path: path.split('.').filter_map(|number| number.parse().ok()).collect(), form }
}

fn split_group_version(text: &'static str) -> (&'static str, &'static str) {
    text.split_once('/').unwrap_or(("", text))
}

fn scalar(ty: &str) -> Option<Shape> {
    Some(match ty {
        "string" => Shape::String(StringKind::Plain),
        "bytes" => Shape::String(StringKind::Bytes),
        "time" => Shape::String(StringKind::Time),
        "microtime" => Shape::String(StringKind::MicroTime),
        "bool" => Shape::Bool,
        "int32" => Shape::Integer { bits: 32 },
        "int64" => Shape::Integer { bits: 64 },
        "number" => Shape::Number,
        "quantity" => Shape::Quantity,
        "int-or-string" => Shape::IntOrString,
        "any" => Shape::Any { atomic: true },
        _ => return None,
    })
}
