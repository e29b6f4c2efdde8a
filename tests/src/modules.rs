//! Finds which modules of a crate use each other, from its sources. Only modules with the same parent are compared: a
//! module and its children belong together.

use std::collections::{BTreeMap, BTreeSet};

/// A module by its names below the crate, for example `["hub", "shared"]`. The crate itself has none.
type ModulePath = Vec<String>;

/// What the modules of one parent use of each other, by name.
type Siblings = BTreeMap<String, BTreeSet<String>>;

/// How many re-exports in a row are followed.
const REEXPORTS_MAX: usize = 8;

/// The modules of a crate and the paths in them.
#[derive(Debug, Default)]
pub struct Modules(BTreeMap<ModulePath, UsedPaths>);

#[derive(Debug, Default)]
struct UsedPaths {
    /// Paths that the module names, as written.
    paths: Vec<ModulePath>,
    /// What its `use` statements bring into it: name and path.
    imports: BTreeMap<String, ModulePath>,
}

/// Modules with the same parent that use each other, directly or indirectly.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// The folder of the parent below `src`; empty for the crate itself.
    pub folder: String,
    /// The names of the modules.
    pub modules: Vec<String>,
}

impl Modules {
    /// Adds the product lines of a file, by its path below `src`.
    pub fn add(&mut self, path: &str, lines: &[&str]) {
        let names = path.trim_end_matches(".rs").split('/').filter(|name| !matches!(*name, "lib" | "main"));
        let module = self.0.entry(names.map(str::to_owned).collect()).or_default();
        let (statements, rest) = uses(lines);
        for (name, path) in statements.iter().flat_map(|tree| expand(tree, &[])) {
            module.paths.push(path.clone());
            module.imports.insert(name, path);
        }
        module.paths.extend(rest.iter().flat_map(|line| inline_paths(line)));
    }

    /// All circles, at every level.
    #[must_use]
    pub fn circles(&self) -> Vec<Circle> {
        let levels = self.levels();
        let circles = levels.iter().flat_map(|(parent, siblings)| {
            components(siblings)
                .into_iter()
                .map(|modules| Circle { folder: parent.join("/"), modules: modules.into_iter().collect() })
        });
        circles.collect()
    }

    /// What siblings use of each other, by their parent.
    fn levels(&self) -> BTreeMap<ModulePath, Siblings> {
        let mut levels: BTreeMap<ModulePath, Siblings> = BTreeMap::new();
        for (from, used) in &self.0 {
            for to in used.paths.iter().filter_map(|path| self.resolve(from, path, 0)) {
                let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                if let (Some(user), Some(used)) = (from.get(common), to.get(common)) {
                    let siblings = levels.entry(from[..common].to_vec()).or_default();
                    siblings.entry(user.clone()).or_default().insert(used.clone());
                }
            }
        }
        levels
    }

    /// The module that a path leads to; `None` outside of the crate.
    fn resolve(&self, from: &ModulePath, path: &[String], reexports: usize) -> Option<ModulePath> {
        let (mut at, mut rest) = (from.clone(), path);
        match path.first()?.as_str() {
            "crate" => (at, rest) = (ModulePath::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            name if self.0.contains_key(&child(from, name)) => {}
            _ => return None,
        }
        while let Some((name, below)) =
            rest.split_first().filter(|(name, _)| self.0.contains_key(&child(&at, name)))
        {
            (at, rest) = (child(&at, name), below);
        }
        let import = rest.first().and_then(|name| self.0.get(&at)?.imports.get(name));
        match import.filter(|_| at != *from && reexports < REEXPORTS_MAX) {
            Some(path) => self.resolve(&at, path, reexports + 1).or(Some(at)),
            None => Some(at),
        }
    }
}

fn child(parent: &[String], name: &str) -> ModulePath {
    parent.iter().cloned().chain([name.to_owned()]).collect()
}

/// The groups of names that reach each other.
fn components(siblings: &Siblings) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        siblings.keys().map(|name| (name.as_str(), reached(siblings, name))).collect();
    let together = |one: &str, other: &str| reached.get(one).is_some_and(|found| found.contains(other));
    let groups = reached.keys().filter(|name| together(name, name)).map(|name| {
        let others = reached.keys().filter(|other| together(name, other) && together(other, name));
        others.map(|other| (*other).to_owned()).collect()
    });
    groups.collect()
}

fn reached<'s>(siblings: &'s Siblings, from: &'s str) -> BTreeSet<&'s str> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(name) = next.pop() {
        let used = siblings.get(name).into_iter().flatten();
        next.extend(used.map(String::as_str).filter(|used| found.insert(*used)));
    }
    found
}

