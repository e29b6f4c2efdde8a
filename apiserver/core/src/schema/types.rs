//! The arena of type nodes, and the cursor that walks it along a value.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::node_checks::Checks;
use super::rules::{NoRules, RuleEngine};

/// A name; names of built-in types borrow from the table of facts.
pub(crate) type Name = Cow<'static, str>;

/// Index of a node in its arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(u32);

/// One type.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) shape: Shape,
    /// Whether null is a value of the type (custom resources only).
    pub(crate) nullable: bool,
    /// Value rules. Every node of a custom resource has them, nodes of built-in kinds never do.
    pub(crate) checks: Option<Box<Checks>>,
    /// Value of an absent field.
    pub(crate) default: Option<Box<Value>>,
    /// Go or OpenAPI name, for example `core.v1.PodSpec`.
    pub(crate) name: Option<Name>,
}

/// The form of the values of a type.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    /// Any value. In server-side apply it is one leaf when `atomic`, otherwise its structure is deduced.
    Any { atomic: bool },
    /// A boolean.
    Bool,
    /// An integer of 32 or 64 bits.
    Integer { bits: u8 },
    /// A number.
    Number,
    /// A string; those of built-in types are encoded by kind.
    String(StringKind),
    /// An integer or a string.
    IntOrString,
    /// A resource quantity: a string or a number.
    Quantity,
    /// Named fields.
    Struct(StructShape),
    /// Any names, with values of one type.
    Map { value: NodeId, atomic: bool },
    /// Items of one type.
    List(ListShape),
}

/// The content of a string of a built-in type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StringKind {
    Plain,
    Bytes,
    Time,
    MicroTime,
}

/// Named fields, and how to treat others.
#[derive(Debug, Clone)]
pub(crate) struct StructShape {
    /// Sorted by name.
    pub(crate) fields: Box<[Field]>,
    pub(crate) rest: Rest,
    pub(crate) atomic: bool,
    /// Whether the struct is a whole object: apiVersion, kind and metadata are always known.
    pub(crate) embedded: bool,
}

/// How to treat fields that a struct does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Unknown fields are reported and removed.
    Pruned,
    /// Unknown fields are kept.
    Kept,
}

/// One named field.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: Name,
    pub(crate) node: NodeId,
    pub(crate) required: bool,
    pub(crate) presence: Presence,
    /// Strategic merge patch strategy `retainKeys`.
    pub(crate) retain_keys: bool,
    /// Default in the OpenAPI of a built-in type; used for the keys of associative lists.
    pub(crate) default: Option<Name>,
    /// Name of the Go type of a string, where it is not `string`.
    pub(crate) go: Option<Name>,
    /// Position in protobuf bodies; fields of custom types have none.
    pub(crate) wire: Option<Box<Wire>>,
}

/// The position of a field of a built-in type in protobuf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wire {
    /// Field numbers from the struct to the field: several where JSON inlines a separate message.
    pub(crate) path: Box<[u32]>,
    pub(crate) form: WireForm,
}

/// The protobuf message of an untyped value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireForm {
    /// JSON text in field 1.
    Text,
    /// A boolean in field 1 or a JSON schema in field 2.
    SchemaOrBool,
    /// A JSON schema in field 1 or many in field 2.
    SchemaOrList,
    /// A JSON schema in field 1 or names in field 2.
    SchemaOrNames,
}

/// How the Go encoder treats a field's zero value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Kept as given.
    Keep,
    /// Left out when zero.
    Omit,
    /// Always written.
    Emit,
    /// Written as null when absent.
    Null,
}

/// The items of a list, and how lists are merged.
#[derive(Debug, Clone)]
pub(crate) struct ListShape {
    pub(crate) item: NodeId,
    /// Server-side apply.
    pub(crate) topology: Topology,
    /// Strategic merge patch; `None` replaces the list.
    pub(crate) merge: Option<ListMerge>,
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone)]
pub(crate) enum Topology {
    Atomic,
    Set,
    Map(Box<[Name]>),
}

/// `x-kubernetes-patch-strategy: merge` of a list.
#[derive(Debug, Clone)]
pub(crate) struct ListMerge {
    /// Key of objects; `None` for a list of scalars.
    pub(crate) key: Option<Name>,
}

/// An arena of types.
#[derive(Debug)]
pub(crate) struct Types {
    nodes: Vec<Node>,
    named: HashMap<Name, NodeId>,
    /// Compiles the rules of custom types that are built with this arena.
    engine: Arc<dyn RuleEngine>,
}

impl Default for Types {
    fn default() -> Self {
        Self { nodes: Vec::new(), named: HashMap::new(), engine: Arc::new(NoRules) }
    }
}

impl Node {
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, nullable: false, checks: None, default: None, name: None }
    }
}

