//! The list of mutants that are equivalent to the program, and the judgement of those that survived.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

/// Names of mutants, without their positions, and how often each occurs.
pub(super) type MutantNames = BTreeMap<String, usize>;

/// Parses the list: lines with names, each followed by an indented line with the reason.
///
/// # Errors
/// A name has no reason, or a reason no name.
pub(super) fn parse(list: &str) -> Result<MutantNames> {
    let mut names = MutantNames::new();
    let mut without_reason: Vec<&str> = Vec::new();
    for line in list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if !line.starts_with(' ') {
            without_reason.push(line);
            continue;
        }
        if without_reason.is_empty() {
            bail!("this reason has no mutant: {}", line.trim());
        }
        for name in without_reason.drain(..) {
            *names.entry(name.to_owned()).or_default() += 1;
        }
    }
    match without_reason.as_slice() {
        [] => Ok(names),
        [name, ..] => bail!("this mutant has no reason: {name}"),
    }
}

/// Counts the names in a report of cargo-mutants, which has lines such as `a/b.rs:3:5: replace f with ()`.
///
/// # Errors
/// A line does not have this form.
pub(super) fn count(report: &str) -> Result<MutantNames> {
    let mut names = MutantNames::new();
    for line in report.lines() {
        let name = line.split_once(".rs:").and_then(|(file, rest)| {
            let (_, change) = rest.split_once(": ")?;
            Some(format!("{file}.rs: {change}"))
        });
        let Some(name) = name else { bail!("cargo-mutants reports a mutant in another form: {line}") };
        *names.entry(name).or_default() += 1;
    }
    Ok(names)
}

/// Survivors that are not listed, with the positions that the report gives.
pub(super) fn unlisted(report: &str, listed: &MutantNames) -> Result<Vec<String>> {
    let survived = count(report)?;
    let is_new = |name: &String| survived.get(name) > listed.get(name);
    let mut lines = Vec::new();
    for line in report.lines() {
        if count(line)?.keys().any(is_new) {
            lines.push(line.to_owned());
        }
    }
    Ok(lines)
}

/// Listed mutants of these files that did not survive.
pub(super) fn stale(
    survived: &MutantNames,
    listed: &MutantNames,
    is_of_these: impl Fn(&str) -> bool,
) -> Vec<String> {
    let is_stale = |(name, count): &(&String, &usize)| is_of_these(name) && survived.get(*name) < Some(count);
    listed.iter().filter(is_stale).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# a comment\n\na.rs: delete ! in f\na.rs: delete ! in f\n    Twice.\nb/c.rs: replace | with ^ in g\n    Why.\n";

    fn names(all: &[(&str, usize)]) -> MutantNames {
        all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn every_listed_mutant_has_a_reason() {
        let listed = parse(LIST).unwrap();
        assert_eq!(listed, names(&[("a.rs: delete ! in f", 2), ("b/c.rs: replace | with ^ in g", 1)]));
        for (list, said) in [
            ("a.rs: delete ! in f\n", "has no reason: a.rs"),
            ("    Why.\n", "has no mutant: Why."),
            ("a.rs: x\n    Why.\n    More.\n", "has no mutant: More."),
        ] {
            let error = parse(list).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn surviving_mutant_is_matched_by_name() {
        let listed = parse(LIST).unwrap();
        let known = "a.rs:3:5: delete ! in f\na.rs:9:12: delete ! in f\nb/c.rs:1:1: replace | with ^ in g\n";
        assert_eq!(unlisted(known, &listed).unwrap(), [""; 0]);
        let third = format!("{known}a.rs:20:1: delete ! in f\n");
        assert_eq!(unlisted(&third, &listed).unwrap().len(), 3, "the new one cannot be identified");
        let other = "b/c.rs:1:1: replace | with & in g\nb/c.rs:2:1: replace | with ^ in g\n";
        assert_eq!(unlisted(other, &listed).unwrap(), ["b/c.rs:1:1: replace | with & in g"]);
        assert!(count("something else").is_err());
    }

    #[test]
    fn listed_mutant_that_was_caught_is_reported() {
        let listed = parse(LIST).unwrap();
        let survived = count("a.rs:3:5: delete ! in f\n").unwrap();
        assert_eq!(
            stale(&survived, &listed, |_| true),
            ["a.rs: delete ! in f", "b/c.rs: replace | with ^ in g"]
        );
        assert_eq!(
            stale(&survived, &listed, |name| name.starts_with("b/")),
            ["b/c.rs: replace | with ^ in g"]
        );
        let survived = count("a.rs:3:5: delete ! in f\na.rs:4:5: delete ! in f\n").unwrap();
        assert_eq!(stale(&survived, &listed, |name| name.starts_with("a.rs")), [""; 0]);
    }
}
