//! Rows of docs/reference/superedge.md#rows, as far as they concern the plan.

use serde_json::json;

use super::child::Child;
use super::drift::is_applied;
use super::manifest::APPLIED;
use super::plan::{Found, Plan, PlanProblem, Reason, plan};
use super::status::{Outcome, UnitError, status};
use super::*;
use crate::labels::TOPOLOGY_KEYS;
use crate::labels::{GRID_KEY, GRID_SELECTOR};
use crate::unit::KeyError;

const UID: &str = "11111111-1111-1111-1111-111111111111";
const NOW: &str = "2026-01-02T03:04:05Z";

fn grid(kind: ChildKind, spec: GridSpec) -> Grid {
    let [labels, annotations] = Default::default();
    let (namespace, name) = ("default".to_owned(), "g".to_owned());
    Grid {
        kind,
        namespace,
        name,
        uid: UID.to_owned(),
        generation: 3,
        labels,
        annotations,
        deleting: false,
        spec,
    }
}

fn workload(key: &str) -> GridSpec {
    let template = json!({
        "replicas": 1,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "metadata": {"labels": {"a": "b"}, "creationTimestamp": null},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        },
    });
    GridSpec { key: key.to_owned(), template, ..GridSpec::default() }
}

fn deployments(key: &str) -> Grid {
    grid(ChildKind::Deployment, workload(key))
}

fn services(template: Value) -> Grid {
    grid(ChildKind::Service, GridSpec { key: "k".to_owned(), template, ..GridSpec::default() })
}

/// A child as it is after its manifest was applied.
fn applied(manifest: &Value) -> Value {
    let mut child = manifest.clone();
    child["metadata"]["uid"] = "child".into();
    child["metadata"]["resourceVersion"] = "7".into();
    child
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.wanted.iter().map(|one| one.name.as_str()).collect()
}

fn run(grid: &Grid, units: &[&str], children: &[Value]) -> Plan {
    let children: Vec<Child<'_>> = children.iter().map(Child).collect();
    plan(grid, units, &children).unwrap()
}

/// The only child of a grid with one unit.
fn only(grid: &Grid, unit: &str) -> Value {
    let made = run(grid, &[unit], &[]);
    applied(&made.wanted[0].manifest(grid))
}

#[test]
fn g1_g31_each_unit_has_one_child_and_the_grid_one_service() {
    assert_eq!(names(&run(&deployments("k"), &["a", "b"], &[])), ["g-a", "g-b"]);
    let service = services(json!({"ports": [{"port": 80}]}));
    assert_eq!(names(&run(&service, &[], &[])), ["g-svc"]);
    assert_eq!(names(&run(&service, &["a", "b"], &[])), ["g-svc"]);
}

