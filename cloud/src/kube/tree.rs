//! Estimates the memory of a parsed JSON text beyond its length. The writer of the text determines the ratio: a field
//! that is an object with one field itself takes 90 times its text.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use thiserror::Error;
use tombolo_apicore::tree::{OBJECT_BYTES, POD_TREE_BYTES_MAX, TREE_BYTES_MAX, tree_bytes};

/// [`TREE_BYTES_MAX`] for kinds that controllers and administrators write: a resource definition with 500 KiB of schema
/// takes 9 MiB, an EndpointSlice with 1,000 endpoints 3 MiB.
pub(crate) const LARGE_TREE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Group and plural of the kinds that nodes may write according to the RBAC role `system:node`.
const WRITTEN_BY_NODES: [(&str, &str); 8] = [
    ("", "events"),
    ("", "nodes"),
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("certificates.k8s.io", "podcertificaterequests"),
    ("coordination.k8s.io", "leases"),
    ("events.k8s.io", "events"),
    ("resource.k8s.io", "resourceslices"),
    ("storage.k8s.io", "csinodes"),
];

/// A non-empty object allocates its fields in blocks of this many.
pub(super) const BLOCK_MEMBERS: usize = 11;

/// A text that is not parsed into a tree.
#[derive(Debug, Error)]
pub(crate) enum TreeError {
    /// The text is not JSON of that type.
    #[error(transparent)]
    NotJson(#[from] serde_json::Error),
    /// The tree would take too much memory.
    #[error("it has too many parts or is nested too deeply: send fewer")]
    TooLarge,
}

/// Parses a text into a tree if that takes at most [`TREE_BYTES_MAX`] beyond the text.
///
/// # Errors
/// [`TreeError`].
pub(crate) fn read_tree(text: &[u8]) -> Result<Value, TreeError> {
    if is_large(text) {
        return Err(TreeError::TooLarge);
    }
    Ok(serde_json::from_slice(text)?)
}

/// Whether the tree of a text takes more than [`TREE_BYTES_MAX`] beyond the text.
pub(crate) fn is_large(text: &[u8]) -> bool {
    exceeds(std::iter::once(text), TREE_BYTES_MAX)
}

/// Whether the trees of texts together take more than `most` bytes beyond the texts.
pub(crate) fn exceeds<'a>(texts: impl Iterator<Item = &'a [u8]> + Clone, most: usize) -> bool {
    // The shortest text of an object has two bytes.
    texts.clone().map(<[u8]>::len).sum::<usize>() / 2 * OBJECT_BYTES > most
        && texts.map(tree_bytes).sum::<usize>() > most
}

/// Bytes that the tree of an object may take beyond its text, by the path of its collection.
pub(super) fn tree_bytes_max(path: &str) -> usize {
    let (group, plural) = group_and_plural(path);
    tree_bytes_of(group, plural)
}

/// The same by its kind.
pub(super) fn tree_bytes_of(group: &str, plural: &str) -> usize {
    match (group, plural) {
        ("", "pods") => POD_TREE_BYTES_MAX,
        kind if WRITTEN_BY_NODES.contains(&kind) => TREE_BYTES_MAX,
        _ => LARGE_TREE_BYTES_MAX,
    }
}

/// The resource of a collection by its path, as `PLURAL` or `PLURAL.GROUP`.
pub(super) fn collection(path: &str) -> String {
    match group_and_plural(path) {
        ("", plural) => plural.to_owned(),
        (group, plural) => format!("{plural}.{group}"),
    }
}

/// Group and plural from the path of a collection: `/api/VERSION/…/PLURAL` for the core group, otherwise
/// `/apis/GROUP/VERSION/…/PLURAL`.
fn group_and_plural(path: &str) -> (&str, &str) {
    let path = path.split('?').next().unwrap_or_default();
    let plural = path.rsplit('/').next().unwrap_or_default();
    let group = path.strip_prefix("/apis/").and_then(|rest| rest.split('/').next());
    (group.unwrap_or_default(), plural)
}

