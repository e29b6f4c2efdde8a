//! The differences between the two supported versions of OpenAPI.

use serde_json::{Value, json};

/// A version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAPI 2.0 (Swagger): one document for everything.
    V2,
    /// OpenAPI 3.0: one document for each group and version.
    V3,
}

impl Dialect {
    /// A reference to a named schema.
    pub(super) fn reference(self, name: &str) -> Value {
        let prefix = match self {
            Self::V2 => "#/definitions/",
            Self::V3 => "#/components/schemas/",
        };
        json!({"$ref": format!("{prefix}{name}")})
    }

    /// A reference as the schema of a property that may have other keywords beside it: readers of version 3 ignore what
    /// stands beside a plain reference.
    pub(super) fn property(self, name: &str) -> Value {
        match self {
            Self::V2 => self.reference(name),
            Self::V3 => json!({"allOf": [self.reference(name)]}),
        }
    }

    /// An integer or a string. Version 2 cannot express alternatives.
    pub(super) fn int_or_string(self) -> Value {
        match self {
            Self::V2 => json!({"type": "string", "format": "int-or-string"}),
            Self::V3 => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
        }
    }

    /// A quantity.
    pub(super) fn quantity(self) -> Value {
        match self {
            Self::V2 => json!({"type": "string"}),
            Self::V3 => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        }
    }

    /// Any value.
    pub(super) fn anything(self) -> Value {
        match self {
            // With a type, kubectl would treat it as a map.
            Self::V2 => json!({}),
            Self::V3 => json!({"type": "object"}),
        }
    }
}
