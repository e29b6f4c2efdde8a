//! What `kubectl explain` says about the fields that every object has. Other built-in types carry no descriptions.

use serde_json::Value;

/// `metadata` of any object.
pub(super) const METADATA: &str =
    "Standard object's metadata: its name and place, and what the server keeps about it.";

/// `apiVersion` of any object.
pub(super) const API_VERSION: &str =
    "APIVersion defines the group and version whose schema the object follows, as group/version.";

/// `kind` of any object.
pub(super) const KIND: &str = "Kind names the type of the object, in CamelCase. It cannot be changed.";

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

/// Puts the descriptions of a type and its fields into its schema.
pub(super) fn describe(type_name: &str, schema: &mut Value) {
    let table = match type_name {
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
            described["description"] = (*text).into();
        }
    }
    // The type of a whole object, in whichever version.
    if schema["properties"]["metadata"].is_object() {
        for (field, text) in [("apiVersion", API_VERSION), ("kind", KIND), ("metadata", METADATA)] {
            if let Some(described) = schema["properties"].get_mut(field) {
                described["description"] = text.into();
            }
        }
    }
}
