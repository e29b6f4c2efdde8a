use std::collections::BTreeMap;

use serde_json::{Value, json};
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::node::Node;

/// Nodes by name, each in a unit of key `k`; an empty unit stands for a node without the label.
fn nodes(units: &[(&str, &str)]) -> Nodes {
    let node = |unit: &str| Node { labels: label(unit), unhealthy: false };
    units.iter().map(|(name, unit)| ((*name).to_owned(), node(unit))).collect()
}

fn label(unit: &str) -> BTreeMap<String, String> {
    let pair = (!unit.is_empty()).then(|| ("k".to_owned(), unit.to_owned()));
    pair.into_iter().collect()
}

fn grid(name: &str, unit: &str) -> StatefulSetGrid {
    let grid = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"gridUniqKey": "k", "template": {"serviceName": "s", "replicas": 12}},
        "status": {"owned": ["u1", "zone", "a", "b", "e", "0", "app", "1"]},
    });
    seen(&grid, unit)
}

/// The grid as a node of a unit reads it.
fn seen(grid: &Value, unit: &str) -> StatefulSetGrid {
    let unit = Some(unit).filter(|unit| !unit.is_empty());
    StatefulSetGrid::of(grid.to_string().as_bytes(), |_| unit).unwrap()
}

fn service(key: Option<&str>) -> ObjectMetadata {
    let labels = key.map(|key| (GRID_KEY.to_owned(), key.to_owned())).into_iter().collect();
    ObjectMetadata {
        name: "s".to_owned(),
        namespace: "default".to_owned(),
        labels,
        ..ObjectMetadata::default()
    }
}

/// Endpoints of a slice: `POD@NODE=ADDRESS`, followed by `!` for those that are being deleted.
fn pods(endpoints: &[&str]) -> Vec<PodAddress> {
    let endpoint = |text: &&str| {
        let (going, text) = (text.ends_with('!'), text.trim_end_matches('!'));
        let (pod, rest) = text.split_once('@').unwrap();
        let (node, address) = rest.split_once('=').unwrap();
        json!({
            "addresses": [address], "nodeName": node, "targetRef": {"kind": "Pod", "name": pod},
            "conditions": {"ready": false, "terminating": going},
        })
    };
    let endpoints: Vec<Value> = endpoints.iter().map(endpoint).collect();
    pod_addresses(json!({"addressType": "IPv4", "endpoints": endpoints}).to_string().as_bytes()).unwrap()
}

/// `NAME=ADDRESS` of all names, or nothing when they are withheld.
fn named(
    grid: &StatefulSetGrid,
    nodes: &Nodes,
    service: Option<&ObjectMetadata>,
    pods: &[PodAddress],
) -> Option<Vec<String>> {
    let names = grid.names("n1", nodes, service, pods)?;
    assert_eq!(names.service, "s");
    let lines = names.addresses.iter();
    Some(lines.flat_map(|(name, all)| all.iter().map(move |address| format!("{name}={address}"))).collect())
}

/// Rows H1 to H9 and H23 of docs/reference/superedge.md#uniform-name-rows. Rows H10 and H25 require the owners of
/// pods, which a node may not read; pods that an older set has left are in no slice of the Service.
#[test]
fn pods_of_the_unit_have_uniform_names() {
    for (name, unit, endpoints, expected) in [
        ("demo", "u1", &["demo-u1-0@n1=10.0.0.1"][..], &["demo-0=10.0.0.1"][..]),
        ("zone-app", "zone", &["zone-app-zone-0@n1=10.0.0.1"], &["zone-app-0=10.0.0.1"]),
        ("a-demo", "a", &["a-demo-a-3@n1=10.0.0.1"], &["a-demo-3=10.0.0.1"]),
        ("n0de", "0", &["n0de-0-1@n1=10.0.0.1"], &["n0de-1=10.0.0.1"]),
        ("app", "app", &["app-app-0@n1=10.0.0.1"], &["app-0=10.0.0.1"]),
        (
            "demo",
            "1",
            &["demo-1-1@n1=10.0.0.1", "demo-1-10@n1=10.0.0.2", "demo-1-11@n1=10.0.0.3"],
            &["demo-1=10.0.0.1", "demo-10=10.0.0.2", "demo-11=10.0.0.3"],
        ),
        ("demo-1", "1", &["demo-1-1-0@n1=10.0.0.1"], &["demo-1-0=10.0.0.1"]),
        ("demo", "u1", &["demo-u1-00@n1=10.0.0.1", "demo-u1-x@n1=10.0.0.2", "db-0@n1=10.0.0.3"], &[]),
        (
            "demo",
            "u1",
            &["demo-u1-0@n1=10.0.0.1", "demo-u1-0@n1=fd00::1"],
            &["demo-0=10.0.0.1", "demo-0=fd00::1"],
        ),
    ] {
        let found =
            named(&grid(name, unit), &nodes(&[("n1", unit)]), Some(&service(Some("k"))), &pods(endpoints));
        assert_eq!(found.unwrap(), expected, "{name} {unit} {endpoints:?}");
    }
}

