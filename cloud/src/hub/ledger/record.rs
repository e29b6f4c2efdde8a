//! Serialisation of a ledger: compressed JSON, so that the largest one fits into one Kubernetes object.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tombolo_proto::session::kubeedge::{LEDGER_MAX, Ledger, LedgerEntry, Watch};
use tombolo_proto::{CloudRevision, Epoch, ObjectKey, Resource, Uid};

/// Longest record, in bytes: the limit of a ConfigMap, with room for its other fields.
const RECORD_LEN_MAX: usize = 1_000_000;

/// Longest text that a record may decompress to.
const TEXT_LEN_MAX: usize = 64 * 1024 * 1024;

/// The format version that is written.
const FORMAT: u32 = 1;

/// One node's ledger and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Identifies the cloudcore that serves the node.
    pub holder: Box<str>,
    /// UID of the Node object with which the record is garbage-collected; none before the node is registered.
    pub owner: Option<Uid>,
    /// What was delivered to the node.
    pub ledger: Ledger,
}

/// Invalid bytes, or a record that is too long.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The bytes are not compressed, not JSON, or a field is missing.
    #[error("unreadable: {0}")]
    Unreadable(String),
    /// The record was written by a newer cloudcore.
    #[error("format {0} is newer than this cloudcore supports")]
    Newer(u32),
    /// The object holds the record of another node.
    #[error("it is the ledger of node {0:?}")]
    OfAnother(String),
    /// The record is larger than an object may be.
    #[error(
        "{0} bytes exceed the size limit of an object: the node refers to too many objects with long names"
    )]
    TooLarge(usize),
}

#[derive(Serialize, Deserialize)]
struct WrittenRecord<'a> {
    format: u32,
    epoch: Option<WrittenEpoch>,
    watches: Vec<WrittenWatch>,
    #[serde(borrow)]
    entries: Vec<WrittenEntry<'a>>,
}

#[derive(Serialize, Deserialize)]
struct WrittenEpoch {
    cluster: String,
    generation: u64,
}

#[derive(Serialize, Deserialize)]
struct WrittenWatch {
    id: String,
    key: String,
    option: String,
}

/// Group, version, plural, namespace, name, kind, UID, revision.
#[derive(Serialize, Deserialize)]
struct WrittenEntry<'a>(
    #[serde(borrow)] Text<'a>,
    Text<'a>,
    Text<'a>,
    Text<'a>,
    Text<'a>,
    Text<'a>,
    Option<Text<'a>>,
    Option<u64>,
);

type Text<'a> = std::borrow::Cow<'a, str>;

/// Compresses a ledger. A ledger that is too large with its versions is stored without them: they only avoid repeated
/// deliveries.
///
/// # Errors
/// [`RecordError::TooLarge`].
pub(super) fn encode(ledger: &Ledger) -> Result<Vec<u8>, RecordError> {
    match compressed(ledger, true) {
        Err(RecordError::TooLarge(_)) => compressed(ledger, false),
        outcome => outcome,
    }
}

fn compressed(ledger: &Ledger, with_versions: bool) -> Result<Vec<u8>, RecordError> {
    let entries = ledger.entries().map(|(key, entry)| {
        let resource = key.resource();
        let known = Some(entry).filter(|_| with_versions);
        WrittenEntry(
            (*resource.group).into(),
            (*resource.version).into(),
            (*resource.name).into(),
            key.namespace().into(),
            key.name().into(),
            (*entry.kind).into(),
            known.and_then(|entry| entry.uid.as_ref()).map(|uid| uid.as_str().into()),
            known.and_then(|entry| entry.revision).map(|revision| revision.0),
        )
    });
    let written = WrittenRecord {
        format: FORMAT,
        epoch: ledger
            .epoch
            .as_ref()
            .map(|epoch| WrittenEpoch { cluster: epoch.cluster.to_string(), generation: epoch.generation }),
        watches: ledger.watches.iter().map(written_watch).collect(),
        entries: entries.collect(),
    };
    let unreadable = |error: &dyn std::fmt::Display| RecordError::Unreadable(error.to_string());
    let text = serde_json::to_vec(&written).map_err(|error| unreadable(&error))?;
    let bytes = zstd::bulk::compress(&text, 0).map_err(|error| unreadable(&error))?;
    if bytes.len() > RECORD_LEN_MAX {
        return Err(RecordError::TooLarge(bytes.len()));
    }
    Ok(bytes)
}

/// Reads the output of [`encode`].
///
/// # Errors
/// [`RecordError`].
pub(super) fn decode(bytes: &[u8]) -> Result<Ledger, RecordError> {
    let unreadable = |error: &dyn std::fmt::Display| RecordError::Unreadable(error.to_string());
    let text = zstd::bulk::decompress(bytes, TEXT_LEN_MAX).map_err(|error| unreadable(&error))?;
    let written: WrittenRecord<'_> = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
    if written.format > FORMAT {
        return Err(RecordError::Newer(written.format));
    }
    let uid = |text: &str| Uid::parse(text).map_err(|error| unreadable(&error));
    let epoch = written.epoch.map(|epoch| {
        let WrittenEpoch { cluster, generation } = epoch;
        uid(&cluster).map(|cluster| Epoch { cluster, generation })
    });
    let watches = written.watches.into_iter().map(|watch| Watch {
        id: watch.id.into(),
        key: watch.key.into(),
        option: watch.option.into_bytes().into(),
    });
    let mut ledger = Ledger::new(epoch.transpose()?, watches.collect());
    // Thousands of keys have only a few distinct resources, so the keys share the resource texts.
    let mut resources = HashMap::new();
    for WrittenEntry(group, version, plural, namespace, name, kind, known, revision) in written.entries {
        let resource: &Resource = resources
            .entry((group, version, plural))
            .or_insert_with_key(|(group, version, plural)| Resource::new(group, version, plural));
        let key = ObjectKey::new(resource.clone(), &namespace, &name);
        let entry = LedgerEntry {
            kind: kind.into(),
            uid: known.map(|known| uid(&known)).transpose()?,
            revision: revision.map(CloudRevision),
        };
        let full = || RecordError::Unreadable(format!("more than {LEDGER_MAX} entries"));
        ledger.insert(key, entry).map_err(|_| full())?;
    }
    Ok(ledger)
}

