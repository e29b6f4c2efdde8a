//! How far the widest rules reach: `held-already`, `coalesced`, `between`, `cluster-adds`, `owners`, and the order of the
//! versions of an object.

use serde_json::{Value, json};
use tombolo_replay::{Difference, Frame, Happening, Matcher, Rule, Summary, Transcript};

/// A ConfigMap at a version. Its content is that of version `content`.
fn configmap(name: &str, version: u64, content: u64) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"version": content.to_string()},
        "metadata": {"name": name, "namespace": "d", "uid": format!("uid-{name}"), "resourceVersion": version.to_string()}})
}

/// A delivery of dialect `tombolo`.
fn delivery(conn: u64, position: u64, subscription: u64, operation: &str, object: &Value) -> Value {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let content = match operation {
        "update" => object.clone(),
        _ => json!({"metadata": metadata}),
    };
    json!({"lane": "delivery", "content": content,
        "header": {"msg_id": format!("{conn}/delivery/{position}"), "resourceversion": metadata["resourceVersion"]},
        "route": {"group": format!("subscription/{subscription}"), "operation": operation,
            "resource": format!("d/configmap/{name}")},
        "deliver": {"resource": "v1/configmaps", "uid": metadata["uid"], "hash": "00000000000000aa"}})
}

/// A delivery of dialect `kubeedge`.
fn message(id: &str, object: &Value) -> Value {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    json!({"content": object,
        "header": {"msg_id": id, "timestamp": 1, "resourceversion": object["metadata"]["resourceVersion"]},
        "route": {"source": "edgecontroller", "group": "resource", "operation": "update",
            "resource": format!("d/configmap/{name}")}})
}

fn down(conn: u64, frame: &Value) -> String {
    json!({"at_us": 1, "conn": conn, "dir": "down", "frame": frame}).to_string()
}

fn api(verb: &str, object: &Value) -> String {
    json!({"at_us": 1, "dir": "api", "verb": verb, "object": object}).to_string()
}

fn transcript(lines: &[String]) -> Transcript {
    let header = json!({"node": "e"}).to_string();
    let lines: Vec<&str> = std::iter::once(header.as_str()).chain(lines.iter().map(String::as_str)).collect();
    Transcript::parse(&lines.join("\n")).expect("a transcript")
}

/// The API of the run has the change of a line, with the versions of the recording.
fn made(index: usize, object: &Value) -> Happening {
    Happening::Applied(index, vec![object.clone()])
}

fn came(conn: u64, frame: &Value) -> Happening {
    Happening::Received(conn, Frame::new(frame.clone()))
}

fn judged(lines: &[String], run: Vec<Happening>) -> Result<Summary, Difference> {
    let transcript = transcript(lines);
    let mut matcher = Matcher::new(&transcript)?;
    for happening in run {
        matcher.follow(happening)?;
    }
    matcher.finish()
}

fn count(summary: &Summary, wanted: Rule) -> usize {
    summary.rules.iter().find(|(rule, _)| *rule == wanted).map_or(0, |(_, count)| count)
}

fn problem(outcome: Result<Summary, Difference>) -> String {
    outcome.expect_err("a difference").problem
}

/// An edge that holds the version of an `adopt` already gets none. It must hold that version, or a newer one.
#[test]
fn an_adopt_is_excused_for_what_the_edge_of_the_run_holds() {
    let (old, new) = (configmap("a", 7, 7), configmap("a", 9, 7));
    let lines = [
        api("create", &old),
        api("update", &new),
        down(1, &delivery(1, 1, 0, "update", &old)),
        down(2, &delivery(2, 1, 0, "adopt", &new)),
    ];
    let run =
        |given: &Value| vec![made(0, &old), made(1, &new), came(1, &delivery(1, 1, 0, "update", given))];
    let lines_of = |adopted: Value| [&lines[..3], &[down(2, &adopted)]].concat();
    // The cloud of the run coalesced both versions.
    let summary = judged(&lines, run(&new)).expect("excused");
    assert_eq!((count(&summary, Rule::HeldAlready), count(&summary, Rule::Coalesced)), (1, 1));
    problem(judged(&lines, run(&old)));
    // Neither another version nor another incarnation is held.
    for (version, uid) in [("10", "uid-a"), ("9", "uid-b")] {
        let mut other = new.clone();
        other["metadata"]["resourceVersion"] = version.into();
        other["metadata"]["uid"] = uid.into();
        problem(judged(&lines_of(delivery(2, 1, 0, "adopt", &other)), run(&new)));
    }
}

