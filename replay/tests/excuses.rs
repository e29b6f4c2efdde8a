//! Rules excuse the differences that they allow, and no others.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_replay::{Difference, Frame, Happening, Matcher, Rule, Summary, Transcript, play_cloud};

/// A MetaServer record (docs/reference/kubeedge.md#application-records) that requests all objects of
/// `group/version/plural`.
fn record(verb: &str, resource: &str) -> Value {
    json!({
        "ID": "4f", "Key": format!("/{resource}/null/null"), "Verb": verb, "Nodename": "e", "Option": null, "ReqBody": null,
        "Subresource": "", "RespBody": null, "Status": "InApplying", "Reason": "", "Error": {"ErrStatus": {"metadata": {}}},
        "Timestamp": "0001-01-01T00:00:00Z",
    })
}

fn approved(mut record: Value, body: &Value) -> Value {
    record["Status"] = "Approved".into();
    record["RespBody"] = STANDARD.encode(body.to_string()).into();
    record
}

fn rejected(mut record: Value, code: u16, reason: &str) -> Value {
    record["Status"] = "Rejected".into();
    record["Error"] =
        json!({"ErrStatus": {"metadata": {}, "status": "Failure", "code": code, "reason": reason}});
    record
}

fn asks(id: &str, content: &Value) -> Value {
    json!({
        "header": {"msg_id": id, "timestamp": 1},
        "route": {"source": "metaserver", "group": "dynamiccontroller", "operation": "null", "resource": "null"},
        "content": content,
    })
}

fn answers(id: &str, parent: &str, content: &Value) -> Value {
    json!({
        "header": {"msg_id": id, "parent_msg_id": parent, "timestamp": 1},
        "route": {"source": "dynamiccontroller", "group": "resource", "operation": "applicationResponse",
            "resource": "ignore/Application/ignore"},
        "content": content,
    })
}

fn line(dir: &str, frame: &Value) -> String {
    json!({"at_us": 1, "conn": 1, "dir": dir, "frame": frame}).to_string()
}

fn transcript(lines: &[String]) -> Transcript {
    let header = json!({"node": "e"}).to_string();
    let lines: Vec<&str> = std::iter::once(header.as_str()).chain(lines.iter().map(String::as_str)).collect();
    Transcript::parse(&lines.join("\n")).expect("a transcript")
}

const WIDGETS: &str = "example.org/v1/widgets";

/// Judges a run in which the cluster does not serve widgets, by the request, the recorded answer and the answer that
/// arrived. `before` are API lines.
fn judged(before: &[String], asked: &Value, recorded: &Value, came: &Value) -> Result<Summary, Difference> {
    let mut lines = before.to_vec();
    lines.extend([line("up", &asks("q", asked)), line("down", &answers("d", "q", recorded))]);
    let transcript = transcript(&lines);
    let mut matcher = Matcher::new(&transcript)?;
    let [group, version, plural] = ["example.org", "v1", "widgets"].map(str::to_owned);
    matcher.follow(Happening::Undefined(group, version, plural))?;
    matcher.follow(Happening::Sent(before.len(), "live".to_owned()))?;
    matcher.follow(Happening::Received(1, Frame::new(answers("l", "live", came))))?;
    matcher.finish()
}

fn not_served(summary: &Summary) -> usize {
    summary.rules.iter().find(|(rule, _)| *rule == Rule::NotServed).map_or(0, |(_, count)| count)
}

#[test]
fn read_of_an_undefined_kind_may_be_refused() {
    let list = json!({"kind": "WidgetList", "apiVersion": "example.org/v1", "metadata": {}, "items": []});
    for verb in ["list", "watch", "get"] {
        let asked = record(verb, WIDGETS);
        let answered = approved(asked.clone(), &list);
        let summary = judged(&[], &asked, &answered, &rejected(asked.clone(), 404, "NotFound"));
        let summary = summary.unwrap_or_else(|difference| panic!("{verb}: {difference}"));
        assert_eq!((not_served(&summary), summary.excused, summary.matched), (1, 1, 0), "{verb}");
    }
}

