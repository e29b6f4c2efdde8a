//! Keeps the newest state seen outside of etcd, where a restore cannot take it back.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tombolo_proto::{CloudRevision, Uid};

use crate::history_progress::HistoryProgress;

/// The state seen last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) cluster: String,
    generation: u64,
    #[serde(default)]
    beat: u64,
    revision: u64,
    /// The history went back after this, and no new epoch was recorded yet.
    #[serde(default)]
    pub(super) went_back: bool,
}

impl Seen {
    pub(super) fn new(cluster: &Uid, progress: HistoryProgress, went_back: bool) -> Self {
        let HistoryProgress { generation, beat, revision } = progress;
        Self { cluster: cluster.to_string(), generation, beat, revision: revision.0, went_back }
    }

    pub(super) fn progress(&self) -> HistoryProgress {
        HistoryProgress {
            generation: self.generation,
            beat: self.beat,
            revision: CloudRevision(self.revision),
        }
    }
}

/// The file that stores it.
#[derive(Debug)]
pub(super) struct Witness {
    path: PathBuf,
}

impl Witness {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self { path: data_dir.join("epoch.json") }
    }

    /// `None` when there is no readable file, which is treated as a first start.
    pub(super) fn read(&self) -> Option<Seen> {
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Replaces the whole file. A crash of the machine may lose the newest value, but never mixes two values.
    pub(super) fn write(&self, seen: &Seen) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or_else(|| Path::new("."));
        std::fs::create_dir_all(folder)?;
        let next = self.path.with_extension("json.new");
        std::fs::write(&next, serde_json::to_vec(seen)?)?;
        std::fs::rename(&next, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn witness_file_reads_back_and_damage_counts_as_missing() {
        let folder = tempfile::tempdir().expect("folder");
        let witness = Witness::new(&folder.path().join("new"));
        assert_eq!(witness.read(), None);
        let seen = Seen { cluster: "u".to_owned(), generation: 3, beat: 1, revision: 42, went_back: true };
        witness.write(&seen).expect("written");
        assert_eq!(witness.read(), Some(seen));
        std::fs::write(folder.path().join("new/epoch.json"), "{\"clus").expect("written");
        assert_eq!(witness.read(), None);
        let earlier = r#"{"cluster":"u","generation":3,"revision":42}"#;
        std::fs::write(folder.path().join("new/epoch.json"), earlier).expect("written");
        let progress = HistoryProgress { generation: 3, beat: 0, revision: CloudRevision(42) };
        assert_eq!(witness.read().map(|seen| seen.progress()), Some(progress), "that of an earlier version");
    }
}
