//! The descriptions that `kubectl explain` shows. Every server describes the fields that all objects have; the rest
//! only where the kinds contain descriptions.

use std::collections::HashMap;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::kinds::Kinds;

/// `metadata` of any object.
const METADATA: &str = "Standard object's metadata: its name and place, and what the server keeps about it.";

/// `apiVersion` of any object.
const API_VERSION: &str =
    "APIVersion defines the group and version whose schema the object follows, as group/version.";

/// `kind` of any object.
const KIND: &str = "Kind names the type of the object, in CamelCase. It cannot be changed.";

const OBJECT_META: &[(&str, &str)] = &[
    ("", "ObjectMeta is the metadata that every stored object has."),
    (
        "annotations",
        "Annotations are free keys and values that tools keep with the object. They cannot be selected by.",
    ),
    (
        "creationTimestamp",
        "CreationTimestamp is a timestamp of the moment at which the server created the object, in UTC. Set by the server.",
    ),
    (
        "deletionGracePeriodSeconds",
        "Seconds that the object may take to end before it is removed. Set by the server when deletion begins.",
    ),
    (
        "deletionTimestamp",
        "DeletionTimestamp is the time at which the object will be removed, once its deletion was asked for and its finalizers are gone. Set by the server.",
    ),
    (
        "finalizers",
        "Finalizers must all be taken away before the object is removed; each belongs to a component that still has something to do.",
    ),
    (
        "generateName",
        "GenerateName is the beginning of a unique name that the server makes when no name is given.",
    ),
    ("generation", "Generation counts the changes of the wanted state. Set by the server."),
    ("labels", "Labels are keys and values by which objects are selected and grouped."),
    (
        "managedFields",
        "ManagedFields say which writer owns which fields, for server-side apply. Set by the server.",
    ),
    ("name", "Name must be unique within a namespace. It cannot be changed."),
    (
        "namespace",
        "Namespace is the space within which the name must be unique. Empty for objects of the cluster.",
    ),
    (
        "ownerReferences",
        "OwnerReferences name the objects that this one depends on: it is garbage once all of them are gone.",
    ),
    (
        "resourceVersion",
        "ResourceVersion is an opaque value that changes with the object; writes that carry it are refused when it is not the current one. Set by the server.",
    ),
    ("selfLink", "SelfLink is no longer set."),
    (
        "uid",
        "UID is a value unique in time and space, which tells the object from others of the same name. Set by the server.",
    ),
];

const OWNER_REFERENCE: &[(&str, &str)] = &[
    ("", "OwnerReference names an owner in the same namespace, or one of the cluster."),
    ("apiVersion", "Group and version of the owner."),
    ("blockOwnerDeletion", "Whether a foreground deletion of the owner waits for this object."),
    ("controller", "Whether the owner is the controller that manages this object."),
    ("kind", "Kind of the owner."),
    ("name", "Name of the owner."),
    ("uid", "UID of the owner."),
];

const MANAGED_FIELDS_ENTRY: &[(&str, &str)] = &[
    ("", "ManagedFieldsEntry is the set of fields that one writer owns."),
    ("apiVersion", "Version in which the fields are named."),
    ("fieldsType", "Form of the set: FieldsV1."),
    ("fieldsV1", "The set of fields."),
    ("manager", "Name of the writer."),
    ("operation", "How the writer came to own them: Apply or Update."),
    ("subresource", "Subresource through which it wrote; empty for the object itself."),
    ("time", "When the set last changed."),
];

/// Descriptions of types and their fields.
#[derive(Default)]
pub(super) struct Descriptions {
    /// By full name; empty on servers with only the common descriptions above.
    types: HashMap<String, Described>,
}

#[derive(Default)]
struct Described {
    text: String,
    fields: Vec<FieldText>,
}

struct FieldText {
    name: String,
    /// Allowed values of a string (or, after `[]`, of each item); `-` for any.
    values: String,
    text: String,
}