/// Rows H12 to H15 of docs/reference/superedge.md#uniform-name-rows.
#[test]
fn uniform_names_need_a_service_and_a_unit() {
    let pods = pods(&["demo-a-0@n1=10.0.0.1", "demo-b-0@n2=10.0.0.2", "demo-b-1@n2=10.0.0.3"]);
    let seen = |nodes: &Nodes, service: Option<&ObjectMetadata>| {
        let unit = nodes.get("n1").and_then(|node| node.unit("k")).unwrap_or_default();
        named(&grid("demo", unit), nodes, service, &pods)
    };
    let in_a = nodes(&[("n1", "a"), ("n2", "b")]);
    let good = service(Some("k"));
    assert_eq!(seen(&in_a, Some(&good)).unwrap(), ["demo-0=10.0.0.1"]);
    assert_eq!(seen(&in_a, None), None);
    assert_eq!(seen(&in_a, Some(&service(None))), None);
    assert_eq!(seen(&in_a, Some(&service(Some("other")))), None);
    let elsewhere = ObjectMetadata { namespace: "other".to_owned(), ..good.clone() };
    assert_eq!(seen(&in_a, Some(&elsewhere)), None);
    assert_eq!(seen(&nodes(&[("n1", ""), ("n2", "b")]), Some(&good)), None);
    assert_eq!(seen(&nodes(&[("n2", "b")]), Some(&good)), None);
    let moved = nodes(&[("n1", "b"), ("n2", "b")]);
    assert_eq!(seen(&moved, Some(&good)).unwrap(), ["demo-0=10.0.0.2", "demo-1=10.0.0.3"]);
    let stray = nodes(&[("n1", "b"), ("n2", "a")]);
    assert_eq!(
        seen(&stray, Some(&good)).unwrap(),
        [] as [&str; 0],
        "pods of this unit's set on a node of another"
    );
}

/// Pods of another StatefulSet that has the name of a unit's: the grid's controller does not count it as the grid's
/// own.
#[test]
fn pods_of_a_set_not_owned_by_the_grid_have_no_uniform_names() {
    let (nodes, service) = (nodes(&[("n1", "a"), ("n2", "b")]), service(Some("k")));
    let pods = pods(&["demo-a-0@n1=10.0.0.1", "demo-b-0@n2=10.0.0.2"]);
    let with = |status: Value| {
        let spec = json!({"gridUniqKey": "k", "template": {"serviceName": "s"}});
        let grid =
            json!({"metadata": {"name": "demo", "namespace": "default"}, "spec": spec, "status": status});
        seen(&grid, "a")
    };
    let names = |status: Value| named(&with(status), &nodes, Some(&service), &pods);
    assert_eq!(names(json!({"owned": ["a", "b"]})).unwrap(), ["demo-0=10.0.0.1"]);
    let conflict = json!({"error": {"reason": "ChildNameConflict"}});
    assert_eq!(names(json!({"owned": ["b"], "states": {"a": conflict}})), None);
    for unseen in [json!({}), Value::Null, json!({"owned": null}), json!({"owned": []})] {
        assert_eq!(names(unseen), None, "its owner has not been checked");
    }
}

/// Terminating pods, and pods that have the uniform name themselves
/// (docs/reference/superedge.md#which-pods-have-names).
#[test]
fn successor_and_real_pod_take_precedence() {
    let (grid, nodes, service) = (grid("demo", "a"), nodes(&[("n1", "a")]), service(Some("k")));
    let seen = |endpoints: &[&str]| named(&grid, &nodes, Some(&service), &pods(endpoints)).unwrap();
    assert_eq!(seen(&["demo-a-0@n1=10.0.0.1!"]), ["demo-0=10.0.0.1"]);
    assert_eq!(seen(&["demo-a-0@n1=10.0.0.1!", "demo-a-0@n1=10.0.0.2"]), ["demo-0=10.0.0.2"]);
    assert_eq!(
        seen(&["demo-a-0@n1=10.0.0.1", "demo-a-1@n1=10.0.0.2", "demo-0@n9=10.0.0.3"]),
        ["demo-1=10.0.0.2"],
        "the pod demo-0 has that name itself"
    );
}

