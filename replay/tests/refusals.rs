//! What refused writes and complete lists prove about the Kubernetes API.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_replay::{Event, Transcript, Verb, with_api_lines};

fn line(dir: &str, id: &str, parent: &str, route: [&str; 4], content: &Value) -> Value {
    let mut header = json!({"msg_id": id, "timestamp": 1});
    if !parent.is_empty() {
        header["parent_msg_id"] = parent.into();
    }
    if let Some(revision) =
        content.pointer("/metadata/resourceVersion").filter(|_| parent.is_empty() && dir == "down")
    {
        header["resourceversion"] = revision.clone();
    }
    let [source, group, operation, resource] = route;
    let route = json!({"source": source, "group": group, "operation": operation, "resource": resource});
    json!({"at_us": 1, "conn": 1, "dir": dir, "frame": {"header": header, "route": route, "content": content}})
}

fn asks(id: &str, operation: &str, resource: &str, content: &Value) -> Value {
    line("up", id, "", ["edged", "meta", operation, resource], content)
}

fn answers(parent: &str, resource: &str, content: &Value) -> Value {
    line(
        "down",
        &format!("r-{parent}"),
        parent,
        ["edgecontroller", "resource", "response", resource],
        content,
    )
}

fn delivers(id: &str, resource: &str, content: &Value) -> Value {
    line("down", id, "", ["edgecontroller", "resource", "update", resource], content)
}

/// A MetaServer record and its answer (docs/reference/kubeedge.md#application-records).
fn application(
    id: &str,
    verb: &str,
    key: &str,
    option: &Value,
    outcome: Result<&Value, &Value>,
) -> [Value; 2] {
    let encoded = |value: &Value| STANDARD.encode(value.to_string());
    let asked = json!({"ID": "4f", "Key": key, "Verb": verb, "Nodename": "e", "Option": encoded(option), "ReqBody": null,
        "Subresource": "", "RespBody": null, "Status": "InApplying", "Reason": "", "Error": {"ErrStatus": {"metadata": {}}}});
    let mut answered = asked.clone();
    match outcome {
        Ok(body) => {
            answered["Status"] = "Approved".into();
            answered["RespBody"] = if body.is_null() { Value::Null } else { encoded(body).into() };
        }
        Err(status) => {
            answered["Status"] = "Rejected".into();
            answered["Error"] = json!({"ErrStatus": status});
        }
    }
    let route = ["dynamiccontroller", "resource", "applicationResponse", "ignore/Application/ignore"];
    [
        line("up", id, "", ["metaserver", "dynamiccontroller", "null", "null"], &asked),
        line("down", &format!("r-{id}"), id, route, &answered),
    ]
}

fn object(kind: &str, name: &str, uid: &str, revision: u64) -> Value {
    let metadata =
        json!({"name": name, "namespace": "d", "uid": uid, "resourceVersion": revision.to_string()});
    json!({"kind": kind, "apiVersion": "v1", "metadata": metadata})
}

fn status(reason: &str, code: u16, name: &str, message: &str) -> Value {
    json!({"status": "Failure", "reason": reason, "code": code, "message": message, "details": {"name": name}})
}

fn failed(status: &Value) -> Value {
    json!({"Object": {}, "Err": {"ErrStatus": status}})
}

/// The changes of the API before each line, in short form, with the derived objects.
fn changes(lines: &[Value]) -> (Vec<String>, Vec<Value>) {
    let text: Vec<String> = std::iter::once(json!({"node": "e"}))
        .chain(lines.iter().cloned())
        .map(|line| line.to_string())
        .collect();
    let transcript = with_api_lines(&Transcript::parse(&text.join("\n")).expect("a transcript"));
    let (mut changes, mut objects, mut frames) = (Vec::new(), Vec::new(), 0);
    for line in &transcript.lines {
        let Event::Api(verb, object) = &line.event else {
            frames += 1;
            continue;
        };
        let verb = match verb {
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Delete => "delete",
        };
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or("?").to_owned();
        changes.push(format!("{frames}: {verb} {} {}", text("name"), text("uid")));
        objects.push(object.clone());
    }
    (changes, objects)
}

