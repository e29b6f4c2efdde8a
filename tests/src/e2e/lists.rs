//! The lists of `tests/e2e/lists`: the expected outcome of each test of the suite.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Ends a line of `needs-containers.txt` that matches every name with this prefix.
const REST: char = '*';

/// Separates a name from the reason why the test does not pass yet.
const REASON: &str = " | ";

/// The expected outcome of a test on the embedded server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected<'a> {
    /// It passes.
    Pass,
    /// It passes on the real server and fails here, for this reason.
    NotYet(&'a str),
    /// It cannot pass on a cluster whose only node runs no containers.
    NeedsContainers,
    /// It is in no list.
    Unlisted,
}

/// The lists.
#[derive(Debug, Default)]
pub struct Lists {
    pass: BTreeSet<String>,
    not_yet: BTreeMap<String, String>,
    needs_containers: BTreeSet<String>,
    needs_containers_from: Vec<String>,
}

impl Lists {
    /// Reads `pass.txt`, `not-yet.txt` and `needs-containers.txt` of a folder.
    ///
    /// # Errors
    /// When a file is missing, a line of `not-yet.txt` has no reason, or a name is in two lists.
    pub fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        Self::parse(&text("pass.txt")?, &text("not-yet.txt")?, &text("needs-containers.txt")?)
    }

    /// Reads the three texts.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(pass: &str, not_yet: &str, needs_containers: &str) -> Result<Self> {
        let mut lists = Self { pass: lines(pass).map(str::to_owned).collect(), ..Self::default() };
        for line in lines(not_yet) {
            let Some((name, reason)) = line.split_once(REASON).filter(|(_, reason)| !reason.is_empty())
            else {
                bail!("not-yet.txt: {line:?} gives no reason: write NAME{REASON}REASON");
            };
            ensure!(!lists.pass.contains(name), "{name:?} is in pass.txt and in not-yet.txt");
            lists.not_yet.insert(name.to_owned(), reason.to_owned());
        }
        for line in lines(needs_containers) {
            if let Some(start) = line.strip_suffix(REST) {
                lists.needs_containers_from.push(start.to_owned());
                continue;
            }
            let twice = lists.pass.contains(line) || lists.not_yet.contains_key(line);
            ensure!(!twice, "{line:?} is in needs-containers.txt and in another list");
            lists.needs_containers.insert(line.to_owned());
        }
        Ok(lists)
    }

    /// The expected outcome of a test. A complete name takes precedence over a prefix.
    #[must_use]
    pub fn expected(&self, name: &str) -> Expected<'_> {
        if self.pass.contains(name) {
            return Expected::Pass;
        }
        if let Some(reason) = self.not_yet.get(name) {
            return Expected::NotYet(reason);
        }
        let excluded = self.needs_containers.contains(name)
            || self.needs_containers_from.iter().any(|start| name.starts_with(start));
        if excluded { Expected::NeedsContainers } else { Expected::Unlisted }
    }

    /// Listed names and prefixes that match no test of the suite: the suite has another version.
    #[must_use]
    pub fn unknown(&self, suite: &BTreeSet<String>) -> Vec<&str> {
        let whole = self.pass.iter().chain(self.not_yet.keys()).chain(&self.needs_containers);
        let missing = whole.filter(|name| !suite.contains(*name));
        let begun = self.needs_containers_from.iter();
        let empty = begun.filter(|start| !suite.iter().any(|name| name.starts_with(*start)));
        missing.chain(empty).map(String::as_str).collect()
    }
}

/// The lines that are neither empty nor comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_name_takes_precedence_over_a_prefix() {
        let lists = Lists::parse("# comment\n[a] one\n", "[a] two | no watch\n", "[a] three\n[a] *\n[b] *\n")
            .unwrap();
        assert_eq!(lists.expected("[a] one"), Expected::Pass);
        assert_eq!(lists.expected("[a] two"), Expected::NotYet("no watch"));
        assert_eq!(lists.expected("[a] three"), Expected::NeedsContainers);
        assert_eq!(lists.expected("[a] four"), Expected::NeedsContainers);
        assert_eq!(lists.expected("[c] five"), Expected::Unlisted);
        let suite = ["[a] one", "[a] two"].map(str::to_owned).into();
        assert_eq!(lists.unknown(&suite), ["[a] three", "[b] "]);
    }

    #[test]
    fn a_name_in_two_lists_and_a_missing_reason_are_refused() {
        assert!(Lists::parse("x\n", "x | why\n", "").is_err());
        assert!(Lists::parse("x\n", "", "x\n").is_err());
        assert!(Lists::parse("", "x | why\n", "x\n").is_err());
        assert!(Lists::parse("", "x\n", "").is_err());
        assert!(Lists::parse("", "x | \n", "").is_err());
    }

    #[test]
    fn the_lists_of_the_repository_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/lists");
        let lists = Lists::read(&folder).unwrap();
        assert!(!lists.pass.is_empty() && !lists.not_yet.is_empty() && !lists.needs_containers.is_empty());
    }
}