impl Types {
    /// An arena with a single type that accepts everything.
    pub(crate) fn any() -> (Self, NodeId) {
        let mut types = Self::default();
        let root = types.add(Node::new(Shape::Any { atomic: false }));
        (types, root)
    }

    /// The same types, with an engine for the rules of custom types.
    pub(crate) fn with_engine(self, engine: Arc<dyn RuleEngine>) -> Self {
        Self { engine, ..self }
    }

    pub(crate) fn engine(&self) -> &dyn RuleEngine {
        &*self.engine
    }

    /// Appends a node.
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).expect("an arena holds some thousand nodes"));
        self.nodes.push(node);
        id
    }

    /// The id of a named type. A type that is not defined yet is reserved.
    pub(crate) fn named_or_reserve(&mut self, name: &'static str) -> NodeId {
        if let Some(id) = self.named.get(name) {
            return *id;
        }
        let id = self.add(Node::new(Shape::Any { atomic: true }));
        self.named.insert(Name::Borrowed(name), id);
        id
    }

    /// Replaces a reserved node.
    pub(crate) fn set(&mut self, id: NodeId, node: Node) {
        self.nodes[id.0 as usize] = node;
    }

    /// A named type.
    pub(crate) fn named(&self, name: &str) -> Option<NodeId> {
        self.named.get(name).copied()
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// Whether a definition has rules (`x-kubernetes-validations`) anywhere.
    pub(crate) fn has_rules(&self) -> bool {
        let with_rules = |node: &Node| node.checks.as_ref().is_some_and(|checks| !checks.rules.is_empty());
        self.nodes.iter().any(with_rules)
    }

    /// Copies a type and everything that it refers to from another arena.
    pub(crate) fn import(&mut self, from: &Self, id: NodeId) -> NodeId {
        let mut seen = HashMap::new();
        self.import_node(from, id, &mut seen)
    }

    fn import_node(&mut self, from: &Self, id: NodeId, seen: &mut HashMap<NodeId, NodeId>) -> NodeId {
        if let Some(done) = seen.get(&id) {
            return *done;
        }
        let mut node = from.node(id).clone();
        let here = self.add(node.clone());
        seen.insert(id, here);
        match &mut node.shape {
            Shape::Struct(shape) => {
                for field in &mut shape.fields {
                    field.node = self.import_node(from, field.node, seen);
                }
            }
            Shape::Map { value, .. } => *value = self.import_node(from, *value, seen),
            Shape::List(list) => list.item = self.import_node(from, list.item, seen),
            _ => {}
        }
        self.set(here, node);
        here
    }
}

impl StructShape {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        let at = self.fields.binary_search_by(|field| field.name.as_ref().cmp(name)).ok()?;
        Some(&self.fields[at])
    }
}

/// A type with its arena.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    types: &'a Types,
    id: NodeId,
}

/// The type of everything below an untyped value.
static DEDUCED: Node =
    Node { shape: Shape::Any { atomic: false }, nullable: true, checks: None, default: None, name: None };

impl<'a> Cursor<'a> {
    pub(crate) fn new(types: &'a Types, id: NodeId) -> Self {
        Self { types, id }
    }

    pub(crate) fn node(self) -> &'a Node {
        self.types.node(self.id)
    }

    pub(crate) fn id(self) -> NodeId {
        self.id
    }

    /// A named type of the same arena.
    pub(crate) fn named(self, name: &str) -> Option<NodeId> {
        self.types.named(name)
    }

    /// Another node of the same arena.
    pub(crate) fn at(self, id: NodeId) -> Self {
        Self { types: self.types, id }
    }
}

/// The type at a position in a value; untyped positions have no cursor but still a shape.
#[derive(Clone, Copy)]
pub(crate) struct SchemaPosition<'a>(pub(crate) Option<Cursor<'a>>);

impl<'a> SchemaPosition<'a> {
    pub(crate) fn node(self) -> &'a Node {
        self.0.map_or(&DEDUCED, Cursor::node)
    }

    /// The type of a struct's field or a map's value, and whether the name is a declared field.
    pub(crate) fn child(self, name: &str) -> (Self, bool) {
        let Some(cursor) = self.0 else { return (Self(None), false) };
        match &cursor.node().shape {
            Shape::Struct(shape) => match shape.field(name) {
                Some(field) => (Self(Some(cursor.at(field.node))), true),
                None => (Self(None), false),
            },
            Shape::Map { value, .. } => (Self(Some(cursor.at(*value))), false),
            _ => (Self(None), false),
        }
    }

    /// The type of a list's items.
    pub(crate) fn item(self) -> Self {
        match (self.0, &self.node().shape) {
            (Some(cursor), Shape::List(list)) => Self(Some(cursor.at(list.item))),
            _ => Self(None),
        }
    }
}
