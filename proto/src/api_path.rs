//! Paths of the Kubernetes API in one spelling: characters that may not appear in a URL, and the percent sign, are
//! percent-encoded in upper case, and nothing else is (docs/reference/kubernetes.md#names-in-paths).

use std::fmt::Write as _;

use crate::Resource;

/// Path of a collection, or of one object when `name` is not empty; `namespace` is empty for cluster scope and
/// for all namespaces.
#[must_use]
pub fn path_of(resource: &Resource, namespace: &str, name: &str) -> String {
    let mut path = match &*resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    if !namespace.is_empty() {
        path.push_str("/namespaces/");
        push_segment(&mut path, namespace);
    }
    path.push('/');
    path.push_str(&resource.name);
    if !name.is_empty() {
        path.push('/');
        push_segment(&mut path, name);
    }
    path
}

/// Encodes a decoded path for a URL. A slash that was encoded is a separator after decoding, as it is in an API
/// server.
#[must_use]
pub fn encoded(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for (index, segment) in path.split('/').enumerate() {
        if index > 0 {
            encoded.push('/');
        }
        push_segment(&mut encoded, segment);
    }
    encoded
}

/// An API server stores names with characters that URLs do not allow, and such a name must never become another path.
fn push_segment(path: &mut String, text: &str) {
    for byte in text.bytes() {
        if stands_for_itself(byte) {
            path.push(char::from(byte));
        } else {
            // Writing into a String does not fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

fn stands_for_itself(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'@')
}

/// Whether every reader of a path sees the same segments, whether it decodes before or after splitting, or not at all:
/// the path is encoded only where necessary, and no segment is `.` or `..` or has a slash or a percent sign.
#[must_use]
pub fn is_unambiguous(path: &str) -> bool {
    path.split('/').all(|segment| !matches!(segment, "." | "..") && is_unambiguous_segment(segment))
}

fn is_unambiguous_segment(segment: &str) -> bool {
    let mut parts = segment.split('%');
    let mut decoded = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).unwrap_or_default();
        let Ok(byte) = u8::from_str_radix(digits, 16) else { return false };
        let is_escape = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_escape || stands_for_itself(byte) || matches!(byte, b'/' | b'%') {
            return false;
        }
        decoded.push(byte);
        decoded.extend_from_slice(rest.as_bytes());
    }
    std::str::from_utf8(&decoded).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_api_conventions() {
        let of = |group: &str, resource: &str, namespace: &str, name: &str| {
            path_of(&Resource::new(group, "v1", resource), namespace, name)
        };
        assert_eq!(of("", "nodes", "", "n"), "/api/v1/nodes/n");
        assert_eq!(of("", "pods", "", ""), "/api/v1/pods");
        assert_eq!(of("", "pods", "d", "a"), "/api/v1/namespaces/d/pods/a");
        assert_eq!(of("storage.k8s.io", "csinodes", "", "a"), "/apis/storage.k8s.io/v1/csinodes/a");
        let lease = of("coordination.k8s.io", "leases", "kube-node-lease", "n");
        assert_eq!(lease, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n");
    }

    #[test]
    fn a_name_never_becomes_another_path() {
        for (name, written) in [
            ("system:node-proxier", "system:node-proxier"),
            ("a b", "a%20b"),
            ("?limit=5", "%3Flimit%3D5"),
            ("a#b", "a%23b"),
            ("a/b", "a%2Fb"),
            ("a%2Fb", "a%252Fb"),
            ("ä", "%C3%A4"),
            ("a\0", "a%00"),
        ] {
            let path = path_of(&Resource::new("", "v1", "secrets"), name, name);
            assert_eq!(path, format!("/api/v1/namespaces/{written}/secrets/{written}"));
            assert_eq!(is_unambiguous(&path), !name.contains(['/', '%']), "{path}");
        }
    }

    #[test]
    fn a_decoded_path_is_encoded_segment_by_segment() {
        assert_eq!(encoded("/api/v1/namespaces/d/roles/a b/ä"), "/api/v1/namespaces/d/roles/a%20b/%C3%A4");
        assert_eq!(encoded("//a?b"), "//a%3Fb");
        assert_eq!(encoded(""), "");
    }

    #[test]
    fn ambiguous_path_is_recognised() {
        for path in ["/api/v1/nodes/n", "/api/v1/roles/a%20b", "/x/%c3%a4%00", "/x/a!b", "/x/%3F%23", "//"] {
            assert!(is_unambiguous(path), "{path}");
        }
        for path in [
            "/api/v1/n%6Fdes",
            "/x/a%2Fb",
            "/x/a%2fb",
            "/x/a%25b",
            "/x/%2e%2e",
            "/x/..",
            "/./x",
            "/x/%",
            "/x/%4",
            "/x/%zz",
            "/x/%+1",
            "/x/%FF",
            "/x/%C3",
            "/x/%ä",
        ] {
            assert!(!is_unambiguous(path), "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn encoded_paths_are_unambiguous(name in "[^/%]{1,8}") {
            let path = encoded(&format!("/x/{name}"));
            proptest::prop_assert!(is_unambiguous(&path) || matches!(name.as_str(), "." | ".."), "{}", path);
        }
    }
}
