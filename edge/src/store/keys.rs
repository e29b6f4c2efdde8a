//! Object keys as bytes that sort by resource, then namespace, then name.

use tombolo_proto::object::{ObjectKey, Resource};

/// Separates the parts. It is below every byte that a name may contain, so that prefixes sort first.
const SEPARATOR: u8 = 0;

/// The bytes of a key; `None` when a part contains the separator (no Kubernetes name does).
pub(super) fn encode(key: &ObjectKey) -> Option<Vec<u8>> {
    let resource = key.resource();
    join(&[&resource.group, &resource.version, &resource.name, key.namespace(), key.name()])
}

/// The key that these bytes encode; `None` if they are invalid.
pub(super) fn decode(bytes: &[u8]) -> Option<ObjectKey> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut parts = text.split(char::from(SEPARATOR));
    let resource = Resource::new(parts.next()?, parts.next()?, parts.next()?);
    let key = ObjectKey::new(resource, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(key)
}

/// As [`decode`] for keys of one resource, which the result shares; `None` also for keys of other resources.
pub(super) fn decode_of(resource: &Resource, bytes: &[u8]) -> Option<ObjectKey> {
    let prefix = [&*resource.group, &*resource.version, &*resource.name];
    let mut parts = std::str::from_utf8(bytes).ok()?.split(char::from(SEPARATOR));
    let is_prefix = prefix.iter().all(|part| parts.next() == Some(part));
    let (namespace, name) = (parts.next()?, parts.next()?);
    (is_prefix && parts.next().is_none()).then(|| ObjectKey::new(resource.clone(), namespace, name))
}

/// The common prefix of the keys of a resource (in one namespace), and the first key after all of them.
pub(super) fn range(resource: &Resource, namespace: Option<&str>) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut start = join(&[&resource.group, &resource.version, &resource.name])?;
    start.push(SEPARATOR);
    if let Some(namespace) = namespace {
        start.extend_from_slice(join(&[namespace])?.as_slice());
        start.push(SEPARATOR);
    }
    let mut end = start.clone();
    // The last byte is the separator, which has a successor.
    end.pop();
    end.push(SEPARATOR + 1);
    Some((start, end))
}

fn join(parts: &[&str]) -> Option<Vec<u8>> {
    if parts.iter().any(|part| part.as_bytes().contains(&SEPARATOR)) {
        return None;
    }
    Some(parts.join("\0").into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(resource: &str, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(Resource::new("", "v1", resource), namespace, name)
    }

    #[test]
    fn separators_in_names_are_refused() {
        assert_eq!(encode(&key("pods", "a\0b", "c")), None);
        assert_eq!(range(&Resource::new("", "v1", "pods"), Some("a\0")), None);
        assert_eq!(decode(b"\0v1\0pods\0a\0b\0c"), None);
        assert_eq!(decode(b"\0v1\0pods"), None);
    }

    #[test]
    fn range_contains_only_its_own_keys() {
        let (start, end) = range(&Resource::new("", "v1", "pods"), Some("a")).unwrap();
        let inside = |key: ObjectKey| (start.clone()..end.clone()).contains(&encode(&key).unwrap());
        assert!(inside(key("pods", "a", "x")));
        assert!(!inside(key("pods", "ab", "x")));
        assert!(!inside(key("podsx", "a", "x")));
        assert!(!inside(key("pods", "", "x")));
    }

    proptest! {
        #[test]
        fn round_trip_and_order(a in "[a-z.-]{0,5}", b in "[a-z.-]{0,5}", c in "[a-z.-]{0,5}", d in "[a-z.-]{0,5}") {
            let (one, two) = (key("pods", &a, &b), key("pods", &c, &d));
            let (first, second) = (encode(&one).unwrap(), encode(&two).unwrap());
            prop_assert_eq!(decode(&first), Some(one.clone()));
            prop_assert_eq!(decode_of(one.resource(), &first), Some(one.clone()));
            prop_assert_eq!(decode_of(&Resource::new("", "v1", "pod"), &first), None);
            prop_assert_eq!(first.cmp(&second), one.cmp(&two));
        }
    }
}