/// Whether a text is a JSON object. Nothing of it is kept.
pub(crate) fn is_object(text: &[u8]) -> bool {
    struct ObjectVisitor;
    impl<'de> Visitor<'de> for ObjectVisitor {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
            while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(())
        }
    }
    let mut text = serde_json::Deserializer::from_slice(text);
    text.deserialize_map(ObjectVisitor).and_then(|()| text.end()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_would_expand_too_much_is_not_parsed() {
        for (part, most) in [(r#"{"":0},"#, 2_900), (r#"[0],"#, 10_000), (r#""","#, 32_000), ("0,", 32_000)] {
            let text = |count: usize| format!(r#"{{"x":[{}0]}}"#, part.repeat(count));
            assert!(read_tree(text(most).as_bytes()).is_ok(), "{part}");
            let error = read_tree(text(2 * most).as_bytes()).expect_err(part);
            assert!(matches!(error, TreeError::TooLarge), "{part}: {error}");
        }
        let members: String = (0..20_000).map(|number| format!(r#""{number}":"","#)).collect();
        assert!(matches!(read_tree(format!("{{{members}\"\":0}}").as_bytes()), Err(TreeError::TooLarge)));
    }

    #[test]
    fn long_text_with_few_parts_is_parsed() {
        let text = serde_json::json!({"data": {"a": "{[,".repeat(500_000), "b": "\\\",{".repeat(100_000)}});
        assert_eq!(read_tree(text.to_string().as_bytes()).expect("read"), text);
    }

    #[test]
    fn too_deep_nesting_is_an_error() {
        for open in ["[", r#"{"a":"#] {
            read_tree(open.repeat(2_000_000).as_bytes()).expect_err("too deep");
            read_tree(open.repeat(200).as_bytes()).expect_err("too deep");
        }
        assert!(
            read_tree("[".repeat(100).as_bytes()).is_err_and(|error| matches!(error, TreeError::NotJson(_)))
        );
        assert!(read_tree(b"]]]]}}}},,,,").is_err());
    }

    #[test]
    fn parse_limit_is_smaller_for_kinds_that_nodes_write() {
        for path in [
            "/api/v1/nodes",
            "/api/v1/namespaces/d/events",
            "/apis/events.k8s.io/v1/namespaces/d/events",
            "/apis/coordination.k8s.io/v1/leases?limit=5",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            "/apis/certificates.k8s.io/v1beta1/namespaces/d/podcertificaterequests",
            "/apis/resource.k8s.io/v1/resourceslices",
            "/apis/storage.k8s.io/v1/csinodes",
        ] {
            assert_eq!(tree_bytes_max(path), TREE_BYTES_MAX, "{path}");
        }
        assert_eq!(tree_bytes_max("/api/v1/namespaces/d/pods?fieldSelector=a/b"), POD_TREE_BYTES_MAX);
        let others = ["/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/configmaps?labelSelector=a/nodes"];
        // Kinds of other groups with the same names.
        let namesakes =
            ["/apis/example.com/v1/nodes", "/apis/example.com/v1/namespaces/d/pods", "/api/v1/leases"];
        for path in others.into_iter().chain(namesakes) {
            assert_eq!(tree_bytes_max(path), LARGE_TREE_BYTES_MAX, "{path}");
        }
        assert_eq!(collection("/api/v1/namespaces/d/pods?limit=5"), "pods");
        assert_eq!(collection("/apis/coordination.k8s.io/v1/leases"), "leases.coordination.k8s.io");
        let endpoint = serde_json::json!({
            "addresses": ["10.1.2.3"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n", "targetRef": {"kind": "Pod", "name": "p", "namespace": "d", "uid": "u"}, "zone": "z"
        });
        let slice = serde_json::json!({"endpoints": vec![endpoint; 1000]}).to_string();
        assert!(!exceeds(std::iter::once(slice.as_bytes()), LARGE_TREE_BYTES_MAX / 2));
        let image = serde_json::json!({"names": ["a", "b"], "sizeBytes": 1});
        let node = serde_json::json!({"status": {"images": vec![image; 500]}}).to_string();
        assert!(!is_large(node.as_bytes()));
    }

    #[test]
    fn only_an_object_is_one() {
        for text in ["{}", r#" {"a":{"b":[1]},"a":2} "#] {
            assert!(is_object(text.as_bytes()), "{text}");
        }
        for text in ["", "null", "[]", "{", r#"{"a":1} x"#, r#""{}""#, r#"{"a"}"#] {
            assert!(!is_object(text.as_bytes()), "{text}");
        }
    }
}
