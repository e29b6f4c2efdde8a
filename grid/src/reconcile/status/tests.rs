use serde_json::json;

use super::*;
use crate::reconcile::GridSpec;

/// The bound in `docs/application-grid.md`: the whole status of any grid.
const STATUS_BYTES_MAX: usize = 256 * 1024;

const NOW: &str = "2026-01-02T03:04:05Z";

fn grid(kind: ChildKind) -> Grid {
    let [namespace, name, uid] = ["default", "g", "grid"].map(str::to_owned);
    let [labels, annotations] = Default::default();
    let spec = GridSpec::default();
    Grid { kind, namespace, name, uid, generation: 3, labels, annotations, deleting: false, spec }
}

/// A StatefulSet as its controller leaves it, with everything that its status may contain.
fn set(unit: &str, owner: &str, ready: i64) -> Value {
    let revision = format!("g-{unit}-6b9f7c8d5f");
    json!({
        "metadata": {"generation": 2, "ownerReferences": [{"uid": owner, "controller": true}]},
        "spec": {"replicas": 3},
        "status": {
            "observedGeneration": 2, "replicas": 3, "readyReplicas": ready, "availableReplicas": ready,
            "currentReplicas": 3, "updatedReplicas": 3, "currentRevision": revision, "updateRevision": revision,
            "collisionCount": 0,
        },
    })
}

fn units(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("unit-{number:05}"))
}

#[test]
fn status_of_five_thousand_units_is_bounded_and_names_unready_ones() {
    let mut outcome = Outcome::default();
    for (number, unit) in units(5_000).enumerate() {
        outcome.children.insert(unit.clone(), set(&unit, "grid", if number % 10 == 0 { 1 } else { 3 }));
    }
    let long = "the webhook says no. ".repeat(10_000);
    for unit in ["unit-04000", "unit-04001", "unit-04002", "unit-04003"] {
        let error = UnitError { reason: "Forbidden".to_owned(), message: long.clone() };
        outcome.errors.insert(unit.to_owned(), error);
    }
    let made = status(&grid(ChildKind::StatefulSet), &Value::Null, &outcome, NOW);
    let size = made.to_string().len();
    assert!(size <= STATUS_BYTES_MAX, "{size} bytes");
    // 500 are not ready; four are refused, one of which is among those.
    assert_eq!((&made["units"], &made["ready"]), (&json!(5_000), &json!("4497/5000")));
    let states = made["states"].as_object().unwrap();
    assert_eq!((states.len(), &made["statesOmitted"]), (STATES_MAX, &json!(5_000 - STATES_MAX)));
    assert!(["unit-04000", "unit-04003"].iter().all(|unit| states[*unit]["error"]["reason"] == "Forbidden"));
    let first: Vec<&String> = states.keys().take(3).collect();
    assert_eq!(first, ["unit-00000", "unit-00010", "unit-00020"], "the first that are not ready");
    assert_eq!(made["owned"].as_array().unwrap().len(), 5_000, "nodes of all units know what is theirs");
    assert!(made.get("ownedOmitted").is_none());
}

#[test]
fn status_size_is_bounded_for_any_units_and_messages() {
    let mut outcome = Outcome::default();
    for number in 0..20_000 {
        let unit = format!("{}-{number:05}", "u".repeat(43));
        let mut child = set(&unit, "grid", 0);
        child["status"]["conditions"] = json!([{"type": "Theirs", "message": "x".repeat(2_000)}]);
        // The first of them are also in the conditions.
        let message = "é".repeat(if number < 3 { 200_000 } else { 900 });
        outcome.errors.insert(unit.clone(), UnitError { reason: "Invalid".to_owned(), message });
        outcome.children.insert(unit, child);
    }
    let made = status(&grid(ChildKind::StatefulSet), &Value::Null, &outcome, NOW);
    let size = made.to_string().len();
    assert!(size <= STATUS_BYTES_MAX, "{size} bytes");
    let owned = made["owned"].as_array().unwrap().len();
    assert!(owned >= 2_400 && made["ownedOmitted"] == 20_000 - owned, "{owned}");
    assert_eq!(made["units"], 20_000);
}

#[test]
fn a_few_units_are_all_in_the_status() {
    let mut outcome = Outcome::default();
    for unit in units(50) {
        outcome.children.insert(unit.clone(), set(&unit, "grid", 3));
    }
    let made = status(&grid(ChildKind::StatefulSet), &Value::Null, &outcome, NOW);
    assert_eq!(made["states"].as_object().unwrap().len(), 50);
    assert_eq!(made["states"]["unit-00007"]["updateRevision"], "g-unit-00007-6b9f7c8d5f");
    assert!(made.get("statesOmitted").is_none());
    let mut huge = set("huge", "grid", 1);
    huge["status"]["conditions"] = json!([{"message": "x".repeat(100_000)}]);
    outcome.children.insert("huge".to_owned(), huge);
    let made = status(&grid(ChildKind::StatefulSet), &Value::Null, &outcome, NOW);
    assert_eq!(
        made["states"]["huge"],
        json!({"replicas": 3, "readyReplicas": 1}),
        "one object crowds out no other"
    );
}

#[test]
fn unit_is_owned_while_its_child_belongs_to_the_grid() {
    let mut outcome = Outcome::default();
    outcome.children.insert("mine".to_owned(), set("mine", "grid", 0));
    outcome.children.insert("other".to_owned(), set("other", "somebody", 3));
    outcome.children.insert("nobody".to_owned(), json!({"metadata": {}}));
    let mut leaving = set("leaving", "grid", 3);
    leaving["metadata"]["deletionTimestamp"] = NOW.into();
    outcome.children.insert("leaving".to_owned(), leaving);
    // A failure for an existing child does not make it another owner's.
    outcome
        .errors
        .insert("mine".to_owned(), UnitError { reason: "Invalid".to_owned(), message: String::new() });
    outcome.errors.insert(
        "taken".to_owned(),
        UnitError { reason: "ChildNameConflict".to_owned(), message: String::new() },
    );
    let made = status(&grid(ChildKind::StatefulSet), &Value::Null, &outcome, NOW);
    assert_eq!(made["owned"], json!(["mine"]));
    let made = status(&grid(ChildKind::Deployment), &Value::Null, &outcome, NOW);
    assert!(made.get("owned").is_none(), "pods of a Deployment have no uniform names");
}

#[test]
fn failed_removals_are_named_in_the_condition() {
    let mut outcome = Outcome::default();
    outcome.children.insert("a".to_owned(), set("a", "grid", 3));
    let refused = UnitError {
        reason: "Forbidden".to_owned(),
        message: "StatefulSet g-b cannot be removed: no".to_owned(),
    };
    outcome.besides.insert("g-b".to_owned(), refused);
    let made = status(&grid(ChildKind::StatefulSet), &Value::Null, &outcome, NOW);
    let synced = &made["conditions"][0];
    assert_eq!(
        (&synced["type"], &synced["status"], &synced["reason"]),
        (&json!("Synced"), &json!("False"), &json!("Forbidden"))
    );
    assert_eq!(synced["message"], "StatefulSet g-b cannot be removed: no");
    assert_eq!(made["ready"], "1/1");
}
