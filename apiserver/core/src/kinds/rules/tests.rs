use super::*;
use crate::kinds::{KindInfo, Kinds};

fn kind_of<'a>(kinds: &'a Kinds, api_version: &str, plural: &str) -> &'a KindInfo {
    let found = kinds.iter().find(|kind| kind.api_version() == api_version && &*kind.resource.name == plural);
    found.unwrap_or_else(|| panic!("no built-in kind {api_version} {plural}"))
}

/// Whether the type of a kind has a path.
fn exists(kind: &KindInfo, path: &FieldPath) -> bool {
    let mut position = kind.position();
    path.names().iter().all(|name| {
        let (below, known) = position.child(name);
        position = below;
        known
    })
}

#[test]
fn every_line_of_the_table_is_a_fact_about_a_field_of_a_kind_that_is_served() {
    let kinds = Kinds::builtin();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let ["rule", api_version, path, fact] = words[..] else { panic!("not a rule: {line}") };
        let (plural, subresource) = path.split_once('/').unwrap_or((path, ""));
        let kind = kind_of(&kinds, api_version, plural);
        assert!(subresource.is_empty() || kind.has_subresource(subresource), "{line}");
        let mut rules = Rules::default();
        assert!(rules.read(subresource, fact).is_some(), "{line}");
        let endpoints = rules.endpoints.iter().flat_map(|endpoint| [&endpoint.owned, &endpoint.written]);
        let fields = endpoints.flat_map(|fields| match fields {
            Fields::All => &[][..],
            Fields::But(paths) | Fields::Only(paths) => paths,
        });
        for path in fields.chain(rules.selectable.iter().map(|field| &field.path)) {
            assert!(exists(kind, path), "{line}: the kind has no {path:?}");
        }
    }
}

#[test]
fn rules_of_the_table_come_on_top_of_the_usual_ones() {
    let kinds = Kinds::builtin();
    let nodes = kind_of(&kinds, "v1", "nodes").rules();
    assert!(nodes.keeps_status && !nodes.conditional_update);
    let paths = |names: &[&str]| names.iter().map(|name| FieldPath::parse(name)).collect::<Vec<_>>();
    assert_eq!(nodes.endpoint("").unwrap().written, Fields::But(paths(&["status"])));
    let status = nodes.endpoint("status").unwrap();
    assert_eq!(status.owned, Fields::But(paths(&["spec"])));
    assert_eq!(status.written, status.owned);
    let deployment = kind_of(&kinds, "apps/v1", "deployments").rules().endpoint("status").unwrap();
    assert_eq!(deployment.written, Fields::But(paths(&["spec", "metadata.labels"])));
    assert_eq!(nodes.endpoint("proxy"), None);
    assert_eq!(kind_of(&kinds, "apps/v1", "deployments").rules().generation, Generation::SpecAndAnnotations);
    let custom = Rules::custom(&["status", "scale"]);
    assert!(custom.conditional_update);
    assert_eq!(custom.endpoint("status").unwrap().written, Fields::Only(paths(&["status"])));
    assert_eq!(Rules::custom(&[]).endpoint("").unwrap().owned, Fields::All);
}

#[test]
fn a_field_is_copied_with_its_absence() {
    let path = FieldPath::parse("metadata.labels");
    let from = serde_json::json!({"metadata": {"labels": {"a": "b"}, "name": "n"}});
    let mut to = serde_json::json!({});
    path.copy(&from, &mut to);
    assert_eq!(to, serde_json::json!({"metadata": {"labels": {"a": "b"}}}));
    path.copy(&serde_json::json!({}), &mut to);
    assert_eq!(to, serde_json::json!({"metadata": {}}));
    path.copy(&serde_json::json!({}), &mut to);
    let mut text = serde_json::json!({"metadata": "x"});
    path.copy(&from, &mut text);
    assert_eq!(text["metadata"]["labels"]["a"], "b");
}
