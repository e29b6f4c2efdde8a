//! How far a history has progressed, and which states cannot belong to the same history.

use tombolo_proto::CloudRevision;

/// The progress of a cluster's history. Within one history no number ever decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HistoryProgress {
    /// Generation of the epoch. The other numbers count within one generation.
    pub(crate) generation: u64,
    /// Raised by the replicas in the record from time to time. In a restored history it stays behind, even when that
    /// history soon has as many revisions.
    pub(crate) beat: u64,
    /// Revision of a consistent read.
    pub(crate) revision: CloudRevision,
}

impl HistoryProgress {
    /// Whether a history that had progressed this far cannot be at `now`, which means that it went back.
    pub(crate) fn exceeds(&self, now: &Self) -> bool {
        let further = self.beat > now.beat || self.revision > now.revision;
        self.generation > now.generation || (self.generation == now.generation && further)
    }

    /// The combined progress that both state for one history. Of two generations only the later one counts.
    pub(crate) fn and(self, other: Self) -> Self {
        match self.generation.cmp(&other.generation) {
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Equal => Self {
                generation: self.generation,
                beat: self.beat.max(other.beat),
                revision: self.revision.max(other.revision),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress((generation, beat, revision): (u64, u64, u64)) -> HistoryProgress {
        HistoryProgress { generation, beat, revision: CloudRevision(revision) }
    }

    #[test]
    fn any_decreased_number_means_the_history_went_back() {
        let now = progress((5, 7, 100));
        for before in [(5, 7, 101), (5, 8, 1), (6, 0, 0), (u64::MAX, u64::MAX, u64::MAX)] {
            assert!(progress(before).exceeds(&now), "{before:?}");
        }
        for before in [(5, 7, 100), (5, 6, 99), (4, 1000, 1_000_000), (0, 0, 0)] {
            assert!(!progress(before).exceeds(&now), "{before:?}");
        }
    }

    #[test]
    fn progress_of_two_sources_is_combined() {
        assert_eq!(progress((5, 7, 100)).and(progress((5, 8, 90))), progress((5, 8, 100)));
        assert_eq!(progress((5, 7, 100)).and(progress((6, 1, 2))), progress((6, 1, 2)));
        assert_eq!(progress((6, 1, 2)).and(progress((5, 7, 100))), progress((6, 1, 2)));
    }
}
