//! The lists of changes on which the servers are known to disagree. Each line has a manifest, a path and the kind of
//! change, or `*` for every kind of change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::change::Change;

fn file(group: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/conformance/mutations/known/{group}.txt"))
}

/// The lines about the compared manifests.
pub(super) struct Known {
    /// By group; the value is whether a disagreement occurred.
    lines: BTreeMap<String, BTreeMap<String, bool>>,
}

impl Known {
    /// Reads the lines about manifests, each given with its group. A group without a file has no lines.
    pub(super) fn read<'a>(manifests: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        manifests.for_each(|(group, name)| {
            names.entry(group).or_default().insert(name);
        });
        let lines = names.into_iter().map(|(group, names)| {
            let text = fs::read_to_string(file(group)).unwrap_or_default();
            let named = |line: &&str| names.contains(line.split(' ').next().unwrap_or_default());
            (group.to_owned(), text.lines().filter(named).map(|line| (line.to_owned(), false)).collect())
        });
        Self { lines: lines.collect() }
    }

    /// Whether a disagreement is listed; marks the matching lines as seen.
    pub(super) fn covers(&mut self, group: &str, manifest: &str, change: &Change) -> bool {
        let Some(lines) = self.lines.get_mut(group) else { return false };
        let mut covered = false;
        for what in [change.what, "*"] {
            if let Some(seen) = lines.get_mut(&format!("{manifest} {} {what}", change.path)) {
                *seen = true;
                covered = true;
            }
        }
        covered
    }

    /// Lines about differences that no longer occur.
    pub(super) fn gone(&self) -> impl Iterator<Item = &str> {
        let unseen = self.lines.values().flatten().filter(|(_, seen)| !**seen);
        unseen.map(|(line, _)| line.as_str())
    }

    /// Removes those lines from the files.
    pub(super) fn prune(&self) {
        for (group, lines) in &self.lines {
            let Ok(text) = fs::read_to_string(file(group)) else { continue };
            let kept: String = text
                .lines()
                .filter(|line| lines.get(*line).is_none_or(|seen| *seen))
                .map(|line| format!("{line}\n"))
                .collect();
            fs::write(file(group), kept).expect("cannot write the list");
        }
    }
}
