//! Which OpenAPI documents the cluster publishes, and which of them are here.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use super::documents::Documents;
use super::openapi::OPENAPI;

/// See the module. Places of documents name their content: another place, another document. Bounded by the paths that are
/// asked about.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Where the cloud has each document.
    places: BTreeMap<String, String>,
    /// Where those were that were fetched last.
    known: BTreeMap<String, String>,
    /// Those that could not be had, and until when they are not asked for again.
    missed: BTreeMap<String, (String, Instant)>,
}

/// What was fetched last, as it is kept on disk.
pub(super) struct Known(Bytes);

impl Index {
    /// What was kept.
    pub(super) fn load(documents: &Documents) -> Self {
        let kept = documents.kept(OPENAPI).ok().flatten();
        let known = kept.and_then(|kept| serde_json::from_slice(&kept).ok()).unwrap_or_default();
        Self { known, ..Self::default() }
    }

    /// The cloud has sent its index. Of other paths than these nothing is remembered.
    pub(super) fn publish(&mut self, index: &Value, paths: &[String]) {
        let place = |path: &String| index["paths"][path]["serverRelativeURL"].as_str().map(str::to_owned);
        self.places = paths.iter().filter_map(|path| Some((path.clone(), place(path)?))).collect();
        self.known.retain(|path, _| paths.contains(path));
        self.missed.retain(|path, _| paths.contains(path));
    }

    /// Where a document is to be fetched from; none where the one that is kept is the newest, and where it could not be had
    /// a short time ago.
    pub(super) fn due(&self, path: &str, now: Instant) -> Option<String> {
        let place = self.places.get(path).filter(|place| self.known.get(path) != Some(*place))?;
        let missed = self.missed.get(path).is_some_and(|(missed, until)| missed == place && *until > now);
        (!missed).then(|| place.clone())
    }

    /// A document was fetched.
    pub(super) fn got(&mut self, path: &str, place: String) -> Known {
        self.missed.remove(path);
        self.known.insert(path.to_owned(), place);
        Known(serde_json::to_vec(&self.known).unwrap_or_default().into())
    }

    /// A document could not be had.
    pub(super) fn missed(&mut self, path: &str, until: Instant) {
        if let Some(place) = self.places.get(path) {
            self.missed.insert(path.to_owned(), (place.clone(), until));
        }
    }
}

impl Known {
    /// Keeps it for the next start, after the document itself.
    ///
    /// # Errors
    /// Why it cannot be kept, as text.
    pub(super) async fn keep(self, documents: &Documents) -> Result<(), String> {
        documents.keep(OPENAPI, self.0).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_that_cannot_be_had_is_left_alone_for_a_while() {
        let (mut index, now) = (Index::default(), Instant::now());
        let paths = ["apis/a/v1".to_owned(), "apis/b/v1".to_owned()];
        let of = |place: &str| json!({"paths": {"apis/a/v1": {"serverRelativeURL": place}}});
        index.publish(&of("/a?1"), &paths);
        assert_eq!(index.due("apis/a/v1", now).as_deref(), Some("/a?1"));
        assert_eq!(index.due("apis/b/v1", now), None, "the index does not name it");
        let later = now + Duration::from_secs(60);
        index.missed("apis/a/v1", later);
        assert_eq!(index.due("apis/a/v1", now), None);
        assert_eq!(index.due("apis/a/v1", later).as_deref(), Some("/a?1"));
        index.publish(&of("/a?2"), &paths);
        assert_eq!(index.due("apis/a/v1", now).as_deref(), Some("/a?2"), "it is another one");
        index.got("apis/a/v1", "/a?2".to_owned());
        assert_eq!(index.due("apis/a/v1", later), None);
    }
}
