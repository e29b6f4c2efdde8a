//! Documents of dialect `kubeedge`, and the objects in any JSON content.

use serde_json::Value;

use crate::observation::{ObjectId, SeenFrame, SeenVersion};
use crate::oracle::content;

/// Reads a document of dialect `kubeedge`.
#[must_use]
pub fn document(text: &[u8]) -> SeenFrame {
    let Ok(value) = serde_json::from_slice::<Value>(text) else {
        return SeenFrame::Undecodable { reason: "a document that is no JSON".to_owned() };
    };
    let route = |member: &str| value["route"][member].as_str().unwrap_or_default().to_owned();
    let (operation, resource) = (route("operation"), route("resource"));
    let objects = objects_in(&value["content"], &resource);
    SeenFrame::Document { operation, resource, objects }
}

/// The objects in some content: one object, a list, an array, or a wrapper of KubeEdge. Objects without kind have that
/// of the path, `NAMESPACE/TYPE/NAME` with the node before it or not.
pub(super) fn objects_in(value: &Value, path: &str) -> Vec<(ObjectId, SeenVersion)> {
    let mut found = Vec::new();
    collect(value, word_of(path), &mut found);
    found
}

fn word_of(path: &str) -> &str {
    let parts: Vec<&str> = path.split('/').collect();
    let parts = if parts.len() > 3 && parts[0] == "node" { &parts[2..] } else { &parts[..] };
    parts.get(1).copied().unwrap_or_default()
}

fn collect(value: &Value, kind: &str, found: &mut Vec<(ObjectId, SeenVersion)>) {
    if let Some(all) = value.as_array() {
        all.iter().for_each(|item| collect(item, kind, found));
        return;
    }
    let own = value["kind"].as_str().unwrap_or(kind);
    if let Some(items) = value.get("items").and_then(Value::as_array) {
        let kind = own.strip_suffix("List").unwrap_or(own);
        items.iter().for_each(|item| collect(item, kind, found));
        return;
    }
    if let Some(object) = value.get("Object") {
        return collect(object, kind, found);
    }
    let text = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
    if !name.is_empty() && !own.is_empty() {
        let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
        let plural = plural(own);
        let resource = if group.is_empty() { plural } else { format!("{plural}.{group}") };
        let version = content::version(&resource, value);
        found.push((ObjectId::new(&resource, namespace, name), version));
    }
}

/// Kubernetes' rule for the plural of a kind, or of a type word in a path.
fn plural(kind: &str) -> String {
    let word = kind.to_ascii_lowercase();
    match word.strip_suffix('y') {
        _ if word == "endpoints" => word,
        Some(stem) => format!("{stem}ies"),
        None if word.ends_with(['s', 'x']) || word.ends_with("ch") => format!("{word}es"),
        None => format!("{word}s"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(value: &Value, path: &str) -> Vec<String> {
        objects_in(value, path).iter().map(|(id, _)| id.to_string()).collect()
    }

    #[test]
    fn objects_are_found_in_whatever_holds_them() {
        let meta = json!({"name": "x", "namespace": "d"});
        let object = json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": meta});
        let slice = "endpointslices.discovery.k8s.io/d/x";
        assert_eq!(names(&object, ""), [slice]);
        assert_eq!(names(&json!({"Object": object, "Err": null}), ""), [slice]);
        assert_eq!(names(&json!([object, object]), "").len(), 2);
        let untyped = json!({ "metadata": meta });
        assert_eq!(names(&untyped, "node/edge/d/configmap/x"), ["configmaps/d/x"]);
        assert_eq!(names(&json!([untyped]), "d/podlist/x").len(), 1);
        assert_eq!(names(&json!({"kind": "SecretList", "items": [untyped]}), ""), ["secrets/d/x"]);
        assert_eq!(names(&untyped, ""), Vec::<String>::new());
        assert_eq!(names(&json!("OK"), "d/pod/x"), Vec::<String>::new());
    }

    #[test]
    fn a_document_shows_its_route() {
        let text = br#"{"header":{"msg_id":"1"},"route":{"operation":"update","resource":"d/secret/s"},
            "content":{"metadata":{"name":"s","namespace":"d","uid":"u","resourceVersion":"4"}}}"#;
        let SeenFrame::Document { operation, resource, objects } = document(text) else {
            panic!("no document")
        };
        assert_eq!((&*operation, &*resource), ("update", "d/secret/s"));
        assert_eq!((objects[0].0.to_string(), objects[0].1.revision), ("secrets/d/s".to_owned(), 4));
        assert!(matches!(document(b"{"), SeenFrame::Undecodable { .. }));
    }
}
