//! Finds which top-level modules of a crate use each other, from its sources.

use std::collections::{BTreeMap, BTreeSet};

/// The modules that each module of a crate uses.
#[derive(Debug, Default)]
pub struct Modules(BTreeMap<String, BTreeSet<String>>);

impl Modules {
    /// Adds the product lines of a file, by its path below `src`.
    pub fn add(&mut self, path: &str, lines: &[&str]) {
        let (module, is_root) = match path.split_once('/') {
            Some((module, _)) => (module, false),
            None => (path.trim_end_matches(".rs"), true),
        };
        if matches!(module, "lib" | "main") {
            return;
        }
        let code = lines.iter().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.copied().collect::<Vec<_>>().join("\n");
        let mut used = named_after(&code, "crate::");
        if is_root {
            used.extend(named_after(&code, "super::"));
        }
        used.remove(module);
        self.0.entry(module.to_owned()).or_default().extend(used);
    }

    /// Modules that use each other, directly or indirectly.
    #[must_use]
    pub fn circle(&self) -> Vec<&str> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|module| (module.as_str(), self.reached(module))).collect();
        reached
            .iter()
            .filter(|(module, reached)| reached.contains(*module))
            .map(|(module, _)| *module)
            .collect()
    }

    fn reached<'m>(&'m self, from: &'m str) -> BTreeSet<&'m str> {
        let mut found = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            let used = self.0.get(module).into_iter().flatten();
            next.extend(
                used.map(String::as_str).filter(|used| self.0.contains_key(*used) && found.insert(*used)),
            );
        }
        found
    }
}

/// The names after a path prefix: one name, or those of a group in braces.
fn named_after(code: &str, prefix: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let name = |text: &str| text.chars().take_while(|c| is_part(*c)).collect::<String>();
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        let after = &code[at + prefix.len()..];
        match after.strip_prefix('{') {
            None => drop(found.insert(name(after))),
            Some(group) => found.extend(members(group).into_iter().map(|member| name(member.trim_start()))),
        }
    }
    found.remove("");
    found
}

/// The members of a group up to its closing brace.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                found.push(&group[start..at]);
                start = at + 1;
            }
            '}' if depth == 0 => {
                found.push(&group[start..at]);
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_round_are_found() {
        let mut modules = Modules::default();
        modules.add("a.rs", &["use crate::b::{c, d};", "// crate::gone"]);
        modules.add("b/deep.rs", &["use super::own;", "use crate::{", "    d::{x, y},", "    e,", "};"]);
        modules.add("d.rs", &["use std::fmt;"]);
        modules.add("e.rs", &["fn f() { super::a::g() }"]);
        modules.add("lib.rs", &["use crate::a;"]);
        assert_eq!(modules.circle(), ["a", "b", "e"]);
        modules.add("d.rs", &["use crate::d::inner;", "use crate::unknown;"]);
        assert_eq!(modules.circle(), ["a", "b", "e"], "a module may name itself");
    }
}