#[test]
fn a_unit_with_its_own_template_may_have_its_own_service() {
    let body = json!({
        "metadata": {"name": "demo", "namespace": "default"},
        "spec": {
            "gridUniqKey": "k", "template": {"serviceName": "s"}, "defaultTemplateName": "default",
            "templatePool": {"other": {"serviceName": "t"}}, "templates": {"b": "other", "c": "missing"},
        },
    });
    let services = ["a", "b", "c", ""].map(|unit| seen(&body, unit));
    assert_eq!(services.each_ref().map(StatefulSetGrid::service_name), [Some("s"), Some("t"), None, None]);
    assert_eq!(services[0].key(), "k");
    assert!(StatefulSetGrid::of(br#"{"metadata":{"name":1}}"#, |_| None).is_err());
}

#[test]
fn endpoints_without_pods_have_no_uniform_names() {
    let slice = json!({"endpoints": [
        {"addresses": ["10.0.0.1"], "nodeName": "n1", "targetRef": {"kind": "Node", "name": "demo-a-0"}},
        {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "demo-a-0"}},
        {"addresses": ["10.0.0.1"], "nodeName": "n1"},
        {"addresses": ["a.example"], "nodeName": "n1", "targetRef": {"kind": "Pod", "name": "demo-a-0"}},
    ]});
    let found = pod_addresses(slice.to_string().as_bytes()).unwrap();
    assert_eq!(found.iter().map(|pod| pod.addresses.len()).collect::<Vec<_>>(), [0]);
    assert_eq!(pod_addresses(br#"{"endpoints":null}"#), Ok(vec![]));
}

/// A pod that a user creates with the name that the set's next pod would have.
#[test]
fn pod_beyond_the_replicas_has_no_uniform_name() {
    let (nodes, service) = (nodes(&[("n1", "u1")]), service(Some("k")));
    let pods = pods(&[
        "demo-u1-0@n1=10.0.0.1",
        "demo-u1-1@n1=10.0.0.2",
        "demo-u1-2@n1=10.0.0.3",
        "demo-u1-18446744073709551616@n1=10.0.0.4",
    ]);
    let with = |template: Value| {
        let pool = json!({"t": {"serviceName": "s", "replicas": 1}});
        let used = if template["serviceName"] == "t" { json!({"u1": "t"}) } else { json!({}) };
        let grid = json!({
            "metadata": {"name": "demo", "namespace": "default"},
            "spec": {"gridUniqKey": "k", "template": template, "templatePool": pool, "templates": used},
            "status": {"owned": ["u1"]},
        });
        let grid = seen(&grid, "u1");
        let found = named(&grid, &nodes, Some(&service), &pods).unwrap();
        found.iter().map(|line| line.split('=').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = ["demo-0", "demo-1", "demo-18446744073709551616", "demo-2"];
    for (template, expected) in [
        (json!({"serviceName": "s", "replicas": 2}), &["demo-0", "demo-1"][..]),
        (json!({"serviceName": "s", "replicas": 2, "ordinals": {"start": 1}}), &["demo-1", "demo-2"]),
        (json!({"serviceName": "s", "replicas": 2, "ordinals": null}), &["demo-0", "demo-1"]),
        (json!({"serviceName": "s", "replicas": 0}), &[]),
        (json!({"serviceName": "t", "replicas": 9}), &["demo-0"]),
        // Scaled by something else, or unknown.
        (json!({"serviceName": "s"}), &all),
        (json!({"serviceName": "s", "replicas": null}), &all),
        (json!({"serviceName": "s", "replicas": "many", "ordinals": 7}), &all),
        (json!({"serviceName": "s", "replicas": 2, "ordinals": {"start": [1]}}), &["demo-0", "demo-1"]),
        (json!({"serviceName": "s", "replicas": i64::from(i32::MAX) + 1, "ordinals": [1]}), &all),
        (json!({"serviceName": "s", "replicas": -1}), &all),
    ] {
        assert_eq!(with(template.clone()), expected, "{template}");
    }
}

/// A grid's templates may have any form, and those of other units any content.
#[test]
fn grid_is_kept_as_the_values_that_name_pods() {
    if !alone(module_path!(), "grid_is_kept_as_the_values_that_name_pods") {
        return;
    }
    let deep = format!("[{}0]", r#"{"":0},"#.repeat(50_000));
    let pool: Vec<String> = (0..20_000).map(|number| format!(r#""{number:x}":{{"replicas":1}}"#)).collect();
    let grid = format!(
        r#"{{"metadata":{{"name":"demo","namespace":"default","annotations":{{"a":{text:?}}}}},
            "spec":{{"gridUniqKey":"k","template":{{"serviceName":"s","replicas":{deep},"ordinals":{deep}}},
            "templatePool":{{{pool}}}}}}}"#,
        text = "x".repeat(200_000),
        pool = pool.join(","),
    );
    let growth = Growth::begin();
    let read = |_| StatefulSetGrid::of(grid.as_bytes(), |_| Some("u1")).unwrap();
    let kept: Vec<StatefulSetGrid> = (0..100).map(read).collect();
    assert!(growth.most() < 8 * 1024 * 1024, "{} bytes for {}", growth.most(), kept.len());
}