/// The same content again need not be sent to a node that has it.
#[test]
fn content_is_held_if_the_run_has_given_it() {
    let versions = [configmap("a", 7, 7), configmap("a", 8, 8), configmap("a", 9, 8)];
    let mut lines: Vec<String> = versions.iter().map(|object| api("update", object)).collect();
    lines
        .extend(versions.iter().map(|object| down(1, &message(&format!("m{}", object["metadata"]), object))));
    let run = |given: &[usize]| {
        let mut run: Vec<Happening> =
            versions.iter().enumerate().map(|(at, object)| made(at, object)).collect();
        run.extend(given.iter().map(|at| came(1, &message(&format!("l{at}"), &versions[*at]))));
        run
    };
    let summary = judged(&lines, run(&[0, 1])).expect("excused");
    assert_eq!((count(&summary, Rule::HeldAlready), summary.matched), (1, 2));
    problem(judged(&lines, run(&[0])));
}

/// A newer version takes the place of an older one on the same connection and in the same subscription.
#[test]
fn a_newer_version_stands_for_an_older_one_at_its_place() {
    let (old, new) = (configmap("a", 7, 7), configmap("a", 9, 9));
    let lines = |subscription| {
        [
            api("create", &old),
            api("update", &new),
            down(1, &delivery(1, 1, 0, "update", &old)),
            down(1, &delivery(1, 2, subscription, "update", &new)),
        ]
    };
    let run = |subscription| {
        vec![made(0, &old), made(1, &new), came(1, &delivery(1, 1, subscription, "update", &new))]
    };
    let summary = judged(&lines(0), run(0)).expect("excused");
    assert_eq!((count(&summary, Rule::Coalesced), summary.matched), (1, 1));
    problem(judged(&lines(3), run(3)));
}

/// A deletion takes the place of a version, if the run has come to the deletion.
#[test]
fn a_deletion_comes_when_the_run_has_come_to_it() {
    let object = configmap("a", 7, 7);
    let lines = [api("create", &object), api("delete", &object)];
    let deletion = delivery(1, 1, 0, "delete", &object);
    let summary = judged(&lines, vec![made(0, &object), made(1, &object), came(1, &deletion)]);
    assert_eq!(count(&summary.expect("excused"), Rule::Between), 1);
    let lines = [&lines[..], &[down(1, &delivery(1, 1, 0, "update", &object))]].concat();
    let given = came(1, &delivery(1, 1, 0, "update", &object));
    let mut early = delivery(1, 2, 0, "delete", &object);
    // A pod is never released.
    early["route"]["resource"] = "d/pod/a".into();
    early["deliver"]["resource"] = "v1/pods".into();
    problem(judged(&lines, vec![made(0, &object), given, came(1, &early), made(1, &object)]));
}

/// A version that the API of the run never had is no version between two others.
#[test]
fn a_version_is_between_others_if_the_api_of_the_run_had_it() {
    let (old, new) = (configmap("a", 7, 7), configmap("a", 9, 9));
    let lines = [api("create", &old), api("update", &new), down(1, &message("m", &new))];
    let run = |extra: &Value, states: Vec<Value>| {
        vec![
            made(0, &old),
            Happening::Applied(1, states),
            came(1, &message("l", extra)),
            came(1, &message("n", &new)),
        ]
    };
    let between = configmap("a", 8, 8);
    let summary = judged(&lines, run(&between, vec![between.clone(), new.clone()]));
    assert_eq!(count(&summary.expect("excused"), Rule::Between), 1);
    problem(judged(&lines, run(&between, vec![new.clone()])));
    // What the run looks up shows it as well.
    let read = |present: Option<&Value>| {
        let run = vec![made(0, &old), Happening::Read(between.clone(), present.cloned())];
        judged(&lines[..1], run)
    };
    assert!(problem(read(Some(&old))).contains("the API has only version 7"));
    assert!(read(Some(&new)).is_ok());
}

