//! Names of a unit's children, and of the pods behind them.

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::syntax::{LABEL_LEN_MAX, is_dns_label, is_label_value};

/// Longest StatefulSet name: the pods' label `controller-revision-hash` is the name and an 11 byte hash.
const STATEFUL_SET_NAME_LEN_MAX: usize = 52;

/// Longest name of a DNS subdomain, which a Deployment's name must be (Kubernetes naming convention).
const SUBDOMAIN_LEN_MAX: usize = 253;

/// Hexadecimal digits of the digest that replaces a key which is not a label value.
const KEY_DIGEST_LEN: usize = 40;

/// Kind of the children that a grid creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChildKind {
    /// One Deployment per unit.
    Deployment,
    /// One StatefulSet per unit.
    StatefulSet,
    /// One Service for all units.
    Service,
}

/// A name that the API server would refuse, or that its controllers could not work with.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// The grid's own name cannot be a label value.
    #[error("grid name {0:?} is not a label value: at most 63 letters, digits, '-', '_' and '.'")]
    Grid(String),
    /// The unit cannot be part of a name.
    #[error("unit {unit:?} results in the name {name:?}, which is not a {rule}")]
    Unit {
        /// The unit.
        unit: String,
        /// The name that it would give.
        name: String,
        /// The broken rule.
        rule: &'static str,
    },
}

/// The name of a grid's child: `GRID-UNIT`, or `GRID-svc` for the one Service (docs/reference/superedge.md#children).
///
/// # Errors
/// [`NameError`] when the name breaks the rule of its kind (docs/reference/superedge.md#names); other units are not
/// affected.
pub fn child_name(kind: ChildKind, grid: &str, unit: &str) -> Result<String, NameError> {
    if !is_label_value(grid) {
        return Err(NameError::Grid(grid.chars().take(LABEL_LEN_MAX + 1).collect()));
    }
    let (name, is_good, rule) = match kind {
        ChildKind::Service => {
            let name = format!("{grid}-svc");
            let good = is_dns_label(&name) && name.starts_with(|c: char| c.is_ascii_lowercase());
            (name, good, "DNS-1035 label of at most 63 bytes that starts with a letter")
        }
        ChildKind::StatefulSet => {
            let name = format!("{grid}-{unit}");
            let good = is_dns_label(&name) && name.len() <= STATEFUL_SET_NAME_LEN_MAX;
            (name, good, "DNS-1123 label of at most 52 bytes")
        }
        ChildKind::Deployment => {
            let name = format!("{grid}-{unit}");
            let good = name.len() <= SUBDOMAIN_LEN_MAX && name.split('.').all(is_dns_label);
            (name, good, "DNS-1123 subdomain")
        }
    };
    if is_good { Ok(name) } else { Err(NameError::Unit { unit: unit.to_owned(), name, rule }) }
}

/// The value of the label `superedge.io/grid-uniq-key`: the key itself when it is a label value, otherwise the first
/// 40 digits of its SHA-256 (the whole key is in the annotation of the same name).
#[must_use]
pub fn key_label_value(key: &str) -> String {
    if is_label_value(key) {
        return key.to_owned();
    }
    let mut digest = hex::encode(Sha256::digest(key));
    digest.truncate(KEY_DIGEST_LEN);
    digest
}

/// The name by which every unit knows its own copy of a pod: `GRID-ORDINAL` for the pod `GRID-UNIT-ORDINAL` of the
/// StatefulSet `GRID-UNIT`. None when the set or the pod has another name.
///
/// The unit is a parameter and not searched for, because it may occur in the names several times
/// (docs/reference/superedge.md#name-mapping).
#[must_use]
pub fn uniform_name(grid: &str, unit: &str, set: &str, pod: &str) -> Option<String> {
    let rest = set.strip_prefix(grid)?.strip_prefix('-')?;
    if unit.is_empty() || rest != unit {
        return None;
    }
    ordinal_text(set, pod).map(|ordinal| format!("{grid}-{ordinal}"))
}

/// The ordinal of a StatefulSet's pod, from its name; none when the name has another form.
pub(crate) fn ordinal(set: &str, pod: &str) -> Option<u64> {
    ordinal_text(set, pod)?.parse().ok()
}

