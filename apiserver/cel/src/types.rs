//! Types of expressions, with the size bounds of a schema.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Stands for an unbounded size.
pub const UNBOUNDED: u64 = u64::MAX;

/// A type of the Common Expression Language. Sizes are maximum numbers of bytes, elements or entries; comparisons of
/// types ignore them.
#[derive(Debug, Clone)]
pub enum Type {
    /// A type known only at runtime, with the maximum size of its values.
    Dyn(u64),
    /// Element type of an empty list or map; compatible with every type.
    Unknown,
    /// `null`.
    Null,
    /// `bool`.
    Bool,
    /// `int`.
    Int,
    /// `uint`.
    Uint,
    /// `double`.
    Double,
    /// `string`.
    String(u64),
    /// `bytes`.
    Bytes(u64),
    /// A timestamp.
    Timestamp,
    /// A duration.
    Duration,
    /// A list of elements.
    List(Arc<Self>, u64, ListKind),
    /// A map from keys to values.
    Map(Arc<Self>, Arc<Self>, u64),
    /// An optional value.
    Optional(Arc<Self>),
    /// An object with named fields.
    Object(Arc<ObjectType>),
    /// A library type, by its name.
    Opaque(&'static str),
    /// The type of types.
    Meta,
    /// In signatures: a type parameter, the same type wherever the number occurs.
    Param(u8),
}

/// How elements of a list are identified (`x-kubernetes-list-type`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ListKind {
    /// By position.
    #[default]
    Atomic,
    /// By value; the order is irrelevant.
    Set,
    /// By these members, with their JSON names; the order is irrelevant.
    Map(Arc<[String]>),
}

/// Declared fields of an object.
#[derive(Debug)]
pub struct ObjectType {
    /// Fields by their names in expressions.
    pub fields: BTreeMap<String, Field>,
    /// The name of the type in error messages.
    pub name: String,
}

/// One declared field.
#[derive(Debug, Clone)]
pub struct Field {
    /// Name in JSON.
    pub json: String,
    /// Its type.
    pub ty: Type,
}

impl Type {
    /// Any value of any size.
    pub const DYN: Self = Self::Dyn(UNBOUNDED);
    /// A string of any size.
    pub const STRING: Self = Self::String(UNBOUNDED);

    /// A list of unbounded size.
    #[must_use]
    pub fn list(element: Self) -> Self {
        Self::List(Arc::new(element), UNBOUNDED, ListKind::Atomic)
    }

    /// A map of unbounded size with string keys.
    #[must_use]
    pub fn map(value: Self) -> Self {
        Self::Map(Arc::new(Self::STRING), Arc::new(value), UNBOUNDED)
    }

    /// An object with fields whose names need no escaping.
    #[must_use]
    pub fn object<const N: usize>(name: &str, fields: [(&str, Self); N]) -> Self {
        let field = |(name, ty): (&str, Self)| (name.to_owned(), Field { json: name.to_owned(), ty });
        Self::Object(Arc::new(ObjectType {
            fields: fields.into_iter().map(field).collect(),
            name: name.to_owned(),
        }))
    }

    /// The maximum size of a value; scalars have size 1.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Dyn(size)
            | Self::String(size)
            | Self::Bytes(size)
            | Self::List(_, size, _)
            | Self::Map(_, _, size) => *size,
            Self::Object(_) | Self::Optional(_) | Self::Unknown | Self::Param(_) => UNBOUNDED,
            _ => 1,
        }
    }

    /// The same type with another size bound.
    #[must_use]
    pub fn sized(self, size: u64) -> Self {
        match self {
            Self::Dyn(_) => Self::Dyn(size),
            Self::String(_) => Self::String(size),
            Self::Bytes(_) => Self::Bytes(size),
            Self::List(element, _, kind) => Self::List(element, size, kind),
            Self::Map(key, value, _) => Self::Map(key, value, size),
            other => other,
        }
    }

    /// Whether values can be so large that reading them has a cost.
    #[must_use]
    pub fn is_large(&self) -> bool {
        matches!(
            self,
            Self::Dyn(_)
                | Self::Unknown
                | Self::String(_)
                | Self::Bytes(_)
                | Self::List(..)
                | Self::Map(..)
                | Self::Object(_)
                | Self::Optional(_)
        )
    }

    /// The common type of values of both types, if there is one.
    #[must_use]
    pub fn join(&self, other: &Self) -> Option<Self> {
        let size = self.size().max(other.size());
        Some(match (self, other) {
            (Self::Unknown, ty) | (ty, Self::Unknown) => ty.clone(),
            (Self::Dyn(_), _) | (_, Self::Dyn(_)) => Self::Dyn(size),
            (Self::Null, ty) | (ty, Self::Null) if ty.takes_null() => ty.clone(),
            (Self::List(a, _, kind), Self::List(b, _, other)) => {
                let kind = if kind == other { kind.clone() } else { ListKind::Atomic };
                Self::List(Arc::new(a.join(b)?), size, kind)
            }
            (Self::Map(ak, av, _), Self::Map(bk, bv, _)) => {
                Self::Map(Arc::new(ak.join(bk)?), Arc::new(av.join(bv)?), size)
            }
            (Self::Optional(a), Self::Optional(b)) => Self::Optional(Arc::new(a.join(b)?)),
            (a, b) if a.is_like(b) => a.clone().sized(size),
            _ => return None,
        })
    }

    fn takes_null(&self) -> bool {
        matches!(
            self,
            Self::Null
                | Self::Object(_)
                | Self::Timestamp
                | Self::Duration
                | Self::Opaque(_)
                | Self::Optional(_)
        )
    }

    /// Whether the types are the same, ignoring element types.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(a), Self::Object(b)) => Arc::ptr_eq(a, b),
            (Self::Opaque(a), Self::Opaque(b)) => a == b,
            (Self::Param(a), Self::Param(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn(_) | Self::Unknown => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String(_) => f.write_str("string"),
            Self::Bytes(_) => f.write_str("bytes"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::List(element, ..) => write!(f, "list({element})"),
            Self::Map(key, value, _) => write!(f, "map({key}, {value})"),
            Self::Optional(of) => write!(f, "optional_type({of})"),
            Self::Object(object) => f.write_str(&object.name),
            Self::Opaque(name) => f.write_str(name),
            Self::Meta => f.write_str("type"),
            Self::Param(0) => f.write_str("A"),
            Self::Param(_) => f.write_str("B"),
        }
    }
}
