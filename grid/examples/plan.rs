//! What one pass over a grid costs where nothing has changed: plan, comparison of every child, status.
//!
//! `cargo run --profile dist -p tombolo-grid --example plan -- 5000` prints the time of one thread that does nothing else.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tombolo_grid::ChildKind;
use tombolo_grid::reconcile::child::Child;
use tombolo_grid::reconcile::drift::is_applied;
use tombolo_grid::reconcile::plan::plan;
use tombolo_grid::reconcile::status::{Outcome, status};
use tombolo_grid::reconcile::{Grid, GridSpec};

/// Passes, of which the middle one is printed.
const PASSES: usize = 9;

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5_000);
    let units: Vec<String> = (0..count).map(|number: usize| format!("unit-{number:05}")).collect();
    let units: Vec<&str> = units.iter().map(String::as_str).collect();
    let grid = grid();
    let Ok(first) = plan(&grid, &units, &[]) else { return eprintln!("the key is none") };
    let children: Vec<Value> =
        first.wanted.into_iter().map(|wanted| stored(wanted.manifest(&grid))).collect();
    let mut times: Vec<Duration> = (0..PASSES).map(|_| pass(&grid, &units, &children)).collect();
    times.sort_unstable();
    println!("{count} units: {:.0} ms a pass", times[PASSES / 2].as_secs_f64() * 1000.0);
}

fn grid() -> Grid {
    let [namespace, name, uid, key] = ["default", "web", "7c9d5b1e-1", "zone"].map(str::to_owned);
    let template = json!({
        "replicas": 3, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{
                "name": "web", "image": "registry.example/web:1", "args": ["--port", "8080"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"containerPort": 8080}], "resources": {"limits": {"cpu": "1", "memory": "64Mi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }]},
        },
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
    });
    let spec = GridSpec { key, template, ..GridSpec::default() };
    let [labels, annotations] = [BTreeMap::new(), BTreeMap::new()];
    Grid {
        kind: ChildKind::StatefulSet,
        namespace,
        name,
        uid,
        generation: 1,
        labels,
        annotations,
        deleting: false,
        spec,
    }
}

fn stored(mut child: Value) -> Value {
    child["metadata"]["uid"] = "c".into();
    child["metadata"]["generation"] = 1.into();
    child["status"] =
        json!({"observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "updatedReplicas": 3});
    child
}

fn pass(grid: &Grid, units: &[&str], children: &[Value]) -> Duration {
    let began = Instant::now();
    let seen: Vec<Child<'_>> = children.iter().map(Child).collect();
    let plan = plan(grid, units, &seen).unwrap_or_default();
    let by_name: BTreeMap<&str, &Value> = seen.iter().map(|child| (child.name(), child.0)).collect();
    let mut outcome = Outcome { units: units.len(), ..Outcome::default() };
    for wanted in plan.wanted {
        let Some(child) = by_name.get(wanted.name.as_str()) else { continue };
        if is_applied(child, &wanted.manifest(grid)) {
            outcome.children.insert(wanted.unit, (*child).clone());
        }
    }
    let made = status(grid, &Value::Null, &outcome, "2026-01-01T00:00:00Z");
    let took = began.elapsed();
    assert_eq!(made["units"], units.len(), "every child is as it should be");
    took
}
