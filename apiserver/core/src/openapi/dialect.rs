//! What differs between the two forms of OpenAPI that are served.

use serde_json::{Value, json};

/// A form of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Swagger 2.0: one document for everything.
    V2,
    /// OpenAPI 3.0: one document for each group and version.
    V3,
}

impl Dialect {
    /// A schema that is the named one.
    pub(super) fn reference(self, name: &str) -> Value {
        let prefix = match self {
            Self::V2 => "#/definitions/",
            Self::V3 => "#/components/schemas/",
        };
        json!({"$ref": format!("{prefix}{name}")})
    }

    /// The same as the schema of a property, which other keywords may stand beside: readers of version 3 pass over
    /// what stands beside a bare reference.
    pub(super) fn property(self, name: &str) -> Value {
        match self {
            Self::V2 => self.reference(name),
            Self::V3 => json!({"allOf": [self.reference(name)]}),
        }
    }

    /// An integer or a string. Version 2 has no alternatives.
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

    /// Any value at all.
    pub(super) fn anything(self) -> Value {
        match self {
            // With a type, kubectl would take it for a map.
            Self::V2 => json!({}),
            Self::V3 => json!({"type": "object"}),
        }
    }
}
