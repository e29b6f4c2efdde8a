//! What nodes have written themselves: versions that the watches may not have reported yet, and the newest status.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tombolo_proto::object::KeyHashes;
use tombolo_proto::{CloudRevision, ObjectKey};

/// Maximum number of versions in memory. When it is exceeded, all are forgotten; each then costs one refused write,
/// which is sent again.
const WRITTEN_MAX: usize = 16_384;

/// The SHA-256 of a status as stored by the API server, heartbeats included.
pub(crate) type StatusHash = [u8; 32];

/// What is known of an object whose status a node reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Its newest version. `None` when neither a watch nor a write has shown it.
    pub(crate) revision: Option<CloudRevision>,
    /// The newest status that a write or a read on behalf of its node has shown.
    pub(crate) status: Option<StatusHash>,
}

impl Known {
    /// What an answer of the API server shows.
    pub(crate) fn of(object: &[u8]) -> Self {
        let Some(object) = VersionedStatus::read(object) else { return Self::default() };
        let status = object.status.map(|status| Sha256::digest(status.get()).into());
        Self { revision: CloudRevision::parse(&object.metadata.resource_version).ok(), status }
    }
}

/// `metadata.resourceVersion` of an object, or empty text.
pub(crate) fn version_of(object: &[u8]) -> String {
    VersionedStatus::read(object).map(|object| object.metadata.resource_version).unwrap_or_default()
}

/// Whether a kubelet has reported this pod. `status.startTime` is when a kubelet acknowledged it, and only kubelets set
/// it (docs/reference/kubernetes.md#nodes-and-their-heartbeats). Likewise only kubelets report containers, or a phase
/// other than the first. `None` if the body is not an object.
pub(crate) fn is_acknowledged(pod: &[u8]) -> Option<bool> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status<'a> {
        start_time: Option<serde::de::IgnoredAny>,
        container_statuses: Option<serde::de::IgnoredAny>,
        #[serde(borrow)]
        phase: Option<Cow<'a, str>>,
    }
    let status =
        VersionedStatus::read(pod)?.status.map(|status| serde_json::from_str::<Status<'_>>(status.get()));
    Some(status.transpose().ok()?.is_some_and(|status| {
        let phase = status.phase.unwrap_or_default();
        status.start_time.is_some()
            || status.container_statuses.is_some()
            || !["", "Pending"].contains(&&*phase)
    }))
}

/// The parts of an object that are read; the rest is ignored.
#[derive(Deserialize)]
struct VersionedStatus<'a> {
    metadata: Metadata,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "resourceVersion", default)]
    resource_version: String,
}

impl<'a> VersionedStatus<'a> {
    fn read(object: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(object).ok()
    }
}

/// The position of a report in the order in which this replica received reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(u64);

/// By object: what is known, and the report that produced its status, if it came through this replica.
#[derive(Debug, Default)]
pub(super) struct Written {
    objects: DashMap<ObjectKey, (Known, Option<Order>), KeyHashes>,
    revision: AtomicU64,
    received: AtomicU64,
}

impl Written {
    /// Assigns a newly received report its position; later reports get later positions.
    pub(super) fn received(&self) -> Order {
        Order(self.received.fetch_add(1, Ordering::Relaxed))
    }

    /// Records what the API server returned, and the report, if any, that it answered.
    pub(super) fn note(&self, key: &ObjectKey, known: Known, report: Option<Order>) {
        if self.objects.len() >= WRITTEN_MAX && !self.objects.contains_key(key) {
            self.objects.clear();
        }
        let mut entry = self.objects.entry(key.clone()).or_default();
        let (before, whose) = *entry;
        // Other writers may change the object without changing its status, which remains that of the report.
        let is_same = known.status.is_some() && known.status == before.status;
        *entry = (known, report.or(whose.filter(|_| is_same)));
        self.revision.fetch_max(known.revision.unwrap_or_default().0, Ordering::Relaxed);
    }

    /// The newest revision of any recorded object.
    pub(super) fn revision(&self) -> CloudRevision {
        CloudRevision(self.revision.load(Ordering::Relaxed))
    }