fn ordinal_text<'a>(set: &str, pod: &'a str) -> Option<&'a str> {
    let ordinal = pod.strip_prefix(set)?.strip_prefix('-')?;
    let is_ordinal = ordinal.bytes().all(|b| b.is_ascii_digit())
        && !ordinal.is_empty()
        && (ordinal == "0" || !ordinal.starts_with('0'));
    is_ordinal.then_some(ordinal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ChildKind, NameError, child_name, key_label_value, uniform_name};

    #[test]
    fn children_are_named_after_grid_and_unit() {
        let named = |kind, grid: &str, unit: &str| child_name(kind, grid, unit).unwrap();
        assert_eq!(named(ChildKind::Deployment, "demo", "zone-1"), "demo-zone-1");
        assert_eq!(named(ChildKind::Deployment, "demo", "a.b"), "demo-a.b");
        assert_eq!(named(ChildKind::StatefulSet, "demo", "1"), "demo-1");
        assert_eq!(named(ChildKind::Service, "demo", "ignored"), "demo-svc");
    }

    #[test]
    fn impossible_names_are_refused_one_unit_at_a_time() {
        for (kind, grid, unit) in [
            (ChildKind::Deployment, "demo", "Zone"),
            (ChildKind::Deployment, "demo", "a_b"),
            (ChildKind::StatefulSet, "demo", "a.b"),
            (ChildKind::StatefulSet, &"g".repeat(40), &"u".repeat(12)),
            (ChildKind::Service, "1demo", ""),
            (ChildKind::Service, &"g".repeat(60), ""),
        ] {
            assert!(
                matches!(child_name(kind, grid, unit), Err(NameError::Unit { .. })),
                "{kind:?} {grid} {unit}"
            );
        }
        assert!(child_name(ChildKind::StatefulSet, &"g".repeat(39), &"u".repeat(12)).is_ok());
        assert!(matches!(child_name(ChildKind::Deployment, &"g".repeat(64), "u"), Err(NameError::Grid(_))));
    }

    #[test]
    fn prefixed_keys_become_a_label_value() {
        assert_eq!(key_label_value("zone"), "zone");
        let digest = key_label_value("topology.kubernetes.io/zone");
        assert_eq!(digest.len(), 40);
        assert!(digest.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(digest, key_label_value("topology.kubernetes.io/region"));
    }

    /// Rows H1 to H9 and H24 of docs/reference/superedge.md#uniform-name-rows.
    #[test]
    fn uniform_names_do_not_search_for_the_unit() {
        for (grid, unit, pod, name) in [
            ("demo", "u1", "demo-u1-0", "demo-0"),
            ("zone-app", "zone", "zone-app-zone-0", "zone-app-0"),
            ("a-demo", "a", "a-demo-a-3", "a-demo-3"),
            ("web", "e", "web-e-0", "web-0"),
            ("n0de", "0", "n0de-0-1", "n0de-1"),
            ("app", "app", "app-app-0", "app-0"),
            ("demo", "1", "demo-1-1", "demo-1"),
            ("demo", "1", "demo-1-10", "demo-10"),
            ("demo", "1", "demo-1-11", "demo-11"),
            ("demo-1", "1", "demo-1-1-0", "demo-1-0"),
        ] {
            let set = format!("{grid}-{unit}");
            assert_eq!(uniform_name(grid, unit, &set, pod).as_deref(), Some(name), "{pod}");
        }
        assert_eq!(uniform_name("demo", "u1", "demo-u1", "demo-u1-00"), None);
        assert_eq!(uniform_name("demo", "u1", "demo-u1", "demo-u1-x"), None);
        assert_eq!(uniform_name("demo", "u1", "demo-u1", "demo-u1-"), None);
        assert_eq!(uniform_name("demo", "u1", "db", "db-0"), None);
    }

    proptest! {
        #[test]
        fn a_pod_has_the_uniform_name_of_its_ordinal(
            grid in "[a-z][a-z0-9-]{0,8}[a-z0-9]", unit in "[a-z0-9]{1,6}", ordinal in 0u32..1_000_000,
        ) {
            let set = child_name(ChildKind::StatefulSet, &grid, &unit).unwrap();
            let name = uniform_name(&grid, &unit, &set, &format!("{set}-{ordinal}"));
            prop_assert_eq!(name, Some(format!("{grid}-{ordinal}")));
        }
    }
}
