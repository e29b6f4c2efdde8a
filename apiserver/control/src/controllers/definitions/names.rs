//! Which names a definition gets: those that are free in its group (as in the naming controller of
//! k8s.io/apiextensions-apiserver).

use serde_json::{Value, json};
use tombolo_apicore::field_error::aggregate;
use tombolo_apicore::kinds::Kinds;

use crate::objects::{items, text};

/// A definition and the names that it holds.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) group: String,
    /// `status.acceptedNames`.
    pub(super) accepted: Value,
    /// Whether it holds all names in its spec.
    pub(super) satisfied: bool,
}

impl Holder {
    /// Reads the names from the status.
    pub(super) fn of(definition: &Value) -> Self {
        let accepted = definition.pointer("/status/acceptedNames").cloned().unwrap_or_default();
        Self {
            group: text(definition, "/spec/group").to_owned(),
            satisfied: super::is_true(definition, "NamesAccepted"),
            accepted,
        }
    }

    fn has_resource(&self, name: &str) -> bool {
        let short = items(&self.accepted, "/shortNames").iter().any(|own| own == name);
        short || ["/plural", "/singular"].iter().any(|field| text(&self.accepted, field) == name)
    }

    fn has_kind(&self, name: &str) -> bool {
        ["/kind", "/listKind"].iter().any(|field| text(&self.accepted, field) == name)
    }
}

/// The names that a definition gets.
#[derive(Debug, Clone)]
pub(super) struct AcceptedNames {
    /// The names that it holds from now on.
    pub(super) accepted: Value,
    /// Reason and message of the last conflict.
    pub(super) conflict: Option<(&'static str, String)>,
}

impl AcceptedNames {
    /// Status, reason and message of `NamesAccepted`.
    pub(super) fn condition(&self) -> (&'static str, &'static str, String) {
        match &self.conflict {
            None => ("True", "NoConflicts", "no conflicts found".to_owned()),
            Some((reason, message)) => ("False", reason, message.clone()),
        }
    }
}

/// Decides which names in its spec a definition gets, next to other definitions and the built-in kinds.
pub(super) fn judge<'a>(
    definition: &Value,
    others: impl Iterator<Item = &'a Holder>,
    kinds: &Kinds,
) -> AcceptedNames {
    let group = text(definition, "/spec/group");
    let others: Vec<&Holder> = others.filter(|other| other.group == group).collect();
    let builtin = || kinds.iter().filter(|kind| !kind.custom && *kind.resource.group == *group);
    let resource_taken = |name: &str| {
        others.iter().any(|other| other.has_resource(name))
            || builtin().any(|kind| {
                *kind.resource.name == *name
                    || *kind.singular == *name
                    || kind.short_names.iter().any(|own| **own == *name)
            })
    };
    let kind_taken = |name: &str| {
        others.iter().any(|other| other.has_kind(name))
            || builtin().any(|kind| *kind.kind == *name || *kind.list_kind == *name)
    };
    let mut names = NameClaims::new(definition);
    names.claim("plural", "PluralConflict", &resource_taken);
    names.claim("singular", "SingularConflict", &resource_taken);
    names.claim_short_names(&resource_taken);
    names.claim("kind", "KindConflict", &kind_taken);
    names.claim("listKind", "ListKindConflict", &kind_taken);
    names.take("categories");
    names.outcome
}

struct NameClaims<'a> {
    wanted: &'a Value,
    outcome: AcceptedNames,
}

impl<'a> NameClaims<'a> {
    fn new(definition: &'a Value) -> Self {
        let held = definition.pointer("/status/acceptedNames").filter(|held| held.is_object());
        let accepted = held.cloned().unwrap_or_else(|| json!({"plural": "", "kind": ""}));
        let wanted = definition.pointer("/spec/names").unwrap_or(&Value::Null);
        Self { wanted, outcome: AcceptedNames { accepted, conflict: None } }
    }

    /// Accepts a field of the spec.
    fn take(&mut self, field: &str) {
        let wanted = self.wanted.get(field).filter(|value| **value != json!([])).cloned();
        let Value::Object(accepted) = &mut self.outcome.accepted else { return };
        match wanted {
            Some(wanted) => accepted.insert(field.to_owned(), wanted),
            None => accepted.remove(field),
        };
    }

    fn claim(&mut self, field: &str, reason: &'static str, taken: &dyn Fn(&str) -> bool) {
        let name = |of: &Value| of.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let wanted = name(self.wanted);
        if wanted != name(&self.outcome.accepted) && taken(&wanted) {
            self.outcome.conflict = Some((reason, in_use(&wanted)));
        } else {
            self.take(field);
        }
    }

    fn claim_short_names(&mut self, taken: &dyn Fn(&str) -> bool) {
        let held = items(&self.outcome.accepted, "/shortNames");
        let new = items(self.wanted, "/shortNames").iter().filter(|name| !held.contains(name));
        let refused: Vec<String> =
            new.filter_map(Value::as_str).filter(|name| taken(name)).map(in_use).collect();
        if refused.is_empty() {
            return self.take("shortNames");
        }
        self.outcome.conflict = Some(("ShortNamesConflict", aggregate(refused)));
    }
}

fn in_use(name: &str) -> String {
    format!("{name:?} is already in use")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(kind: &str, plural: &str, short: &[&str]) -> Value {
        json!({"metadata": {"name": format!("{plural}.apps")}, "spec": {
            "group": "apps", "names": {"kind": kind, "plural": plural, "shortNames": short},
        }})
    }

    #[test]
    fn taken_names_are_refused_and_others_accepted() {
        let kinds = tombolo_catalog::kinds();
        let judge =
            |definition: &Value, others: &[&Holder]| judge(definition, others.iter().copied(), &kinds);
        assert_eq!(judge(&definition("Till", "tills", &["ti"]), &[]).conflict, None);
        let taken = judge(&definition("Deployment", "tills", &[]), &[]);
        assert_eq!(taken.conflict, Some(("KindConflict", "\"Deployment\" is already in use".to_owned())));
        assert_eq!(taken.accepted, json!({"plural": "tills", "kind": ""}));
        let plural = judge(&definition("Till", "deployments", &[]), &[]);
        assert_eq!(plural.conflict.map(|(reason, _)| reason), Some("PluralConflict"));
        let other = Holder {
            group: "apps".into(),
            accepted: json!({"plural": "carts", "kind": "Cart", "shortNames": ["ti", "c"]}),
            satisfied: true,
        };
        let short = judge(&definition("Till", "tills", &["ti", "x", "c"]), &[&other]);
        let message = "[\"ti\" is already in use, \"c\" is already in use]".to_owned();
        assert_eq!(short.conflict, Some(("ShortNamesConflict", message)));
    }
}
