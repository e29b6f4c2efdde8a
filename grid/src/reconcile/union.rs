//! Conflicts with a manifest: in structs that hold one of several members, the members that the manifest does not
//! state.
//!
//! The API server merges a volume, a probe or a variable like any other struct: a member that the applier does not
//! state is kept when another manager owns it too, or when no manager does because it is a default. Together with the
//! stated one there are then two, and the API server refuses the whole child as `Invalid`. See [`super::ownership`]
//! for the remedy.

use serde_json::{Map, Value};

use super::drift::{WHOLE, key, keys};

#[cfg(test)]
mod tests;

/// Path of a member in a child, from its root, in the notation of `fieldsV1`: `f:spec`, `k:{"name":"data"}`.
pub type Path = Vec<String>;

/// Which members of a struct exclude each other.
#[derive(Debug, Clone, Copy)]
enum Choice {
    /// At most one of these.
    Of(&'static [&'static str]),
    /// At most one of all members except these.
    But(&'static [&'static str]),
    /// The second name is a member that is allowed only when `type` has the first as its value.
    With(&'static str, &'static str),
}

/// Fields, or lists with keys, whose structs have such members.
const UNIONS: [(&str, Choice); 14] = [
    ("appArmorProfile", Choice::With("Localhost", "localhostProfile")),
    ("env", Choice::Of(&["value", "valueFrom"])),
    ("livenessProbe", HANDLER),
    ("postStart", Choice::But(&[])),
    ("preStop", Choice::But(&[])),
    ("readinessProbe", HANDLER),
    ("resourceClaims", Choice::Of(&["resourceClaimName", "resourceClaimTemplateName"])),
    ("seccompProfile", Choice::With("Localhost", "localhostProfile")),
    ("startupProbe", HANDLER),
    ("strategy", Choice::With("RollingUpdate", "rollingUpdate")),
    ("updateStrategy", Choice::With("RollingUpdate", "rollingUpdate")),
    ("valueFrom", Choice::But(&[])),
    ("volumeMounts", Choice::Of(&["subPath", "subPathExpr"])),
    ("volumes", Choice::But(&["name"])),
];

/// The handler of a probe.
const HANDLER: Choice = Choice::Of(&["exec", "grpc", "httpGet", "tcpSocket"]);

/// The members of a child that must be removed before its manifest can be applied.
#[must_use]
pub fn in_the_way(live: &Value, manifest: &Value) -> Vec<Path> {
    let mut found = Vec::new();
    let path = vec!["f:spec".to_owned()];
    look("spec", &live["spec"], &manifest["spec"], &path, &mut found);
    found
}

fn look(field: &str, live: &Value, stated: &Value, path: &[String], found: &mut Vec<Path>) {
    let below = |element: String| [path, &[element]].concat();
    match (live, stated) {
        // A part that is replaced as a whole keeps no members.
        (Value::Object(live), Value::Object(stated)) if !WHOLE.contains(&field) => {
            let choice = UNIONS.iter().find(|(name, _)| *name == field).map(|(_, choice)| *choice);
            let left = choice.map(|choice| left(choice, live, stated)).unwrap_or_default();
            found.extend(left.into_iter().map(|name| below(format!("f:{name}"))));
            for (name, stated) in stated {
                let live = live.get(name).unwrap_or(&Value::Null);
                look(name, live, stated, &below(format!("f:{name}")), found);
            }
        }
        (Value::Array(list), Value::Array(items)) => {
            let Some(keys) = keys(field, items) else { return };
            for item in items {
                let wanted = key(item, keys);
                if let Some(live) = list.iter().find(|live| key(live, keys) == wanted) {
                    look(field, live, item, &below(format!("k:{}", Value::Object(wanted))), found);
                }
            }
        }
        _ => {}
    }
}

/// Members that a struct has besides the stated one.
fn left<'l>(choice: Choice, live: &'l Map<String, Value>, stated: &Map<String, Value>) -> Vec<&'l str> {
    let is_choice = |name: &str| match choice {
        Choice::Of(names) => names.contains(&name),
        Choice::But(names) => !names.contains(&name),
        Choice::With(_, member) => name == member,
    };
    let chosen = match choice {
        Choice::With(kind, _) => stated.get("type").is_some_and(|stated| stated != kind),
        Choice::Of(_) | Choice::But(_) => stated.keys().any(|name| is_choice(name)),
    };
    let others = live
        .iter()
        .filter(|(name, value)| chosen && is_choice(name) && !value.is_null() && !stated.contains_key(*name));
    others.map(|(name, _)| name.as_str()).collect()
}
