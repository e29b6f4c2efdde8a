//! The status of a grid: what became of each unit.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Grid;
use crate::name::ChildKind;

/// Causes that one condition names; the rest is counted.
const CAUSES_MAX: usize = 3;

/// Why a unit is not as the grid wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitError {
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// What one pass over a grid has found and done.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The children after the pass, by unit; that of a ServiceGrid under the empty unit.
    pub children: BTreeMap<String, Value>,
    /// Units that are not as the grid wants them.
    pub errors: BTreeMap<String, UnitError>,
    /// Children by unit in which others have set fields of the spec, with who has set them.
    pub shared: BTreeMap<String, Vec<String>>,
    /// Why nothing was done at all.
    pub refused: Option<UnitError>,
    /// How many units have nodes. Said of ServiceGrids, whose one child is for all units.
    pub units: usize,
}

/// The status of a grid after a pass. `before` is the status that it has; `now` is the time in RFC 3339.
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
    if let Some(kept) = outcome.refused.as_ref().and_then(|_| before.get("states")) {
        // The children are as they were.
        let mut kept = json!({"states": kept, "units": before["units"], "ready": before["ready"]});
        kept["observedGeneration"] = grid.generation.into();
        kept["conditions"] = conditions;
        return kept;
    }
    let states: Map<String, Value> =
        names.iter().map(|unit| ((*unit).clone(), state(grid.kind, unit, outcome))).collect();
    json!({
        "states": states,
        "units": total,
        "ready": format!("{up}/{total}"),
        "observedGeneration": grid.generation,
        "conditions": conditions,
    })
}

/// What a unit's child says of itself, and why it is not as wanted.
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
        state["error"] = json!({"reason": error.reason, "message": error.message});
    }
    if let Some(managers) = outcome.shared.get(unit) {
        state["sharedWith"] = json!(managers);
    }
    state
}

/// Whether a child does its work: its controller has seen its newest spec, and all of its pods are ready.
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
    let synced = match (&outcome.refused, outcome.errors.len()) {
        (Some(refused), _) => ("False", refused.reason.clone(), refused.message.clone()),
        (None, 0) => ("True", "Applied".to_owned(), String::new()),
        (None, _) => {
            let reason = outcome.errors.values().next().map(|first| first.reason.clone()).unwrap_or_default();
            ("False", reason, causes(&outcome.errors))
        }
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

fn causes(errors: &BTreeMap<String, UnitError>) -> String {
    let one = |(unit, error): (&String, &UnitError)| match unit.as_str() {
        "" => error.message.clone(),
        unit => format!("unit {unit}: {}", error.message),
    };
    let mut text = errors.iter().take(CAUSES_MAX).map(one).collect::<Vec<_>>().join("; ");
    if errors.len() > CAUSES_MAX {
        text.push_str(&format!("; and {} more", errors.len() - CAUSES_MAX));
    }
    text
}