const PATCH: &str = "d/podpatch/p";

/// A pod was delivered, and a report about it was refused; `after` comes later.
fn refused_report(status: &Value, after: &[Value]) -> Vec<String> {
    let mut lines = vec![
        delivers("p1", "d/pod/p", &object("Pod", "p", "u", 5)),
        asks("q", "patch", PATCH, &json!("{\"metadata\":{\"uid\":\"u\"}}")),
        answers("q", PATCH, &failed(status)),
    ];
    lines.extend(after.iter().cloned());
    changes(&lines).0
}

#[test]
fn write_to_a_missing_object_implies_an_earlier_deletion() {
    let gone = status("NotFound", 404, "p", "pods \"p\" not found");
    assert_eq!(refused_report(&gone, &[]), ["0: create p u", "1: delete p u"]);
    let none = "Precondition failed: UID in precondition: u, UID in object meta: ";
    assert_eq!(refused_report(&status("Conflict", 409, "p", none), &[]), ["0: create p u", "1: delete p u"]);
    // The missing object is the namespace, or another object that the request names.
    let other = status("NotFound", 404, "d", "namespaces \"d\" not found");
    assert_eq!(refused_report(&other, &[]), ["0: create p u"]);
    // The object existed all the time.
    let still = delivers("p2", "d/pod/p", &object("Pod", "p", "u", 6));
    assert_eq!(refused_report(&gone, &[still]), ["0: create p u", "3: update p u"]);
}

#[test]
fn conflicting_incarnation_precedes_the_write() {
    let next = delivers("p2", "d/pod/p", &object("Pod", "p", "v", 9));
    for (reason, code, message) in [
        ("Conflict", 409, "Precondition failed: UID in precondition: u, UID in object meta: v"),
        ("Invalid", 422, "Pod \"p\" is invalid: metadata.uid: Invalid value: \"u\": field is immutable"),
    ] {
        let replaced = status(reason, code, "p", message);
        let told = refused_report(&replaced, std::slice::from_ref(&next));
        assert_eq!(told, ["0: create p u", "1: delete p u", "1: create p v"], "{reason}");
        // No later frame shows the new incarnation: it is only known to be another one.
        let told = refused_report(&replaced, &[]);
        assert_eq!(told, ["0: create p u", "1: delete p u", "1: create p ?"], "{reason}");
    }
    let other = status("Invalid", 422, "p", "Pod \"p\" is invalid: status.phase: Invalid value");
    assert_eq!(refused_report(&other, &[]), ["0: create p u"]);
}

#[test]
fn conflicting_change_precedes_the_write() {
    const LEASE: &str = "d/lease/l";
    let changed = failed(&status("Conflict", 409, "l", "the object has been modified"));
    let (old, new) = (object("Lease", "l", "u", 5), object("Lease", "l", "u", 7));
    let mut lines = vec![
        asks("q1", "query", LEASE, &Value::Null),
        answers("q1", LEASE, &json!({"Object": old, "Err": null})),
        asks("q2", "update", LEASE, &old),
        answers("q2", LEASE, &changed),
    ];
    let (told, objects) = changes(&lines);
    assert_eq!(told, ["0: create l u", "2: update l u"], "it is unknown how");
    assert_eq!(objects[1]["metadata"]["resourceVersion"], Value::Null);
    lines.extend([
        asks("q3", "query", LEASE, &Value::Null),
        answers("q3", LEASE, &json!({"Object": new, "Err": null})),
    ]);
    let (told, objects) = changes(&lines);
    assert_eq!(told, ["0: create l u", "2: update l u"]);
    assert_eq!(objects[1]["metadata"]["resourceVersion"], "7");
}

