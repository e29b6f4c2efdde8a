//! How the parts of objects merge: which lists have keys, which maps and lists are one value. These are the markers
//! `listType`, `mapType` and `structType` of the built-in kinds, by the names of fields.

use serde_json::{Map, Value};

/// How a list merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListShape {
    /// As one value.
    Whole,
    /// As a set of scalars.
    Set,
    /// By the values of these members of its items.
    Keyed(&'static [&'static str]),
}

/// Maps and structs that are one value.
const WHOLE_MAPS: [&str; 12] = [
    "configMapKeyRef",
    "fieldRef",
    "labelSelector",
    "namespaceSelector",
    "nodeSelector",
    "regarding",
    "related",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "resourceFieldRef",
    "secretKeyRef",
    "selector",
    "involvedObject",
];

/// Structs that are always there, so that adding one is no change of its own.
const ALWAYS_THERE: [&str; 8] =
    ["metadata", "spec", "status", "template", "strategy", "updateStrategy", "containers", "resources"];

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// The fields of one kind of object.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldShapes {
    /// Whether the markers of the built-in kinds apply. Objects of definitions have only those of the metadata.
    pub(super) built_in: bool,
}

impl FieldShapes {
    /// How the list at a path of field names merges in a server-side apply.
    pub(super) fn list(self, path: &[&str]) -> ListShape {
        let of_metadata = matches!(path, ["metadata", _]);
        let Some(name) = path.last() else { return ListShape::Whole };
        match *name {
            "ownerReferences" if of_metadata => return ListShape::Keyed(&["uid"]),
            "finalizers" if of_metadata => return ListShape::Set,
            _ if !self.built_in => return ListShape::Whole,
            _ => {}
        }
        let in_container = path.iter().any(|part| CONTAINERS.contains(part));
        match *name {
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "env"
            | "imagePullSecrets"
            | "resourceClaims"
            | "schedulingGates"
            | "drivers"
            | "claims" => ListShape::Keyed(&["name"]),
            "volumeMounts" => ListShape::Keyed(&["mountPath"]),
            "volumeDevices" => ListShape::Keyed(&["devicePath"]),
            "ports" if in_container => ListShape::Keyed(&["containerPort", "protocol"]),
            "ports" if path.len() == 2 && path[0] == "spec" => ListShape::Keyed(&["port", "protocol"]),
            "conditions" => ListShape::Keyed(&["type"]),
            "addresses" if path[0] == "status" => ListShape::Keyed(&["type"]),
            "hostAliases" | "podIPs" | "hostIPs" => ListShape::Keyed(&["ip"]),
            "topologySpreadConstraints" => ListShape::Keyed(&["topologyKey", "whenUnsatisfiable"]),
            "podCIDRs" => ListShape::Set,
            _ => ListShape::Whole,
        }
    }

    /// How the list at a path merges in a strategic merge patch, by one member at most.
    pub(super) fn strategic_list(self, path: &[&str]) -> ListShape {
        match self.list(path) {
            ListShape::Keyed(keys) => ListShape::Keyed(&keys[..1]),
            shape => shape,
        }
    }

    /// Whether a map is one value in a server-side apply.
    pub(super) fn is_whole_map(self, path: &[&str]) -> bool {
        self.built_in && path.last().is_some_and(|name| WHOLE_MAPS.contains(name))
    }

    /// Whether a struct or map is there even if nothing is in it.
    pub(super) fn is_always_there(self, path: &[&str]) -> bool {
        path.last().is_some_and(|name| ALWAYS_THERE.contains(name))
    }
}

/// The members that tell an item of a keyed list from the others. A missing protocol is TCP.
pub(super) fn key_of(item: &Value, keys: &[&str]) -> Value {
    let mut key = Map::new();
    for name in keys {
        match item.get(*name) {
            Some(value) if !value.is_null() => drop(key.insert((*name).to_owned(), value.clone())),
            _ if *name == "protocol" => drop(key.insert((*name).to_owned(), "TCP".into())),
            _ => {}
        }
    }
    Value::Object(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_merge_as_their_markers_say() {
        let built_in = FieldShapes { built_in: true };
        let ports = ["spec", "template", "spec", "containers", "ports"];
        assert_eq!(built_in.list(&ports), ListShape::Keyed(&["containerPort", "protocol"]));
        assert_eq!(built_in.strategic_list(&ports), ListShape::Keyed(&["containerPort"]));
        assert_eq!(built_in.list(&["spec", "ports"]), ListShape::Keyed(&["port", "protocol"]));
        assert_eq!(built_in.list(&["ports"]), ListShape::Whole, "of an EndpointSlice");
        assert_eq!(built_in.list(&["spec", "tolerations"]), ListShape::Whole);
        let custom = FieldShapes { built_in: false };
        assert_eq!(custom.list(&["status", "conditions"]), ListShape::Whole);
        assert_eq!(custom.list(&["metadata", "finalizers"]), ListShape::Set);
        assert_eq!(
            key_of(&json!({"port": 80}), &["port", "protocol"]),
            json!({"port": 80, "protocol": "TCP"})
        );
    }
}
