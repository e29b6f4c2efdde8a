//! Owner references to objects that the run does not create.

use serde_json::Value;

use super::{Comparison, ComparisonResult};
use crate::rules::Rule;

impl Comparison<'_> {
    /// Compares the owners of an object. Those that no line of the transcript shows may be missing, because the run
    /// cannot create them; all others must be there.
    pub(super) fn owners(
        &mut self,
        place: &str,
        scope: &str,
        one: &Value,
        other: &Value,
    ) -> ComparisonResult {
        let count = |owners: &Value| owners.as_array().map_or(0, Vec::len);
        if count(other) >= count(one) {
            return self.value(place, scope, one, other);
        }
        let is_shown = |owner: &&Value| owner["uid"].as_str().is_some_and(|uid| self.own.shown.contains(uid));
        let shown: Vec<Value> = one.as_array().into_iter().flatten().filter(is_shown).cloned().collect();
        if shown.len() < count(one) {
            self.rules.push(Rule::Owners);
        }
        let shown = if shown.is_empty() { Value::Null } else { shown.into() };
        self.value(place, scope, &shown, other)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compare::{Own, WrittenAdditions};
    use crate::identifiers::Identifiers;

    fn pod(owners: &Value) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p", "uid": "u", "ownerReferences": owners}})
    }

    #[test]
    fn only_owners_that_nothing_shows_may_be_missing() {
        let owner = |name: &str, uid: &str| json!({"kind": "ReplicaSet", "name": name, "uid": uid});
        let (shown, unknown) = (owner("web", "shown"), owner("api", "unknown"));
        let own = Own { shown: ["shown".to_owned()].into(), ..Own::default() };
        let rules = |one: &Value, other: &Value| {
            let (identifiers, additions) = (Identifiers::default(), WrittenAdditions::new());
            let mut comparison = Comparison::new(&identifiers, &additions, &own);
            comparison.value("/content", "", &pod(one), &pod(other)).ok()?;
            Some(comparison.rules)
        };
        let both = json!([shown, unknown]);
        assert_eq!(rules(&both, &both), Some(vec![]));
        assert_eq!(rules(&both, &json!([shown])), Some(vec![Rule::Owners]));
        assert_eq!(rules(&json!([unknown]), &Value::Null), Some(vec![Rule::Owners]));
        for (one, other) in [
            (&both, Value::Null),
            (&json!([shown]), Value::Null),
            (&both, json!([unknown])),
            (&Value::Null, both.clone()),
        ] {
            assert_eq!(rules(one, &other), None, "{one} {other}");
        }
    }
}
