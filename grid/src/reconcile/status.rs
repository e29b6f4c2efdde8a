//! The status of a grid: the state of each unit, in a bounded size.
//!
//! The status is sent to every node, and an object above 1.5 MiB cannot be stored. It counts all units, and contains
//! the state of all units while that fits; with more units it contains only states of units that are not ready.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Grid;
use super::child::Child;
use crate::name::ChildKind;

mod bounded;
#[cfg(test)]
mod tests;

pub use bounded::{OWNED_BYTES_MAX, STATES_BYTES_MAX, STATES_MAX, TEXT_LEN_MAX};

/// Most causes that one condition names; the others are counted.
const CAUSES_MAX: usize = 3;

/// Why a unit does not match what the grid wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitError {
    /// Reason as one word, for programs.
    pub reason: String,
    /// Message for humans.
    pub message: String,
}

/// The result of one reconcile pass over a grid.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The children after the pass, by unit; a ServiceGrid's child has the empty unit.
    pub children: BTreeMap<String, Value>,
    /// Units that do not match what the grid wants.
    pub errors: BTreeMap<String, UnitError>,
    /// Other failures, by their subject: a child to delete, the pool of templates.
    pub besides: BTreeMap<String, UnitError>,
    /// Units with a child in which others have set fields of the spec, and the managers that set them.
    pub shared: BTreeMap<String, Vec<String>>,
    /// Why nothing was done at all.
    pub refused: Option<UnitError>,
    /// Number of units with nodes. Used for ServiceGrids, whose one child is for all units.
    pub units: usize,
}

/// The status of a grid after a pass. `before` is its present status; `now` is the time in RFC 3339.
#[must_use]
pub fn status(grid: &Grid, before: &Value, outcome: &Outcome, now: &str) -> Value {
    let ready = |unit: &String| {
        !outcome.errors.contains_key(unit)
            && outcome.children.get(unit).is_some_and(|child| is_ready(grid.kind, child))
    };
    let names: BTreeSet<&String> = outcome.children.keys().chain(outcome.errors.keys()).collect();
    let (total, up) = (names.len(), names.iter().filter(|unit| ready(unit)).count());
    let conditions = conditions(grid, before, outcome, (up, total), now);
    if grid.kind == ChildKind::Service {
        let balancer = outcome.children.get("").map(|service| service["status"]["loadBalancer"].clone());
        return json!({
            "loadBalancer": balancer.filter(Value::is_object).unwrap_or_else(|| json!({})),
            "units": outcome.units,
            "observedGeneration": grid.generation,
            "conditions": conditions,
        });
    }
    let mut status = json!({"observedGeneration": grid.generation, "conditions": conditions});
    let kept = outcome.refused.as_ref().and_then(|_| before.as_object());
    if let Some(kept) = kept.filter(|kept| kept.contains_key("states")) {
        // The children are unchanged.
        let mut all = kept.clone();
        all.extend(status.as_object().cloned().unwrap_or_default());
        return Value::Object(all);
    }
    let states = names.iter().map(|unit| bounded::State {
        unit: unit.as_str(),
        state: state(grid.kind, unit, outcome),
        is_ready: ready(unit),
    });
    bounded::states(states.collect(), &mut status);
    if grid.kind == ChildKind::StatefulSet {
        let is_own = |child: &Value| Child(child).is_owned_by(&grid.uid) && !Child(child).is_deleting();
        let owned = outcome.children.iter().filter(|(_, child)| is_own(child)).map(|(unit, _)| unit.as_str());
        bounded::owned(owned, &mut status);
    }
    status["units"] = total.into();
    status["ready"] = format!("{up}/{total}").into();
    status
}

/// The status of a unit's child, and why it is not as wanted.
fn state(kind: ChildKind, unit: &str, outcome: &Outcome) -> Value {
    let own = outcome.children.get(unit).map(|child| &child["status"]);
    let mut state = match (kind, own) {
        (ChildKind::StatefulSet, Some(Value::Object(status))) => Value::Object(status.clone()),
        (_, Some(status)) => {
            let number = |field: &str| status[field].as_i64().unwrap_or_default();
            let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            let available: Vec<&Value> = conditions.iter().filter(|one| one["type"] == "Available").collect();
            let mut state = json!({
                "replicas": number("replicas"),
                "readyReplicas": number("readyReplicas"),
            });
            if !available.is_empty() {
                state["conditions"] = json!(available);
            }
            state
        }
        (_, None) => json!({"replicas": 0}),
    };
    if let Some(error) = outcome.errors.get(unit) {
        state["error"] = json!({"reason": error.reason, "message": bounded::text(&error.message)});
    }
    if let Some(managers) = outcome.shared.get(unit) {
        state["sharedWith"] = json!(managers);
    }
    state
}

/// Whether a child is ready: its controller has seen its newest spec, and all of its pods are ready.
fn is_ready(kind: ChildKind, child: &Value) -> bool {
    if kind == ChildKind::Service {
        return true;
    }
    let number = |pointer: &str| child.pointer(pointer).and_then(Value::as_i64);
    let wanted = number("/spec/replicas").unwrap_or(1);
    let seen = number("/status/observedGeneration") >= number("/metadata/generation");
    let ready = number("/status/readyReplicas").unwrap_or_default();
    let current = number("/status/updatedReplicas").unwrap_or_default();
    seen && ready >= wanted && (current >= wanted || wanted == 0)
}

fn conditions(
    grid: &Grid,
    before: &Value,
    outcome: &Outcome,
    (ready, total): (usize, usize),
    now: &str,
) -> Value {
    let first = outcome.errors.values().chain(outcome.besides.values()).next();
    let synced = match (&outcome.refused, first) {
        (Some(refused), _) => ("False", refused.reason.clone(), bounded::text(&refused.message).to_owned()),
        (None, None) => ("True", "Applied".to_owned(), String::new()),
        (None, Some(first)) => ("False", first.reason.clone(), causes(outcome)),
    };
    let mut wanted = vec![("Synced", synced)];
    if grid.kind != ChildKind::Service && outcome.refused.is_none() {
        let text = format!("{ready} of {total} units are ready");
        let is_ready = if ready == total { ("True", "UnitsReady") } else { ("False", "UnitsNotReady") };
        wanted.push(("Ready", (is_ready.0, is_ready.1.to_owned(), text)));
    }
    let old = before["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let made = wanted.into_iter().map(|(name, (status, reason, message))| {
        let same = old.iter().find(|one| one["type"] == name && one["status"] == status);
        let since = same.and_then(|one| one["lastTransitionTime"].as_str()).unwrap_or(now);
        json!({
            "type": name, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since, "observedGeneration": grid.generation,
        })
    });
    Value::Array(made.collect())
}

fn causes(outcome: &Outcome) -> String {
    let of_unit = |(unit, error): (&String, &UnitError)| match unit.as_str() {
        "" => bounded::text(&error.message).to_owned(),
        unit => format!("unit {unit}: {}", bounded::text(&error.message)),
    };
    let besides = outcome.besides.values().map(|error| bounded::text(&error.message).to_owned());
    let all = outcome.errors.len() + outcome.besides.len();
    let shown = outcome.errors.iter().map(of_unit).chain(besides).take(CAUSES_MAX);
    let mut text = shown.collect::<Vec<_>>().join("; ");
    if all > CAUSES_MAX {
        text.push_str(&format!("; and {} more", all - CAUSES_MAX));
    }
    text
}