/// The trees of the `use` statements of formatted code, and its other lines. Statements for tests alone are left out.
fn uses<'l>(lines: &[&'l str]) -> (Vec<String>, Vec<&'l str>) {
    let (mut trees, mut rest) = (Vec::new(), Vec::new());
    let mut code = lines.iter().copied().filter(|line| !line.trim_start().starts_with("//"));
    let mut for_tests = false;
    while let Some(line) = code.next() {
        let Some(begin) = without_scope(line.trim_start()).strip_prefix("use ") else {
            for_tests = line.trim() == "#[cfg(test)]";
            rest.push(line);
            continue;
        };
        let mut tree = begin.to_owned();
        while !tree.ends_with(';') {
            let Some(line) = code.next() else { break };
            tree.push_str(line.trim_start());
        }
        if !std::mem::take(&mut for_tests) {
            trees.push(tree.trim_end_matches(';').to_owned());
        }
    }
    (trees, rest)
}

/// A declaration without `pub` or `pub(...)`.
#[must_use]
pub fn without_scope(line: &str) -> &str {
    line.strip_prefix("pub").map_or(line, |rest| match rest.split_once(") ") {
        Some((scope, rest)) if scope.starts_with('(') => rest,
        _ => rest.trim_start(),
    })
}

/// Every name that a tree of a `use` statement brings, with its path.
fn expand(tree: &str, before: &[String]) -> Vec<(String, ModulePath)> {
    let below = |path: &str| -> ModulePath { before.iter().cloned().chain(segments(path)).collect() };
    if let Some((path, group)) = tree.split_once('{') {
        let members = members(group).into_iter().map(str::trim).filter(|member| !member.is_empty());
        return members.flat_map(|member| expand(member, &below(path))).collect();
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias)),
        None => (tree, None),
    };
    let mut path = below(path);
    if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
        path.pop();
    }
    let name = alias.map(str::to_owned).or_else(|| path.last().cloned());
    name.map(|name| (name, path)).into_iter().collect()
}

fn segments(path: &str) -> impl Iterator<Item = String> {
    path.split("::")
        .map(|name| name.trim_matches([' ', ':']))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

/// The paths in a line that begin in the crate.
fn inline_paths(line: &str) -> Vec<ModulePath> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let begins = ["crate::", "super::", "self::"].into_iter().flat_map(|begin| line.match_indices(begin));
    let whole = begins.filter(|(at, _)| !line[..*at].ends_with(is_part));
    whole
        .map(|(at, _)| segments(line[at..].split(|c: char| !is_part(c)).next().unwrap_or_default()).collect())
        .collect()
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

    fn circles(files: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let mut modules = Modules::default();
        files.iter().for_each(|(path, lines)| modules.add(path, lines));
        modules.circles().into_iter().map(|Circle { folder, modules }| (folder, modules)).collect()
    }

    fn circle(folder: &str, modules: &[&str]) -> (String, Vec<String>) {
        (folder.to_owned(), modules.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn module_cycles_are_found() {
        let files: [(&str, &[&str]); 6] = [
            ("a.rs", &["use crate::b::{c, d};", "// crate::gone", "use crate::unknown;"]),
            ("b.rs", &["mod deep;"]),
            ("b/deep.rs", &["use super::own;", "use crate::{", "    d::{x, y},", "    e,", "};"]),
            ("d.rs", &["use std::fmt;", "use crate::d::inner;"]),
            ("e.rs", &["fn f() { super::a::g() }"]),
            ("lib.rs", &["use crate::a;"]),
        ];
        assert_eq!(circles(&files), [circle("", &["a", "b", "e"])], "a module may name itself");
    }

    #[test]
    fn cycles_through_reexports_of_the_parent_are_found() {
        let files: [(&str, &[&str]); 5] = [
            ("hub.rs", &["mod one;", "pub(crate) use one::{self, Thing};", "use std::sync::Arc;"]),
            ("hub/one.rs", &["fn f() -> super::two::Other { g() }"]),
            ("hub/two.rs", &["mod deep;"]),
            ("hub/two/deep.rs", &["use super::super::Thing as Renamed;"]),
            ("other.rs", &["use crate::hub::Thing;"]),
        ];
        assert_eq!(circles(&files), [circle("hub", &["one", "two"])]);
        let parent_alone: [(&str, &[&str]); 3] = [
            ("hub.rs", &["use one::Thing;", "pub(super) struct Own;"]),
            ("hub/one.rs", &["use super::Own;", "#[cfg(test)]", "use super::two::Other;"]),
            ("hub/two.rs", &["use super::{", "    Own,", "    one::Thing,", "};"]),
        ];
        assert!(circles(&parent_alone).is_empty());
    }

    #[test]
    fn two_cycles_of_a_folder_are_separate() {
        let files: [(&str, &[&str]); 4] = [
            ("a.rs", &["use crate::b;"]),
            ("b.rs", &["use crate::a;", "use crate::c;"]),
            ("c.rs", &["use super::d;"]),
            ("d.rs", &["use super::c;"]),
        ];
        assert_eq!(circles(&files), [circle("", &["a", "b"]), circle("", &["c", "d"])]);
    }
}