#[test]
fn other_differences_of_an_undefined_kind_are_not_excused() {
    let list = json!({"kind": "WidgetList", "apiVersion": "example.org/v1", "metadata": {}, "items": []});
    let asked = record("list", WIDGETS);
    let answered = approved(asked.clone(), &list);
    let refused = rejected(asked.clone(), 404, "NotFound");
    let differs = |before: &[String], asked: &Value, recorded: &Value, came: &Value, why: &str| {
        let outcome = judged(before, asked, recorded, came);
        assert!(outcome.is_err(), "{why}: {outcome:?}");
    };
    differs(&[], &asked, &answered, &rejected(asked.clone(), 403, "Forbidden"), "another refusal");
    let gadgets = record("list", "example.org/v1/gadgets");
    let (given, gone) = (approved(gadgets.clone(), &list), rejected(gadgets.clone(), 404, "NotFound"));
    differs(&[], &gadgets, &given, &gone, "a resource of which nobody has said that it is not served");
    let made = record("create", WIDGETS);
    let (given, gone) = (approved(made.clone(), &list), rejected(made.clone(), 404, "NotFound"));
    differs(&[], &made, &given, &gone, "a write");
    let failed = rejected(asked.clone(), 500, "InternalError");
    differs(&[], &asked, &failed, &refused, "the recorded cloud refused it too, for another reason");
    let mut other = refused.clone();
    other["ID"] = "50".into();
    differs(&[], &asked, &answered, &other, "another record");
    let definition = json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "widgets.example.org"}});
    let defined = json!({"at_us": 0, "dir": "api", "verb": "create", "object": definition}).to_string();
    differs(&[defined], &asked, &answered, &refused, "the transcript defines it");
}

fn push(id: &str, content: &Value) -> Value {
    json!({
        "header": {"msg_id": id, "timestamp": 1, "resourceversion": "7"},
        "route": {"source": "dynamiccontroller", "group": "resource", "operation": "insert", "resource": "d/widget/w"},
        "content": content,
    })
}

fn acknowledges(parent: &str) -> Value {
    json!({
        "header": {"msg_id": format!("a{parent}"), "parent_msg_id": parent, "timestamp": 1},
        "route": {"source": "dynamiccontroller", "group": "resource", "operation": "response", "resource": "d/widget/w"},
        "content": "OK",
    })
}

fn metadata() -> Value {
    json!({"name": "w", "namespace": "d", "uid": "u", "resourceVersion": "7", "creationTimestamp": null})
}

#[test]
fn edge_may_refuse_an_object_of_unknown_kind() {
    let typed = json!({"metadata": metadata(), "parts": null});
    let said = json!({"kind": "Widget", "apiVersion": "example.org/v1", "metadata": metadata()});
    let heard = |object: &Value| vec![line("down", &push("p", object)), line("up", &acknowledges("p"))];
    let summary = play_cloud(&transcript(&heard(&typed))).expect("excused");
    assert_eq!((not_served(&summary), summary.matched), (1, 0));
    let summary = play_cloud(&transcript(&heard(&said))).expect("no difference");
    assert_eq!((not_served(&summary), summary.matched), (0, 1), "it names itself");
    // The transcript defines the resource: by a definition, or because an edge requested discovery.
    let names = json!({"plural": "widgets", "kind": "Widget"});
    let spec = json!({"group": "example.org", "names": names, "versions": [{"name": "v1", "served": true}]});
    let definition = json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "widgets.example.org"}, "spec": spec});
    let defined = json!({"at_us": 0, "dir": "api", "verb": "create", "object": definition}).to_string();
    let mut asked = record("get", "apis");
    asked["Key"] = "/apis/example.org/v1".into();
    let list = json!({"kind": "APIResourceList", "groupVersion": "example.org/v1",
        "resources": [{"name": "widgets", "kind": "Widget"}, {"name": "widgets/status", "kind": "Widget"}]});
    let answered = answers("d", "q", &approved(asked.clone(), &list));
    let discovered = vec![line("up", &asks("q", &asked)), line("down", &answered)];
    for (told, matched) in [(vec![defined], 1), (discovered, 2)] {
        let lines = [told, heard(&typed)].concat();
        let summary = play_cloud(&transcript(&lines)).expect("no difference");
        assert_eq!((not_served(&summary), summary.matched), (0, matched));
    }
}