/// On a connection, no older version follows a newer one at the same place.
#[test]
fn the_versions_of_an_object_arrive_in_their_order() {
    let (old, new) = (configmap("a", 7, 7), configmap("a", 9, 9));
    let lines = [
        api("create", &old),
        api("update", &new),
        down(1, &message("m", &old)),
        down(1, &message("n", &new)),
    ];
    let run = |first: (u64, &Value), second: (u64, &Value)| {
        let message = |(conn, object): (u64, &Value)| {
            came(conn, &message(&object["metadata"]["resourceVersion"].to_string(), object))
        };
        judged(&lines, vec![made(0, &old), made(1, &new), message(first), message(second)])
    };
    assert_eq!(run((1, &old), (1, &new)).map(|summary| summary.matched), Ok(2));
    assert!(problem(run((1, &new), (1, &old))).contains("arrives after version 9"));
}

/// An object may have a newer version than the recorded one if the run's API was seen to have that version.
#[test]
fn a_newer_version_is_the_clusters_if_the_api_has_it() {
    let (old, new) = (configmap("a", 7, 7), configmap("a", 8, 7));
    let lines = [api("create", &old), down(1, &message("m", &old))];
    let run = |seen: Vec<Value>| {
        judged(&lines, vec![made(0, &old), Happening::Saw(seen), came(1, &message("l", &new))])
    };
    let summary = run(vec![new.clone()]).expect("excused");
    assert_eq!((count(&summary, Rule::ClusterAdds), summary.matched), (1, 1));
    problem(run(vec![]));
}

/// What the recorded cluster added to an object that the edge inserted may be missing from that object alone.
#[test]
fn an_addition_belongs_to_one_object() {
    let asked = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "a", "namespace": "d"}});
    let with = |name: &str, version: &str, labels: Value| {
        json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": name, "namespace": "d",
            "uid": name, "resourceVersion": version, "labels": labels}})
    };
    let up = json!({"header": {"msg_id": "q", "timestamp": 1}, "content": asked,
        "route": {"source": "edged", "group": "meta", "operation": "insert", "resource": "d/lease/a"}});
    let answer = |id: &str, parent: &str, object: &Value| {
        json!({"header": {"msg_id": id, "parent_msg_id": parent, "timestamp": 1}, "content": {"Object": object, "Err": null},
            "route": {"source": "edgecontroller", "group": "resource", "operation": "response", "resource": "d/lease/a"}})
    };
    let pushed = |id: &str, name: &str, object: &Value| {
        json!({"header": {"msg_id": id, "timestamp": 1, "resourceversion": object["metadata"]["resourceVersion"]}, "content": object,
            "route": {"source": "edgecontroller", "group": "resource", "operation": "update", "resource": format!("d/lease/{name}")}})
    };
    let added = json!({"added": "by a plugin"});
    let (inserted, other) = (with("a", "7", added.clone()), with("b", "8", added.clone()));
    let (bare_inserted, bare_other) = (with("a", "7", Value::Null), with("b", "8", Value::Null));
    let lines = [
        json!({"at_us": 1, "conn": 1, "dir": "up", "frame": up}).to_string(),
        down(1, &answer("d", "q", &inserted)),
        down(1, &pushed("m", "b", &other)),
    ];
    let run = |pushed_object: &Value| {
        judged(
            &lines,
            vec![
                Happening::Sent(0, "live".to_owned()),
                came(1, &answer("l", "live", &bare_inserted)),
                came(1, &pushed("n", "b", pushed_object)),
            ],
        )
    };
    let summary = run(&other).expect("the addition is missing from the inserted object");
    assert_eq!((count(&summary, Rule::ClusterAdds), summary.matched), (1, 2));
    problem(run(&bare_other));
}
