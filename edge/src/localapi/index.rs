//! Index of the OpenAPI documents that the cluster publishes and of those that are kept here.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use super::documents::Documents;
use super::openapi::OPENAPI;

/// The index. A document's URL identifies its content: a changed document has another URL. Bounded by the paths of the
/// custom kinds.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// URL of each document in the cloud.
    urls: BTreeMap<String, String>,
    /// URLs of the documents that were fetched last.
    known: BTreeMap<String, String>,
    /// Documents that could not be fetched, and until when they are not requested again.
    missed: BTreeMap<String, (String, Instant)>,
}

/// The URLs of the fetched documents, as they are kept on disk.
pub(super) struct FetchedUrls(Bytes);

impl Index {
    /// Loads the kept index.
    pub(super) fn load(documents: &Documents) -> Self {
        let kept = documents.kept(OPENAPI).ok().flatten();
        let known = kept.and_then(|kept| serde_json::from_slice(&kept).ok()).unwrap_or_default();
        Self { known, ..Self::default() }
    }

    /// Records the index that the cloud has sent. Everything about other paths than these is forgotten.
    pub(super) fn publish(&mut self, index: &Value, paths: &[String]) {
        let url = |path: &String| index["paths"][path]["serverRelativeURL"].as_str().map(str::to_owned);
        self.urls = paths.iter().filter_map(|path| Some((path.clone(), url(path)?))).collect();
        self.known.retain(|path, _| paths.contains(path));
        self.missed.retain(|path, _| paths.contains(path));
    }

    /// The URL to fetch a document from; none when the kept document is the newest one, or when fetching it failed
    /// recently.
    pub(super) fn due(&self, path: &str, now: Instant) -> Option<String> {
        let url = self.urls.get(path).filter(|url| self.known.get(path) != Some(*url))?;
        let missed = self.missed.get(path).is_some_and(|(missed, until)| missed == url && *until > now);
        (!missed).then(|| url.clone())
    }

    /// Records that a document was fetched.
    pub(super) fn got(&mut self, path: &str, url: String) -> FetchedUrls {
        self.missed.remove(path);
        self.known.insert(path.to_owned(), url);
        FetchedUrls(serde_json::to_vec(&self.known).unwrap_or_default().into())
    }

    /// Records that a document could not be fetched.
    pub(super) fn missed(&mut self, path: &str, until: Instant) {
        if let Some(url) = self.urls.get(path) {
            self.missed.insert(path.to_owned(), (url.clone(), until));
        }
    }
}

impl FetchedUrls {
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
    fn unavailable_document_is_not_retried_at_once() {
        let (mut index, now) = (Index::default(), Instant::now());
        let paths = ["apis/a/v1".to_owned(), "apis/b/v1".to_owned()];
        let of = |url: &str| json!({"paths": {"apis/a/v1": {"serverRelativeURL": url}}});
        index.publish(&of("/a?1"), &paths);
        assert_eq!(index.due("apis/a/v1", now).as_deref(), Some("/a?1"));
        assert_eq!(index.due("apis/b/v1", now), None, "the index does not name it");
        let later = now + Duration::from_secs(60);
        index.missed("apis/a/v1", later);
        assert_eq!(index.due("apis/a/v1", now), None);
        assert_eq!(index.due("apis/a/v1", later).as_deref(), Some("/a?1"));
        index.publish(&of("/a?2"), &paths);
        assert_eq!(index.due("apis/a/v1", now).as_deref(), Some("/a?2"), "it has changed");
        index.got("apis/a/v1", "/a?2".to_owned());
        assert_eq!(index.due("apis/a/v1", later), None);
    }
}