/// A node whose Node is deleted. `before` and `after` are frames of its connection before and after the deletion.
fn with_deleted_node(before: &[String], after: &[String]) -> Transcript {
    let node = json!({"kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "e", "uid": "n", "resourceVersion": "3", "creationTimestamp": "2026-11-20T09:00:00Z"}});
    let deleted = json!({"at_us": 1, "dir": "api", "verb": "delete", "object": node}).to_string();
    transcript(&[before, &[deleted], after].concat())
}

fn configmap(id: &str, name: &str) -> String {
    let metadata = json!({"name": name, "namespace": "d", "uid": name, "resourceVersion": "7"});
    line(
        "down",
        &json!({
            "header": {"msg_id": id, "timestamp": 1, "resourceversion": "7"},
            "route": {"source": "edgecontroller", "group": "resource", "operation": "update", "resource": format!("d/configmap/{name}")},
            "content": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"a": "1"}},
        }),
    )
}

fn joins_again(summary: &Summary) -> usize {
    summary.rules.iter().find(|(rule, _)| *rule == Rule::JoinsAgain).map_or(0, |(_, count)| count)
}

#[test]
fn messages_after_the_node_deletion_are_excused() {
    let transcript = with_deleted_node(&[], &[configmap("d1", "late")]);
    let mut matcher = Matcher::new(&transcript).expect("sound");
    matcher.follow(Happening::Applied(0, vec![json!({"metadata": {"name": "e"}})])).expect("made");
    matcher.follow(Happening::Ended(1)).expect("ended");
    assert!(matcher.follow(Happening::JoinedAgain(1)).expect("no difference"));
    assert!(!matcher.follow(Happening::JoinedAgain(1)).expect("no difference"), "once is enough");
    let summary = matcher.finish().expect("excused");
    assert_eq!((joins_again(&summary), summary.excused, summary.matched), (2, 1, 0));
}

#[test]
fn other_differences_around_a_node_deletion_are_not_excused() {
    let deleted = |index| Happening::Applied(index, vec![json!({"metadata": {"name": "e"}})]);
    let late = with_deleted_node(&[], &[configmap("d1", "late")]);
    let early = with_deleted_node(&[configmap("d1", "early")], &[]);
    let cases: [(&str, &Transcript, Vec<Happening>); 4] = [
        ("the connection goes on", &late, vec![deleted(0)]),
        ("the connection ended before the Node", &late, vec![Happening::Ended(1), deleted(0)]),
        ("the Node was never deleted", &late, vec![Happening::Ended(1)]),
        ("it was said before the Node went", &early, vec![deleted(1), Happening::Ended(1)]),
    ];
    for (why, transcript, run) in cases {
        let mut matcher = Matcher::new(transcript).expect("sound");
        for happening in run {
            matcher.follow(happening).expect("no difference");
        }
        assert!(matcher.finish().is_err(), "{why}");
    }
    let mut matcher = Matcher::new(&late).expect("sound");
    assert!(!matcher.follow(Happening::JoinedAgain(1)).expect("no difference"), "its Node is there");
}

fn cluster_objects(summary: &Summary) -> usize {
    summary.rules.iter().find(|(rule, _)| *rule == Rule::ClusterObjects).map_or(0, |(_, count)| count)
}

fn object(version: &str, kind: &str, namespace: &str, name: &str, labels: &Value) -> Value {
    json!({"kind": kind, "apiVersion": version, "metadata":
        {"name": name, "namespace": namespace, "uid": name, "resourceVersion": name.len().to_string(), "labels": labels}})
}

fn pushed(id: &str, object: &Value) -> Value {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace =
        if metadata["namespace"] == "" { "null".to_owned() } else { text(&metadata["namespace"]) };
    let resource =
        format!("{namespace}/{}/{}", text(&object["kind"]).to_ascii_lowercase(), text(&metadata["name"]));
    let mut frame = push(id, object);
    frame["route"]["resource"] = resource.into();
    frame["header"]["resourceversion"] = metadata["resourceVersion"].clone();
    frame
}