#[test]
fn g2_every_child_is_pinned_to_its_own_unit() {
    let mut spec = workload("k");
    spec.template["template"]["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    let grid = grid(ChildKind::Deployment, spec);
    let before = grid.clone();
    let made = run(&grid, &["a", "b"], &[]);
    for (wanted, unit) in made.wanted.iter().zip(["a", "b"]) {
        let manifest = wanted.manifest(&grid);
        let selector = &manifest["spec"]["template"]["spec"]["nodeSelector"];
        assert_eq!(selector, &json!({"disk": "ssd", "k": unit}));
        assert!(manifest["spec"]["template"]["metadata"].get("creationTimestamp").is_none());
    }
    assert_eq!(grid, before, "the grid is not touched");
}

#[test]
fn g3_without_a_key_children_are_left_as_they_are() {
    let child = only(&deployments("k"), "a");
    let children = [Child(&child)];
    assert_eq!(plan(&deployments(""), &[], &children), Err(KeyError::Empty));
}

#[test]
fn g4_a_unit_without_nodes_loses_its_child() {
    let gone = only(&deployments("k"), "b");
    let made = run(&deployments("k"), &["a"], &[gone]);
    assert_eq!(names(&made), ["g-a"]);
    let removal = &made.removals[0];
    assert_eq!((removal.name.as_str(), removal.uid.as_str()), ("g-b", "child"));
    assert_eq!((removal.resource_version.as_str(), removal.reason), ("7", Reason::Unwanted));
}

#[test]
fn g7_another_key_with_the_same_unit_keeps_the_child() {
    let child = only(&deployments("k1"), "a");
    let made = run(&deployments("k2"), &["a"], std::slice::from_ref(&child));
    assert!(made.removals.is_empty());
    let manifest = &made.wanted[0].manifest(&deployments("k2"));
    assert_eq!(made.wanted[0].found, Found::Own);
    assert_eq!(manifest["spec"]["template"]["spec"]["nodeSelector"], json!({"k2": "a"}));
    assert_eq!(manifest["metadata"]["labels"][GRID_KEY], "k2");
    assert!(!is_applied(&child, manifest));
}

#[test]
fn g8_g12_the_key_of_a_service_follows_the_grid() {
    let mut grid = services(json!({"ports": [{"port": 80}]}));
    let mut child = only(&grid, "");
    assert_eq!(child["metadata"]["annotations"][TOPOLOGY_KEYS], r#"["k"]"#);
    assert!(is_applied(&child, &run(&grid, &[], &[]).wanted[0].manifest(&grid)));
    child["metadata"]["annotations"].as_object_mut().unwrap().remove(TOPOLOGY_KEYS);
    assert!(!is_applied(&child, &run(&grid, &[], &[]).wanted[0].manifest(&grid)), "restored");
    grid.spec.key = "k2".to_owned();
    let manifest = run(&grid, &[], &[]).wanted.remove(0).manifest(&grid);
    assert_eq!(manifest["metadata"]["annotations"][TOPOLOGY_KEYS], r#"["k2"]"#);
    assert_eq!(manifest["metadata"]["labels"][GRID_KEY], "k2");
}

#[test]
fn g9_g10_g19_fields_dropped_from_a_template_are_a_change() {
    let two = services(json!({"selector": {"a": "b", "c": "d"}, "ports": [{"port": 80}, {"port": 81}]}));
    let child = only(&two, "");
    for less in [
        json!({"selector": {"a": "b", "c": "d"}, "ports": [{"port": 80}]}),
        json!({"selector": {"a": "b"}, "ports": [{"port": 80}, {"port": 81}]}),
    ] {
        let less = services(less);
        let manifest = run(&less, &[], std::slice::from_ref(&child)).wanted.remove(0).manifest(&less);
        assert!(!is_applied(&child, &manifest));
    }
    let grid = deployments("k");
    let child = only(&grid, "a");
    let mut more = grid.clone();
    more.spec.template["revisionHistoryLimit"] = 3.into();
    let manifest = run(&more, &["a"], std::slice::from_ref(&child)).wanted.remove(0).manifest(&more);
    assert!(!is_applied(&child, &manifest));
    assert_eq!(child["spec"]["template"], manifest["spec"]["template"], "pods are not restarted");
}

#[test]
fn g11_a_node_port_of_zero_is_the_servers_to_choose() {
    let grid =
        services(json!({"type": "NodePort", "topologyKeys": ["x"], "ports": [{"port": 80, "nodePort": 0}]}));
    let mut child = only(&grid, "");
    assert_eq!(child["spec"], json!({"type": "NodePort", "ports": [{"port": 80}]}));
    child["spec"]["ports"][0]["nodePort"] = 30080.into();
    assert!(is_applied(&child, &run(&grid, &[], &[]).wanted[0].manifest(&grid)));
}

#[test]
fn g13_to_g18_changes_of_others_are_reverted_and_additions_kept() {
    let mut grid = deployments("k");
    grid.spec.template["template"]["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
    let manifest = run(&grid, &["a"], &[]).wanted.remove(0).manifest(&grid);
    let child = applied(&manifest);
    let changed = |pointer: &str, value: Value| {
        let mut child = child.clone();
        *child.pointer_mut(pointer).unwrap() = value;
        child
    };
    let container = "/spec/template/spec/containers/0";
    assert!(!is_applied(&changed(&format!("{container}/image"), "y".into()), &manifest));
    assert!(!is_applied(&changed(&format!("{container}/resources/limits/cpu"), "2".into()), &manifest));
    assert!(!is_applied(&changed("/spec/replicas", 5.into()), &manifest));
    let list = json!([child.pointer(container).unwrap(), {"name": "mine", "image": "z"}]);
    assert!(is_applied(&changed("/spec/template/spec/containers", list), &manifest));
    let mut labelled = child.clone();
    labelled["metadata"]["labels"]["foreign"] = "x".into();
    labelled["metadata"]["annotations"]["foreign"] = "x".into();
    assert!(is_applied(&labelled, &manifest));
    // Without a replica count of its own the grid leaves scaling to an autoscaler.
    grid.spec.template.as_object_mut().unwrap().remove("replicas");
    let manifest = run(&grid, &["a"], &[]).wanted.remove(0).manifest(&grid);
    let mut scaled = applied(&manifest);
    scaled["spec"]["replicas"] = 5.into();
    assert!(is_applied(&scaled, &manifest));
}

#[test]
fn g20_g21_g23_units_choose_their_template_and_a_bad_unit_fails_alone() {
    let mut spec = workload("k");
    let mut other = spec.template.clone();
    other["replicas"] = 9.into();
    spec.pool.insert("t1".to_owned(), other);
    spec.templates = [("a", "t1"), ("b", "nope")].map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    let grid = grid(ChildKind::Deployment, spec);
    let made = run(&grid, &["a", "b", "c"], &[]);
    assert_eq!(names(&made), ["g-a", "g-c"]);
    let manifests: Vec<Value> = made.wanted.iter().map(|one| one.manifest(&grid)).collect();
    let replicas = |index: usize| &manifests[index]["spec"]["replicas"];
    assert_eq!((replicas(0), replicas(1)), (&json!(9), &json!(1)));
    assert_eq!(manifests[0]["spec"]["template"]["metadata"]["labels"], json!({"a": "b"}));
    assert!(matches!(&made.problems["b"], PlanProblem::Template(error) if error.template == "nope"));
}

#[test]
fn g24_g25_a3_name_of_another_controller_is_a_conflict() {
    let old = {
        let mut grid = deployments("k");
        grid.uid = "old".to_owned();
        only(&grid, "a")
    };
    let made = run(&deployments("k"), &["a"], &[old]);
    assert!(made.wanted.is_empty() && made.removals.is_empty());
    let problem = &made.problems["a"];
    assert_eq!(problem.reason(), "ChildNameConflict");
    assert_eq!(problem.to_string(), "Deployment g-a belongs to DeploymentGrid g (uid old)");
    // A user's own object with this name has no owner and no label.
    let own = json!({"metadata": {"name": "g-a", "uid": "u"}});
    assert_eq!(run(&deployments("k"), &["a"], &[own]).problems["a"].reason(), "ChildNameConflict");
}

#[test]
fn g26_g27_names_and_keys() {
    let made = run(&deployments("k"), &["Zone_A", "b"], &[]);
    assert_eq!((names(&made), made.problems["Zone_A"].reason()), (vec!["g-b"], "InvalidUnitName"));
    let key = "topology.kubernetes.io/zone";
    let manifest = run(&deployments(key), &["b"], &[]).wanted.remove(0).manifest(&deployments(key));
    assert_eq!(manifest["metadata"]["annotations"][GRID_KEY], key);
    assert_eq!(manifest["spec"]["template"]["spec"]["nodeSelector"], json!({key: "b"}));
}

#[test]
fn a1_a2_orphans_with_a_wanted_name_are_adopted() {
    let orphan = |name: &str| json!({"metadata": {"name": name, "uid": "o", "labels": {GRID_SELECTOR: "g"}}});
    let made = run(&deployments("k"), &["a"], &[orphan("g-a"), orphan("g-x"), orphan("other")]);
    assert_eq!(made.wanted[0].found, Found::Orphan);
    assert_eq!(made.strangers, ["g-x", "other"]);
    assert!(made.removals.is_empty());
}

#[test]
fn a6_an_orphan_that_is_being_deleted_is_left_alone() {
    let leaving = |name: &str, labels: Value| json!({"metadata": {"name": name, "uid": "o", "labels": labels, "deletionTimestamp": NOW}});
    for labels in [json!({GRID_SELECTOR: "g"}), json!({})] {
        let made = run(
            &deployments("k"),
            &["a", "b"],
            &[leaving("g-a", labels.clone()), leaving("g-x", labels.clone())],
        );
        assert_eq!(names(&made), ["g-b"], "{labels}: the other unit continues");
        assert!(made.removals.is_empty() && made.strangers.is_empty(), "{labels}: {made:?}");
        let said = made.problems["a"].to_string();
        assert_eq!(said, "Deployment g-a is being deleted; it is recreated after the deletion", "{labels}");
    }
}

#[test]
fn a8_apply_targets_the_object_that_was_seen() {
    let grid = deployments("k");
    let uid = |plan: &Plan| plan.wanted[0].manifest(&grid)["metadata"]["uid"].clone();
    let orphan = json!({"metadata": {"name": "g-a", "uid": "o", "labels": {GRID_SELECTOR: "g"}}});
    assert_eq!(uid(&run(&grid, &["a"], &[orphan])), "o");
    let own = only(&grid, "a");
    let again = run(&grid, &["a"], std::slice::from_ref(&own));
    assert_eq!(uid(&again), "child");
    assert!(is_applied(&own, &again.wanted[0].manifest(&grid)));
    assert_eq!(uid(&run(&grid, &["a"], &[])), Value::Null, "what is new has none yet");
}

#[test]
fn a10_leftover_children_are_adopted_unchanged() {
    let mut left = only(&deployments("k"), "a");
    left["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    let mut next = deployments("k");
    next.uid = "next".to_owned();
    let made = run(&next, &["a"], std::slice::from_ref(&left));
    let [wanted] = &made.wanted[..] else { panic!("{made:?}") };
    assert_eq!(wanted.found, Found::Orphan);
    let manifest = wanted.manifest(&next);
    assert_eq!(manifest["spec"], left["spec"], "pods are not restarted");
    assert_eq!(manifest["metadata"]["ownerReferences"][0]["uid"], "next");
    assert!(!is_applied(&left, &manifest) && made.removals.is_empty());
}

#[test]
fn a4_a5_released_children_are_removed_and_a_deleted_grid_does_nothing() {
    let mut child = only(&deployments("k"), "a");
    child["metadata"]["labels"].as_object_mut().unwrap().remove(GRID_SELECTOR);
    let made = run(&deployments("k"), &["a"], std::slice::from_ref(&child));
    assert!(made.wanted.is_empty());
    assert_eq!(
        (made.removals[0].reason, made.problems["a"].reason()),
        (Reason::Released, "ChildBeingDeleted")
    );
    child["metadata"]["deletionTimestamp"] = NOW.into();
    let made = run(&deployments("k"), &["a"], std::slice::from_ref(&child));
    assert!(made.wanted.is_empty() && made.removals.is_empty(), "once");
    let mut leaving = deployments("k");
    leaving.deleting = true;
    assert_eq!(run(&leaving, &["a", "b"], &[child]), Plan::default());
}

fn deployment(wanted: i64, ready: i64) -> Value {
    json!({
        "metadata": {"generation": 2},
        "spec": {"replicas": wanted},
        "status": {
            "observedGeneration": 2, "replicas": wanted, "readyReplicas": ready, "updatedReplicas": wanted,
            "conditions": [{"type": "Available", "status": "True"}, {"type": "Progressing", "status": "True"}],
        },
    })
}

#[test]
fn g29_g32_status_lists_every_existing_unit() {
    let grid = deployments("k");
    let mut outcome = Outcome::default();
    outcome.children.insert("a".to_owned(), deployment(2, 2));
    outcome.children.insert("b".to_owned(), deployment(2, 1));
    let error = UnitError { reason: "TemplateNotFound".to_owned(), message: "no template".to_owned() };
    outcome.errors.insert("c".to_owned(), error);
    let made = status(&grid, &Value::Null, &outcome, NOW);
    assert_eq!(
        made["states"]["a"],
        json!({
            "replicas": 2, "readyReplicas": 2, "conditions": [{"type": "Available", "status": "True"}],
        })
    );
    assert_eq!(made["states"]["c"]["error"]["reason"], "TemplateNotFound");
    assert_eq!((&made["units"], &made["ready"]), (&json!(3), &json!("1/3")));
    let condition = |status: &Value, name: &str| {
        status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == name).unwrap().clone()
    };
    let synced = condition(&made, "Synced");
    assert_eq!((&synced["status"], &synced["observedGeneration"]), (&json!("False"), &json!(3)));
    assert_eq!(synced["message"], "unit c: no template");
    assert_eq!(condition(&made, "Ready")["status"], "False");
    let later = status(&grid, &made, &Outcome::default(), "2026-02-02T00:00:00Z");
    assert_eq!((&later["states"], &later["ready"]), (&json!({}), &json!("0/0")));
    assert_eq!(condition(&later, "Synced")["status"], "True");
    assert_eq!(condition(&later, "Synced")["lastTransitionTime"], "2026-02-02T00:00:00Z");
    let same = status(&grid, &later, &Outcome::default(), "2026-03-03T00:00:00Z");
    assert_eq!(same, later, "nothing has changed");
}

#[test]
fn refused_grid_keeps_its_states_and_a_service_has_only_conditions() {
    let before = json!({"states": {"a": {"replicas": 1}}, "units": 1, "ready": "1/1"});
    let refused = UnitError {
        reason: "Empty".to_owned(),
        message: "This deployment-grid has an empty grid key".to_owned(),
    };
    let outcome = Outcome { refused: Some(refused), ..Outcome::default() };
    let made = status(&deployments(""), &before, &outcome, NOW);
    assert_eq!((&made["states"], &made["conditions"][0]["reason"]), (&before["states"], &json!("Empty")));
    let mut outcome = Outcome::default();
    outcome.children.insert(String::new(), json!({"metadata": {"name": "g-svc"}}));
    let made = status(&services(json!({})), &Value::Null, &outcome, NOW);
    assert_eq!(made["conditions"].as_array().unwrap().len(), 1);
    assert_eq!(made["loadBalancer"], json!({}));
}

#[test]
fn the_digest_of_a_manifest_is_not_inherited() {
    let mut grid = deployments("k");
    let first = only(&grid, "a");
    grid.annotations.insert(APPLIED.to_owned(), "copied by hand".to_owned());
    assert_eq!(only(&grid, "a"), first);
}

/// The cost for a grid is linear in its units and children, not in their product.
#[test]
fn plan_for_five_thousand_units_visits_each_child_a_few_times() {
    const UNITS: usize = 5_000;
    const LOOKS_MAX: usize = 10;
    let units: Vec<String> = (0..UNITS).map(|number| format!("u{number}")).collect();
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    let grid = deployments("k");
    let stored: Vec<Value> =
        run(&grid, &units, &[]).wanted.iter().map(|one| applied(&one.manifest(&grid))).collect();
    let children: Vec<Child<'_>> = stored.iter().map(Child).collect();
    super::child::reads::take();
    // Half of the units are removed.
    let made = plan(&grid, &units[..UNITS / 2], &children).unwrap();
    let looks = super::child::reads::take();
    assert_eq!((made.wanted.len(), made.removals.len()), (UNITS / 2, UNITS / 2));
    assert!(looks <= LOOKS_MAX * UNITS, "{looks} looks at {UNITS} children");
}
