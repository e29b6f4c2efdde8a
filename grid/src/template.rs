//! Determines which template a unit uses.

use std::collections::BTreeMap;

use thiserror::Error;

/// Name of the grid's own template (docs/reference/superedge.md#template-selection).
pub const OWN_TEMPLATE: &str = "default";

/// A unit is configured to use a template that the pool does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unit {unit:?} uses the template {template:?}, which is not in templatePool")]
pub struct TemplateError {
    /// The unit.
    pub unit: String,
    /// Name of the template.
    pub template: String,
}

/// The template of a unit: a member of the pool by name, or none for the grid's own template.
///
/// # Errors
/// [`TemplateError`] when the pool does not have it; other units are not affected.
pub fn choose_template<'a, T>(
    unit: &str,
    templates: &'a BTreeMap<String, String>,
    default_name: &'a str,
    pool: &'a BTreeMap<String, T>,
) -> Result<Option<&'a T>, TemplateError> {
    let name = templates.get(unit).map_or(default_name, String::as_str);
    if name.is_empty() || name == OWN_TEMPLATE {
        return Ok(None);
    }
    let missing = || TemplateError { unit: unit.to_owned(), template: name.to_owned() };
    pool.get(name).map(Some).ok_or_else(missing)
}

/// Names in the pool that no unit uses, whether or not the unit has nodes: `autoDeleteUnusedTemplate` removes them.
#[must_use]
pub fn unused_templates<'a, T>(
    templates: &BTreeMap<String, String>,
    default_name: &str,
    pool: &'a BTreeMap<String, T>,
) -> Vec<&'a str> {
    let used = |name: &str| name == default_name || templates.values().any(|used| used == name);
    pool.keys().map(String::as_str).filter(|name| *name == OWN_TEMPLATE || !used(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Rows G20 to G23 of docs/reference/superedge.md#reconcile-rows, as far as they concern the choice.
    #[test]
    fn a_unit_uses_its_own_name_then_the_default_then_the_template() {
        let pool = map(&[("t1", "one"), ("t2", "two"), ("default", "never")]);
        let templates = map(&[("a", "t1"), ("b", "nope"), ("c", "default"), ("d", "")]);
        let chosen = |unit: &str, default: &str| {
            choose_template(unit, &templates, default, &pool)
                .map(Option::<&String>::cloned)
                .map_err(|e| e.template)
        };
        assert_eq!(chosen("a", "default"), Ok(Some("one".to_owned())));
        assert_eq!(chosen("b", "default"), Err("nope".to_owned()));
        assert_eq!(chosen("c", "t2"), Ok(None));
        assert_eq!(chosen("d", "t2"), Ok(None));
        for default in ["default", ""] {
            assert_eq!(chosen("other", default), Ok(None));
        }
        assert_eq!(chosen("other", "t2"), Ok(Some("two".to_owned())));
        assert_eq!(chosen("other", "t9"), Err("t9".to_owned()));
    }

    #[test]
    fn unused_templates_are_those_without_references() {
        let pool = map(&[("t1", ""), ("t2", ""), ("t3", ""), ("default", "")]);
        let templates = map(&[("a", "t1"), ("gone", "t1")]);
        assert_eq!(unused_templates(&templates, "t2", &pool), ["default", "t3"]);
        assert_eq!(unused_templates(&templates, "default", &pool), ["default", "t2", "t3"]);
    }
}