#[test]
fn create_refused_as_existing_implies_the_object() {
    let taken = failed(&status("AlreadyExists", 409, "p", "pods \"p\" already exists"));
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "own"}});
    let lines = [asks("q", "insert", "d/pod/p", &pod), answers("q", "d/pod/p", &taken)];
    let (told, objects) = changes(&lines);
    assert_eq!((told, &objects[0]["kind"]), (vec!["0: create p ?".to_owned()], &json!("Pod")));
    // The state that is shown later.
    let shown = [&lines[..], &[delivers("p1", "d/pod/p", &object("Pod", "p", "u", 5))]].concat();
    assert_eq!(changes(&shown).0, ["0: create p u"]);
}

const MAPS: &str = "/core/v1/configmaps/d/null";

fn list(items: &[Value]) -> Value {
    json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": items})
}

#[test]
fn object_missing_from_a_complete_list_does_not_exist() {
    let (one, other) = (object("ConfigMap", "a", "u", 5), object("ConfigMap", "b", "v", 6));
    let first = application("q1", "list", MAPS, &json!({}), Ok(&list(&[one.clone(), other.clone()])));
    let both = ["0: create a u", "0: create b v"];
    for (key, option, extra, gone) in [
        (MAPS, json!({}), json!({}), true),
        ("/core/v1/configmaps/null/null", json!({}), json!({}), true),
        (MAPS, json!({"labelSelector": "x=y"}), json!({}), false),
        (MAPS, json!({"fieldSelector": "metadata.name=b"}), json!({}), false),
        (MAPS, json!({"limit": 1}), json!({"continue": "more"}), false),
        ("/core/v1/configmaps/elsewhere/null", json!({}), json!({}), false),
    ] {
        let mut body = list(std::slice::from_ref(&other));
        body["metadata"] = extra;
        let second = application("q2", "list", key, &option, Ok(&body));
        let expected = if gone { vec![both[0], both[1], "2: delete a u"] } else { both.to_vec() };
        assert_eq!(changes(&[first.clone(), second].concat()).0, expected, "{key} {option}");
    }
}

#[test]
fn application_results_prove_absence() {
    let map = object("ConfigMap", "a", "u", 5);
    const KEY: &str = "/core/v1/configmaps/d/a";
    let first = application("q1", "get", KEY, &json!({}), Ok(&map));
    let missing = status("NotFound", 404, "a", "configmaps \"a\" not found");
    for verb in ["get", "update", "patch", "delete"] {
        let second = application("q2", verb, KEY, &json!({}), Err(&missing));
        let told = changes(&[first.clone(), second].concat()).0;
        assert_eq!(told, ["0: create a u", "2: delete a u"], "{verb}");
    }
    // The run deletes it as the application did.
    let deleted = application("q2", "delete", KEY, &json!({}), Ok(&Value::Null));
    let third = application("q3", "get", KEY, &json!({}), Err(&missing));
    assert_eq!(changes(&[first, deleted, third].concat()).0, ["0: create a u"]);
}

/// The scale of an object has the object's uid and version, and is not a second object.
#[test]
fn a_scale_is_a_view_of_an_object() {
    let deployment = object("Deployment", "a", "u", 5);
    let mut scale = object("Scale", "a", "u", 5);
    scale["spec"] = json!({"replicas": 1});
    const KEY: &str = "/apps/v1/deployments/d/a";
    let first = application("q1", "get", KEY, &json!({}), Ok(&deployment));
    let second = application("q2", "get", KEY, &json!({}), Ok(&scale));
    let lines = [first, second].concat();
    assert_eq!(changes(&lines).0, ["0: create a u"]);
    let text: Vec<String> =
        std::iter::once(json!({"node": "e"})).chain(lines).map(|line| line.to_string()).collect();
    let transcript = Transcript::parse(&text.join("\n")).expect("a transcript");
    assert!(tombolo_replay::Matcher::new(&transcript).is_ok(), "it agrees with itself");
}
