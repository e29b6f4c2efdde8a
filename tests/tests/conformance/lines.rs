//! The requests, by subject. They are sent in order, so that later requests see the effects of earlier ones.

pub(crate) mod apply;
pub(crate) mod combinations;
pub(crate) mod core;
pub(crate) mod definitions;
pub(crate) mod deletes;
pub(crate) mod fields;
pub(crate) mod forms;
pub(crate) mod lists;
pub(crate) mod reads;
pub(crate) mod scales;
pub(crate) mod selectors;
pub(crate) mod subresources;
pub(crate) mod wire;
pub(crate) mod writes;

use crate::line::Line;

/// Method, path, content type and body.
pub(crate) type Row = (&'static str, &'static str, &'static str, &'static str);

pub(crate) const JSON: &str = "application/json";
pub(crate) const YAML: &str = "application/yaml";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const PATCH: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// Long sequences, one request per line: method, path, content type without the common part, body.
const SEQUENCES: [&str; 5] = [
    include_str!("lines/owners.txt"),
    include_str!("lines/patches.txt"),
    include_str!("lines/listmaps.txt"),
    include_str!("lines/versions.txt"),
    include_str!("lines/odd.txt"),
];

fn sequences() -> impl Iterator<Item = Line> {
    let lines = SEQUENCES.into_iter().flat_map(str::lines);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let mut parts = line.splitn(4, ' ');
        let mut next = || parts.next().unwrap_or_default();
        let (method, path, content_type, body) = (next(), next(), next(), next());
        let content_type = match content_type {
            "" => "",
            "json" => JSON,
            "merge" => MERGE,
            "strategic" => STRATEGIC,
            "patch" => PATCH,
            "apply" => APPLY,
            "yaml" => YAML,
            "text/plain" => "text/plain",
            other => panic!("no content type {other}"),
        };
        Line::new(&(method, path, content_type, body))
    })
}

/// The requests whose answers also depend on admission.
pub(crate) fn admitted() -> impl Iterator<Item = Line> {
    subresources::LINES.iter().map(Line::new).chain(wire::admitted())
}

/// The requests that depend only on serving.
pub(crate) fn all() -> impl Iterator<Item = Line> {
    subjects(true).chain(forms::lines()).chain(sequences()).chain(wire::lines())
}

/// The requests that an edge answers like its cloud: reads, watches and writes of single objects, including deletions,
/// and lists of objects that do not change meanwhile.
pub(crate) fn at_an_edge() -> impl Iterator<Item = Line> {
    subjects(false).chain(forms::lines()).chain(wire::lines()).chain(deletes::LINES.iter().map(Line::new))
}

fn subjects(with_deletes: bool) -> impl Iterator<Item = Line> {
    let deletes = if with_deletes { deletes::LINES } else { &[] };
    let subjects = [
        reads::LINES,
        writes::LINES,
        fields::LINES,
        apply::LINES,
        scales::LINES,
        selectors::LINES,
        deletes,
        lists::LINES,
    ];
    subjects.into_iter().flatten().map(Line::new)
}