    /// The newest known version and status. The version is forgotten once the watches have shown it.
    pub(super) fn newest(&self, key: &ObjectKey, watched: Option<CloudRevision>) -> Known {
        let (written, _) = self.objects.get(key).map(|entry| *entry).unwrap_or_default();
        if written.revision > watched {
            return written;
        }
        if written.status.is_none() {
            self.objects.remove(key);
        }
        Known { revision: watched, ..written }
    }

    /// What an earlier report than this one has written. `None` unless its status is the newest known.
    pub(super) fn by_one_before(&self, key: &ObjectKey, report: Order) -> Option<Known> {
        let (known, whose) = self.objects.get(key).map(|entry| *entry)?;
        (whose? < report).then_some(known)
    }

    pub(super) fn clear(&self) {
        self.objects.clear();
        self.revision.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::Resource;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Resource::new("", "v1", "pods"), "d", name)
    }

    #[test]
    fn newest_version_counts_and_is_forgotten_once_watched() {
        let (written, at) = (Written::default(), |revision| Some(CloudRevision(revision)));
        let newest = |name: &str, watched| written.newest(&key(name), watched).revision;
        assert_eq!((newest("a", None), newest("a", at(3))), (None, at(3)));
        written.note(&key("a"), Known { revision: at(5), status: None }, None);
        assert_eq!((newest("a", at(3)), newest("a", None)), (at(5), at(5)));
        assert_eq!((newest("a", at(6)), written.objects.len()), (at(6), 0));
        // The status is kept: a version that a watch shows later may come from another writer.
        written.note(&key("b"), Known { revision: at(5), status: Some([7; 32]) }, None);
        let shown = Known { revision: at(6), status: Some([7; 32]) };
        assert_eq!((written.newest(&key("b"), at(6)), written.newest(&key("b"), at(6))), (shown, shown));
    }

    #[test]
    fn status_hash_covers_every_byte() {
        let of = |text: &str| Known::of(text.as_bytes());
        let known = of(r#"{"metadata":{"resourceVersion":"7"},"status":{"beat":1}}"#);
        let labelled = of(r#"{"metadata":{"resourceVersion":"8","labels":{}},"status":{"beat":1}}"#);
        let reported = of(r#"{"metadata":{"resourceVersion":"9"},"status":{"beat":2}}"#);
        assert_eq!((known.revision, known.status), (Some(CloudRevision(7)), labelled.status));
        assert!(known.status.is_some() && known.status != reported.status);
        assert_eq!(of(r#"{"metadata":{"resourceVersion":"7"}}"#).status, None);
        assert_eq!(of("no JSON"), Known::default());
    }

    #[test]
    fn a_pod_is_acknowledged_from_its_start_on() {
        for (text, expected) in [
            (r#"{"metadata":{}}"#, Some(false)),
            (r#"{"metadata":{},"status":{"phase":"Pending","startTime":null}}"#, Some(false)),
            (r#"{"metadata":{},"status":{"startTime":"2026-11-20T09:00:00Z"}}"#, Some(true)),
            (r#"{"metadata":{},"status":{"phase":"Pending","containerStatuses":[]}}"#, Some(true)),
            (r#"{"metadata":{},"status":{"phase":"Running"}}"#, Some(true)),
            (r#"{"metadata":{},"status":7}"#, None),
            ("no JSON", None),
        ] {
            assert_eq!(is_acknowledged(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn report_knows_results_of_earlier_reports() {
        let written = Written::default();
        let [first, second] = [written.received(), written.received()];
        let known =
            |revision, status| Known { revision: Some(CloudRevision(revision)), status: Some([status; 32]) };
        let noted = |known, report| {
            written.note(&key("a"), known, report);
            [first, second].map(|report| written.by_one_before(&key("a"), report))
        };
        assert_eq!(written.by_one_before(&key("a"), second), None);
        assert_eq!(noted(known(5, 1), Some(first)), [None, Some(known(5, 1))]);
        assert_eq!(noted(known(6, 1), None), [None, Some(known(6, 1))], "written beside it");
        assert_eq!(noted(known(7, 2), None), [None, None], "it is unknown here whose status that is");
    }

    #[test]
    fn written_versions_are_bounded() {
        let written = Written::default();
        for number in 0..2 * WRITTEN_MAX {
            let known = Known { revision: Some(CloudRevision(1)), status: None };
            written.note(&key(&number.to_string()), known, None);
            assert!(written.objects.len() <= WRITTEN_MAX);
        }
    }
}
