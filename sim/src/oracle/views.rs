//! How far each replica knows the history of each kind.

use std::collections::BTreeMap;

use crate::observation::{HistoryPosition, Millis};

/// Views of all replicas. A replica begins with what its first list of a kind shows.
#[derive(Debug, Default)]
pub(super) struct Views {
    replicas: BTreeMap<u32, BTreeMap<String, Vec<(Millis, HistoryPosition)>>>,
}

impl Views {
    /// A replica has seen more of a kind.
    pub(super) fn moved(&mut self, at: Millis, replica: u32, resource: &str, position: HistoryPosition) {
        let kinds = self.replicas.entry(replica).or_default();
        kinds.entry(resource.to_owned()).or_default().push((at, position));
    }

    /// A replica has ended. What it sent may still arrive: its last view counts as long as any window reaches back to
    /// it.
    pub(super) fn ended(&mut self, at: Millis, replica: u32) {
        for positions in self.replicas.entry(replica).or_default().values_mut() {
            if let Some((_, last)) = positions.last().copied() {
                positions.push((at, last));
                // From here on, the replica knows nothing and tells nothing.
                positions.push((at, HistoryPosition { history: u32::MAX, revision: u64::MAX }));
            }
        }
    }

    /// The oldest position at which a replica may have decided something about a kind since a time. `None` if it has
    /// no view of the kind.
    #[must_use]
    pub(super) fn of_replica(&self, replica: u32, resource: &str, since: Millis) -> Option<HistoryPosition> {
        let positions = self.replicas.get(&replica)?.get(resource)?;
        let known = positions.partition_point(|(at, _)| *at <= since);
        let window = &positions[known.saturating_sub(1)..];
        window.iter().map(|(_, position)| *position).min().filter(|position| position.history < u32::MAX)
    }

    /// The same for all replicas together.
    #[must_use]
    pub(super) fn oldest(&self, resource: &str, since: Millis) -> Option<HistoryPosition> {
        self.replicas.keys().filter_map(|replica| self.of_replica(*replica, resource, since)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(revision: u64) -> HistoryPosition {
        HistoryPosition { history: 0, revision }
    }

    #[test]
    fn the_oldest_view_of_a_window_counts() {
        let mut views = Views::default();
        views.moved(10, 0, "pods", position(5));
        views.moved(20, 0, "pods", position(9));
        views.moved(15, 1, "pods", position(3));
        assert_eq!(views.of_replica(0, "pods", 12), Some(position(5)));
        assert_eq!(views.of_replica(0, "pods", 20), Some(position(9)));
        assert_eq!(views.of_replica(0, "secrets", 20), None);
        assert_eq!(views.oldest("pods", 30), Some(position(3)));
        views.ended(40, 1);
        assert_eq!(views.oldest("pods", 39), Some(position(3)), "what it sent may be under way");
        assert_eq!(views.oldest("pods", 41), Some(position(9)));
        views.moved(50, 1, "pods", position(4));
        assert_eq!(views.oldest("pods", 60), Some(position(4)), "it starts with an old list");
    }
}