#[test]
fn system_objects_of_the_recorded_cluster_are_excused() {
    let labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
    let role = object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "view", &labels);
    let ledger = object("v1", "ConfigMap", "kubeedge", "tombolo-ledger.e", &Value::Null);
    let recorded = transcript(&[line("down", &pushed("p", &role))]);
    let mut matcher = Matcher::new(&recorded).expect("sound");
    matcher.follow(Happening::Received(1, Frame::new(pushed("l", &ledger)))).expect("no difference");
    let summary = matcher.finish().expect("excused");
    assert_eq!((cluster_objects(&summary), summary.excused, summary.besides), (2, 1, 1));
    // A list contains the objects of its own cluster.
    let mine = object("v1", "ConfigMap", "d", "a", &Value::Null);
    let theirs = object("v1", "ConfigMap", "kubeedge", "tunnelport", &Value::Null);
    let list = |items: &[&Value]| json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": items});
    let asked = record("list", "core/v1/configmaps");
    let judged = |came: &Value| {
        judged(
            &[],
            &asked,
            &approved(asked.clone(), &list(&[&mine, &theirs])),
            &approved(asked.clone(), came),
        )
    };
    assert_eq!(judged(&list(&[&mine, &ledger])).map(|summary| cluster_objects(&summary)), Ok(1));
    assert!(judged(&list(&[&ledger])).is_err(), "what is no machinery is missed");
    // Any other role is reported as missing, and any other ConfigMap as unexpected.
    let role = object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "mine", &Value::Null);
    let recorded = transcript(&[line("down", &pushed("p", &role))]);
    assert!(Matcher::new(&recorded).expect("sound").finish().is_err());
    let recorded = transcript(&[]);
    let mut matcher = Matcher::new(&recorded).expect("sound");
    matcher.follow(Happening::Received(1, Frame::new(pushed("l", &mine)))).expect("not judged yet");
    assert!(matcher.finish().is_err());
}

const REPORT: &str = "d/podpatch/p";

fn reports(id: &str) -> Value {
    json!({"header": {"msg_id": id, "timestamp": 1}, "content": "{}",
        "route": {"source": "edged", "group": "meta", "operation": "patch", "resource": REPORT}})
}

fn reported(id: &str, parent: &str, content: &Value) -> Value {
    json!({"header": {"msg_id": id, "parent_msg_id": parent, "timestamp": 1}, "content": content,
        "route": {"source": "edgecontroller", "group": "resource", "operation": "response", "resource": REPORT}})
}

fn done() -> Value {
    json!({"Object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "d", "uid": "u"}}, "Err": null})
}

/// A KubeEdge cloud sends answers beside deliveries: the end of a recording may cut off either.
#[test]
fn answer_may_be_missing_after_a_delivery_but_not_after_an_answer() {
    let run = |recorded: &[String]| {
        let transcript = transcript(recorded);
        let mut matcher = Matcher::new(&transcript)?;
        matcher.follow(Happening::Sent(0, "live".to_owned()))?;
        matcher.follow(Happening::Received(1, Frame::new(reported("l", "live", &done()))))
    };
    let asked = line("up", &reports("q"));
    let delivered = line("down", &pushed("p", &object("v1", "ConfigMap", "d", "a", &Value::Null)));
    assert_eq!(run(&[asked.clone(), delivered]), Ok(false));
    let later = [line("up", &reports("q2")), line("down", &reported("d", "q2", &done()))];
    assert!(run(&[&[asked][..], &later].concat()).is_err());
}

/// The run wrote to the pod in place of another client, and the cloud may not know of that write yet.
#[test]
fn report_with_an_unrecorded_conflict_is_sent_again() {
    let status = |reason: &str| json!({"Object": {}, "Err": {"ErrStatus": {"status": "Failure", "reason": reason, "code": 409}}});
    for (recorded, came, again) in [
        (done(), status("Conflict"), Some(0)),
        (done(), status("Invalid"), None),
        (status("Conflict"), status("Conflict"), None),
        (done(), done(), None),
    ] {
        let lines = [line("up", &reports("q")), line("down", &reported("d", "q", &recorded))];
        let transcript = transcript(&lines);
        let mut matcher = Matcher::new(&transcript).expect("sound");
        matcher.follow(Happening::Sent(0, "live".to_owned())).expect("sent");
        assert_eq!(matcher.is_stale(&Frame::new(reported("l", "live", &came))), again, "{recorded} {came}");
    }
}
