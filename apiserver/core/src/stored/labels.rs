//! Labels of objects, parsed once for all watchers.
//!
//! Short labels stay with their object. The author of an object determines how many it has, and the history keeps
//! former versions alive, so only the newest long labels are kept; late watchers parse them again.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Stored;

/// Maximum number of bytes of labels that stay with their object: far more than usual objects have.
const SHORT_LEN_MAX: usize = 2 * 1024;

/// Maximum number of bytes of longer labels kept per store: those of the newest changes, which all watches will check
/// soon.
const LONG_LEN_MAX: usize = 4 * 1024 * 1024;

/// Names and values in sequence.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    text: String,
    lens: Vec<(u32, u32)>,
}

impl Labels {
    /// Parses the labels of a body; none when they are malformed.
    fn read(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            #[serde(default)]
            labels: Option<Labels>,
        }
        let object: Result<Object, _> = serde_json::from_slice(body);
        let mut labels = object.ok().and_then(|object| object.metadata.labels).unwrap_or_default();
        labels.text.shrink_to_fit();
        labels.lens.shrink_to_fit();
        labels
    }

    /// The last value of a repeated name counts.
    pub(crate) fn get(&self, wanted: &str) -> Option<&str> {
        let mut rest = self.text.as_str();
        let labels = self.lens.iter().map(|(name, value)| {
            let (label, others) = rest.split_at(*name as usize + *value as usize);
            rest = others;
            label.split_at(*name as usize)
        });
        labels.filter(|(name, _)| *name == wanted).last().map(|(_, value)| value)
    }

    /// Size in bytes.
    fn size(&self) -> usize {
        self.text.len() + size_of_val(self.lens.as_slice())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = Labels::default();
                while let Some((name, value)) = map.next_entry::<Cow<'_, str>, Cow<'_, str>>()? {
                    let len = |text: &str| u32::try_from(text.len()).map_err(serde::de::Error::custom);
                    labels.lens.push((len(&name)?, len(&value)?));
                    labels.text.push_str(&name);
                    labels.text.push_str(&value);
                }
                Ok(labels)
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// The labels of one object, as far as they were requested.
#[derive(Debug, Default)]
pub(crate) struct Known {
    short: OnceLock<Labels>,
    long: Mutex<Weak<Labels>>,
}

impl Known {
    /// Passes the labels of this object to `look`. Long ones are cached if `newest` is given.
    pub(crate) fn look<T>(
        &self,
        object: &Stored,
        newest: Option<&Newest>,
        look: impl FnOnce(&Labels) -> T,
    ) -> T {
        if let Some(short) = self.short.get() {
            return look(short);
        }
        // Held while they are parsed, so that others wait for the result.
        let mut long = self.long.lock();
        if let Some(short) = self.short.get() {
            return look(short);
        }
        if let Some(known) = long.upgrade() {
            drop(long);
            return look(&known);
        }
        let labels = Labels::read(&object.body());
        if labels.size() <= SHORT_LEN_MAX {
            return look(self.short.get_or_init(|| labels));
        }
        let labels = Arc::new(labels);
        if let Some(newest) = newest {
            *long = Arc::downgrade(&labels);
            newest.keep(Arc::clone(&labels));
        }
        drop(long);
        look(&labels)
    }
}

/// Long labels of the newest objects of one store, of those that were requested.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    kept: Mutex<RecentLabels>,
}

#[derive(Debug, Default)]
struct RecentLabels {
    labels: VecDeque<Arc<Labels>>,
    len: usize,
}

impl Newest {
    fn keep(&self, labels: Arc<Labels>) {
        let mut kept = self.kept.lock();
        kept.len += labels.size();
        kept.labels.push_back(labels);
        while kept.len > LONG_LEN_MAX
            && let Some(oldest) = kept.labels.pop_front()
        {
            kept.len -= oldest.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::{ObjectKey, Resource};

    use super::*;
    use crate::revision::Revision;

    fn object(labels: &serde_json::Value) -> Stored {
        let key = ObjectKey::new(Resource::new("", "v1", "nodes"), "", "n");
        let body = Bytes::from(json!({"metadata": {"labels": labels}}).to_string());
        Stored::new(key, Uid::parse("u").unwrap(), Revision(1), body)
    }

    fn many(value: &str) -> serde_json::Value {
        (0..20_000)
            .map(|number| (format!("n{number:011}"), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    #[test]
    fn labels_are_found_by_their_names() {
        let body = br#"{"metadata":{"labels":{"a":"1","ab":"","\u0062":"x\ty","a":"2"}}}"#;
        let labels = Labels::read(body);
        let values = ["a", "ab", "b", "", "a1"].map(|name| labels.get(name));
        assert_eq!(values, [Some("2"), Some(""), Some("x\ty"), None, None]);
        for none in [
            r#"{"metadata":{}}"#,
            r#"{"metadata":{"labels":null}}"#,
            r#"{"metadata":{"labels":{"a":1}}}"#,
            "[]",
        ] {
            assert_eq!(Labels::read(none.as_bytes()).size(), 0, "{none}");
        }
    }

    #[test]
    fn short_labels_are_kept_and_long_ones_only_for_the_newest_objects() {
        let newest = Newest::default();
        let (short, known) = (object(&json!({"a": "1"})), Known::default());
        assert!(known.look(&short, None, |labels| labels.get("a") == Some("1")));
        assert!(known.short.get().is_some());
        let versions: Vec<_> =
            (0..40).map(|number| (object(&many(&number.to_string())), Known::default())).collect();
        for (number, (object, known)) in versions.iter().enumerate() {
            let number = number.to_string();
            assert!(known.look(object, Some(&newest), |labels| labels.get("n00000019999") == Some(&number)));
            assert!(known.long.lock().upgrade().is_some(), "for the next caller");
        }
        let kept = versions.iter().filter(|(_, known)| known.long.lock().upgrade().is_some()).count();
        assert!((2..20).contains(&kept), "{kept}");
        assert!(newest.kept.lock().len <= LONG_LEN_MAX);
        let (oldest, known) = &versions[0];
        assert!(known.look(oldest, None, |labels| labels.get("n00000000000") == Some("0")), "read again");
    }
}