fn written_watch(watch: &Watch) -> WrittenWatch {
    WrittenWatch {
        id: watch.id.as_ref().into(),
        key: watch.key.as_ref().into(),
        option: String::from_utf8_lossy(&watch.option).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tombolo_proto::session::kubeedge::Share;

    use super::*;

    fn uid(number: u64) -> Uid {
        // Random, like the UIDs of the API: they determine how well a record compresses.
        let [a, b] = [1, 2].map(|seed| xxhash_rust::xxh3::xxh3_64_with_seed(&number.to_le_bytes(), seed));
        Uid::parse(&uuid::Uuid::from_u64_pair(a, b).to_string()).expect("a UID")
    }

    #[test]
    fn the_largest_ledger_fits_one_object_and_comes_back() {
        let epoch = Epoch { cluster: uid(0), generation: 3 };
        let watch = Watch { id: "a".into(), key: "/core/v1/pods/null/null".into(), option: b"{}"[..].into() };
        let mut ledger = Ledger::new(Some(epoch), vec![watch]);
        for number in 0..LEDGER_MAX as u64 {
            let (namespace, name) = (format!("team-{}", number % 50), format!("settings-of-shop-{number}"));
            let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), &namespace, &name);
            let known = (number % 3 > 0).then(|| uid(number));
            let revision = (number % 3 > 1).then(|| CloudRevision(1_000_000 + number));
            ledger.insert(key, LedgerEntry { kind: "ConfigMap".into(), uid: known, revision }).expect("room");
        }
        let bytes = encode(&ledger).expect("fits");
        assert!(bytes.len() < RECORD_LEN_MAX / 2, "{} bytes", bytes.len());
        assert_eq!(decode(&bytes).expect("a record"), ledger);
    }

    /// An incompressible name of letters, digits and dots.
    fn random_name(number: u64, len: usize) -> String {
        const LETTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789.";
        let letter = |digit: u64| {
            let seed = number.wrapping_mul(1000).wrapping_add(digit);
            let index = xxhash_rust::xxh3::xxh3_64(&seed.to_le_bytes()) % LETTERS.len() as u64;
            char::from(LETTERS[usize::try_from(index).expect("small")])
        };
        (0..len as u64).map(letter).collect()
    }

    fn entry(number: u64) -> LedgerEntry {
        let revision = Some(CloudRevision(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20));
        LedgerEntry { kind: "ConfigMap".into(), uid: Some(uid(number)), revision }
    }

    /// No names can make a ledger that cannot be stored: it is full before that. With names of usual length it is not.
    #[test]
    fn ledger_within_its_bound_fits_one_object_with_any_names() {
        for (len, least) in [(253, 3000), (120, 5000), (45, LEDGER_MAX), (4, LEDGER_MAX)] {
            let mut ledger = Ledger::new(Some(Epoch { cluster: uid(0), generation: 3 }), Vec::new());
            for number in 0.. {
                let name = random_name(number, len);
                let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "team", &name);
                if !ledger.has_room(&key, Share::Own) {
                    break;
                }
                ledger.insert(key, entry(number)).expect("room");
            }
            assert!(ledger.len() >= least, "{} names of {len} bytes", ledger.len());
            let bytes = compressed(&ledger, true).expect("it fits, versions included");
            assert_eq!(decode(&bytes).expect("a record"), ledger);
        }
    }

    /// Such a ledger predates that bound, or was written by another cloudcore.
    #[test]
    fn oversized_ledger_is_stored_without_versions_but_with_every_key() {
        let mut ledger = Ledger::new(Some(Epoch { cluster: uid(0), generation: 3 }), Vec::new());
        for number in 0..5500 {
            let name = random_name(number, 253);
            let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "team", &name);
            ledger.insert(key, entry(number)).expect("room");
        }
        assert!(matches!(compressed(&ledger, true), Err(RecordError::TooLarge(_))));
        let stored = decode(&encode(&ledger).expect("it fits")).expect("a record");
        let keys = |ledger: &Ledger| ledger.entries().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&stored), keys(&ledger));
        assert!(stored.entries().all(|(_, entry)| entry.uid.is_none() && entry.revision.is_none()));
    }

    #[test]
    fn invalid_ledger_record_is_refused_with_a_reason() {
        let compressed = |text: &str| zstd::bulk::compress(text.as_bytes(), 0).expect("compressed");
        for bytes in [b"{}".to_vec(), compressed("{}"), compressed("[]"), Vec::new()] {
            assert!(matches!(decode(&bytes), Err(RecordError::Unreadable(_))));
        }
        let newer = compressed(r#"{"format":2,"epoch":null,"watches":[],"entries":[]}"#);
        assert!(matches!(decode(&newer), Err(RecordError::Newer(2))));
    }
}
