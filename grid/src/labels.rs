//! Labels and annotations of a grid's children.

use std::collections::BTreeMap;

use crate::name::{ChildKind, key_label_value};

/// Annotation of a Service that keeps requests inside the unit: a JSON array of grid keys.
pub const TOPOLOGY_KEYS: &str = "topologyKeys";

/// Label of a child: the name of its grid.
pub const GRID_SELECTOR: &str = "superedge.io/grid-selector";

/// Label of a child: the grid's key, or a digest of it. As an annotation: the whole key.
pub const GRID_KEY: &str = "superedge.io/grid-uniq-key";

/// Labels and annotations by which other tools manage the grid itself: a child with them would be treated as theirs.
const MANAGEMENT: [&str; 7] = [
    "app.kubernetes.io/managed-by",
    "argocd.argoproj.io/",
    "helm.sh/",
    "helm.toolkit.fluxcd.io/",
    "kubectl.kubernetes.io/",
    "kustomize.toolkit.fluxcd.io/",
    "meta.helm.sh/",
];

/// The labels of a child of the grid `name`: the grid's own, except for those of management tools, and the two that
/// identify the child (docs/reference/superedge.md#children).
#[must_use]
pub fn child_labels(name: &str, key: &str, grid: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut labels = inherited(grid);
    labels.insert(GRID_SELECTOR.to_owned(), name.to_owned());
    labels.insert(GRID_KEY.to_owned(), key_label_value(key));
    labels
}

/// The annotations of a child: the grid's own, except for those of management tools, and the whole key. A Service also
/// has the annotation that closes it inside the unit.
#[must_use]
pub fn child_annotations(
    kind: ChildKind,
    key: &str,
    grid: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut annotations = inherited(grid);
    annotations.insert(GRID_KEY.to_owned(), key.to_owned());
    if kind == ChildKind::Service {
        annotations.insert(TOPOLOGY_KEYS.to_owned(), serde_json::Value::from(vec![key]).to_string());
    }
    annotations
}

fn inherited(grid: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let managed = |key: &str| {
        MANAGEMENT.iter().any(|name| if name.ends_with('/') { key.starts_with(name) } else { key == *name })
    };
    grid.iter().filter(|(key, _)| !managed(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::Reach;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn children_are_found_by_two_labels_and_inherit_the_rest() {
        let grid = map(&[
            ("team", "a"),
            ("helm.sh/chart", "c"),
            ("app.kubernetes.io/managed-by", "Helm"),
            (GRID_SELECTOR, "leaked"),
        ]);
        assert_eq!(
            child_labels("demo", "zone", &grid),
            map(&[("team", "a"), (GRID_SELECTOR, "demo"), (GRID_KEY, "zone")])
        );
    }

    /// Rows G8 and G27 of docs/reference/superedge.md#reconcile-rows, as far as they concern text.
    #[test]
    fn service_annotation_names_its_topology_key() {
        let grid = map(&[("kubectl.kubernetes.io/last-applied-configuration", "{}"), ("note", "n")]);
        for key in ["zone", "topology.kubernetes.io/zone"] {
            let annotations = child_annotations(ChildKind::Service, key, &grid);
            assert_eq!(annotations.keys().collect::<Vec<_>>(), ["note", GRID_KEY, TOPOLOGY_KEYS]);
            assert_eq!(annotations[GRID_KEY], key);
            let labels = child_labels("demo", key, &BTreeMap::new());
            assert_eq!(Reach::said_by(&labels, &annotations), Reach::closed_by(&[key]));
        }
        let annotations = child_annotations(ChildKind::Deployment, "zone", &grid);
        assert_eq!(annotations, map(&[("note", "n"), (GRID_KEY, "zone")]));
    }
}
