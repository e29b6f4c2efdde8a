//! Units: the values of the grid's key over all nodes.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::syntax::{is_dns_label, is_label_value};

/// Longest prefix of a label key, in bytes (Kubernetes label syntax).
const KEY_PREFIX_LEN_MAX: usize = 253;

/// A grid key that no node label can have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The grid has no key.
    #[error("gridUniqKey is empty: name the node label whose values are the units")]
    Empty,
    /// The key breaks the syntax of label keys.
    #[error("gridUniqKey {0:?} is not a label key: it must be NAME or PREFIX/NAME, as in `kubectl label`")]
    Syntax(String),
}

/// The units of a grid: distinct, sorted, empty values left out (an empty label value means "in no unit").
///
/// # Errors
/// [`KeyError`] when no label can have the key.
pub fn units<'a, N>(key: &str, node_labels: N) -> Result<Vec<&'a str>, KeyError>
where
    N: IntoIterator<Item = &'a BTreeMap<String, String>>,
{
    check_key(key)?;
    let values = node_labels.into_iter().filter_map(|labels| unit_of(key, labels));
    Ok(values.collect::<BTreeSet<_>>().into_iter().collect())
}

/// The unit of one node; none when it does not have the key or the value is empty.
#[must_use]
pub fn unit_of<'a>(key: &str, labels: &'a BTreeMap<String, String>) -> Option<&'a str> {
    labels.get(key).map(String::as_str).filter(|value| !value.is_empty())
}

/// Checks the syntax of a grid key.
///
/// # Errors
/// [`KeyError`] when no label can have the key.
pub fn check_key(key: &str) -> Result<(), KeyError> {
    if key.is_empty() {
        return Err(KeyError::Empty);
    }
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let prefix_is_good =
        prefix.is_none_or(|prefix| prefix.len() <= KEY_PREFIX_LEN_MAX && prefix.split('.').all(is_dns_label));
    if prefix_is_good && !name.is_empty() && is_label_value(name) {
        Ok(())
    } else {
        Err(KeyError::Syntax(key.chars().take(KEY_PREFIX_LEN_MAX).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{KeyError, check_key, units};

    fn node(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn units_are_distinct_sorted_and_not_empty() {
        let nodes = [
            node(&[("zone", "b")]),
            node(&[("zone", "a"), ("other", "x")]),
            node(&[("zone", "b")]),
            node(&[("zone", "")]),
            node(&[("other", "y")]),
        ];
        assert_eq!(units("zone", &nodes), Ok(vec!["a", "b"]));
        assert_eq!(units("nowhere", &nodes), Ok(vec![]));
    }

    #[test]
    fn keys_follow_label_syntax() {
        for key in ["zone", "topology.kubernetes.io/zone", "a_b.c-d", "Zone1"] {
            assert_eq!(check_key(key), Ok(()), "{key}");
        }
        assert_eq!(check_key(""), Err(KeyError::Empty));
        for key in ["-zone", "zone-", "a/b/c", "/zone", "Prefix/zone", "p/", "a b", &"x".repeat(64)] {
            assert!(matches!(check_key(key), Err(KeyError::Syntax(_))), "{key}");
        }
    }
}