impl Descriptions {
    /// Reads the descriptions of the kinds.
    pub(super) fn of(kinds: &Kinds) -> Self {
        let mut text = String::new();
        // The data is part of the binary; if it were unreadable, only descriptions would be missing.
        let _ = GzDecoder::new(kinds.descriptions()).read_to_string(&mut text);
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let json = |text: &str| serde_json::from_str::<String>(text).unwrap_or_default();
        let (mut types, mut open): (HashMap<String, Described>, _) = (HashMap::new(), String::new());
        for line in text.lines() {
            match line.strip_prefix('\t') {
                None => {
                    let (name, text) = line.split_once('\t').unwrap_or((line, ""));
                    name.clone_into(&mut open);
                    types.insert(name.to_owned(), Described { text: json(text), fields: Vec::new() });
                }
                Some(line) => {
                    let mut parts = line.splitn(3, '\t').map(str::to_owned);
                    let mut next = || parts.next().unwrap_or_default();
                    let (name, values, text) = (next(), next(), json(&next()));
                    types.entry(open.clone()).or_default().fields.push(FieldText { name, values, text });
                }
            }
        }
        Self { types }
    }

    /// Adds the descriptions of a type and its fields to its schema.
    pub(super) fn describe(&self, name: &str, short: &str, schema: &mut Value) {
        let Some(described) = self.types.get(name) else { return describe_common(short, schema) };
        set(schema, &described.text);
        for field in &described.fields {
            let Some(property) = schema["properties"].get_mut(&field.name) else { continue };
            set(property, &field.text);
            match field.values.strip_prefix("[]") {
                Some(values) => property["items"]["enum"] = values.split(',').collect(),
                None if field.values != "-" => property["enum"] = field.values.split(',').collect(),
                None => {}
            }
        }
    }

    /// The description of a field that every object has.
    pub(super) fn of_object(&self, field: &str) -> &str {
        let any = self.types.get("io.k8s.api.core.v1.Pod");
        let text = any.and_then(|any| any.fields.iter().find(|own| own.name == field)).map(|own| &*own.text);
        text.unwrap_or(match field {
            "apiVersion" => API_VERSION,
            "kind" => KIND,
            _ => METADATA,
        })
    }
}

fn set(schema: &mut Value, text: &str) {
    if !text.is_empty() {
        schema["description"] = text.into();
    }
}

/// The common descriptions that every server has.
fn describe_common(short: &str, schema: &mut Value) {
    let table = match short {
        "meta.v1.ObjectMeta" => OBJECT_META,
        "meta.v1.OwnerReference" => OWNER_REFERENCE,
        "meta.v1.ManagedFieldsEntry" => MANAGED_FIELDS_ENTRY,
        _ => &[],
    };
    for (field, text) in table {
        let described = match *field {
            "" => Some(&mut *schema),
            field => schema["properties"].get_mut(field),
        };
        if let Some(described) = described {
            set(described, text);
        }
    }
    // The type of a whole object, in any version.
    if schema["properties"]["metadata"].is_object() {
        for (field, text) in [("apiVersion", API_VERSION), ("kind", KIND), ("metadata", METADATA)] {
            if let Some(described) = schema["properties"].get_mut(field) {
                set(described, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_have_their_recorded_descriptions() {
        let recorded = "a.v1.T\t\"One.\"\n\tf\tx y,z\t\"A \\\"field\\\".\"\n\tl\t[]z\t\"\"\n\tgone\t-\t\"Q\"\nb.v1.U\t\"\"\n";
        let descriptions = Descriptions::parse(recorded);
        let mut schema = json!({"properties": {"f": {}, "l": {"items": {}}}});
        descriptions.describe("a.v1.T", "T", &mut schema);
        let wanted = json!({"description": "One.", "properties": {
            "f": {"description": "A \"field\".", "enum": ["x y", "z"]}, "l": {"items": {"enum": ["z"]}},
        }});
        assert_eq!(schema, wanted);
        assert_eq!(descriptions.of_object("kind"), KIND);
    }
}
