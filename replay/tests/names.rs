//! Names that differ between a recording and a run, and what they have in common.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_replay::{Difference, Frame, Happening, Matcher, Rule, Summary, Transcript};

/// A MetaServer record that creates a ConfigMap whose name the API server generates.
fn record(status: &str, made: Option<&Value>) -> Value {
    let asked = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"generateName": "g-", "namespace": "d"}});
    let body = |value: &Value| STANDARD.encode(value.to_string());
    json!({
        "ID": "4f", "Key": "/core/v1/configmaps/d/null", "Verb": "create", "Nodename": "e", "Option": null,
        "ReqBody": body(&asked), "Subresource": "", "RespBody": made.map(body), "Status": status, "Reason": "",
        "Error": {"ErrStatus": {"metadata": {}}}, "Timestamp": "0001-01-01T00:00:00Z",
    })
}

fn made(name: &str, start: &str, uid: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": name, "generateName": start, "namespace": "d", "uid": uid, "resourceVersion": "7"}})
}

fn frame(header: &Value, source: &str, operation: &str, resource: &str, content: &Value) -> Value {
    let group = if source == "metaserver" { "dynamiccontroller" } else { "resource" };
    json!({"header": header, "content": content,
        "route": {"source": source, "group": group, "operation": operation, "resource": resource}})
}

fn answer(id: &str, parent: &str, object: &Value) -> Value {
    let header = json!({"msg_id": id, "parent_msg_id": parent, "timestamp": 1});
    let content = record("Approved", Some(object));
    frame(&header, "dynamiccontroller", "applicationResponse", "ignore/Application/ignore", &content)
}

fn push(id: &str, resource: &str, object: &Value) -> Value {
    let header = json!({"msg_id": id, "timestamp": 1, "resourceversion": "7"});
    frame(&header, "dynamiccontroller", "insert", resource, object)
}

/// Judges a run by what was recorded and what arrived.
fn judged(recorded: &[Value], came: Vec<Value>) -> Result<Summary, Difference> {
    let asked = frame(
        &json!({"msg_id": "q", "timestamp": 1}),
        "metaserver",
        "null",
        "null",
        &record("InApplying", None),
    );
    let line =
        |dir: &str, frame: &Value| json!({"at_us": 1, "conn": 1, "dir": dir, "frame": frame}).to_string();
    let mut lines = vec![json!({"node": "e"}).to_string(), line("up", &asked)];
    lines.extend(recorded.iter().map(|frame| line("down", frame)));
    let transcript = Transcript::parse(&lines.join("\n")).expect("a transcript");
    let mut matcher = Matcher::new(&transcript)?;
    matcher.follow(Happening::Sent(0, "live".to_owned()))?;
    for frame in came {
        matcher.follow(Happening::Received(1, Frame::new(frame)))?;
    }
    matcher.finish()
}

fn count(summary: &Summary, wanted: Rule) -> usize {
    summary.rules.iter().find(|(rule, _)| *rule == wanted).map_or(0, |(_, count)| count)
}

#[test]
fn generated_names_differ_between_runs() {
    let (one, other) = (made("g-aaaaa", "g-", "u"), made("g-bbbbb", "g-", "v"));
    let recorded = [answer("d", "q", &one), push("p", "d/configmap/g-aaaaa", &one)];
    let came = vec![answer("l", "live", &other), push("m", "d/configmap/g-bbbbb", &other)];
    let summary = judged(&recorded, came).expect("the same");
    assert_eq!((summary.matched, summary.besides), (2, 0), "{summary:?}");
    // Any other name is chosen by the edge and must be equal.
    for other in [made("h-bbbbb", "g-", "v"), made("g-bbbbb", "h-", "v"), made("g-", "g-", "v")] {
        assert!(judged(&recorded[..1], vec![answer("l", "live", &other)]).is_err(), "{other}");
    }
    let (one, other) = (made("a", "", "u"), made("b", "", "v"));
    assert!(judged(&[answer("d", "q", &one)], vec![answer("l", "live", &other)]).is_err());
}

#[test]
fn delivery_path_may_use_the_plural_word() {
    let config = made("g-a", "g-", "u");
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "l", "namespace": "d", "uid": "w", "resourceVersion": "7"}});
    let judge = |recorded: &str, came: &str| {
        judged(
            &[answer("d", "q", &config), push("p", recorded, &lease)],
            vec![answer("l", "live", &config), push("m", came, &lease)],
        )
    };
    let summary = judge("d/leases/l", "d/lease/l").expect("the same");
    assert_eq!((summary.matched, count(&summary, Rule::WatchWord)), (2, 1), "{summary:?}");
    let summary = judge("d/leases/l", "d/leases/l").expect("the same");
    assert_eq!(count(&summary, Rule::WatchWord), 0, "{summary:?}");
    for wrong in ["d/pod/l", "d/leasess/l", "other/leases/l", "d/leases/other"] {
        assert!(judge(wrong, "d/lease/l").is_err(), "{wrong}");
        assert!(judge("d/leases/l", wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_cloud_without_a_dynamic_controller_answers_no_application() {
    let refused = || {
        let header = json!({"msg_id": "l", "parent_msg_id": "live", "timestamp": 1});
        let mut content = record("Rejected", None);
        content["Error"] =
            json!({"ErrStatus": {"metadata": {}, "status": "Failure", "code": 403, "reason": "Forbidden"}});
        frame(&header, "dynamiccontroller", "applicationResponse", "ignore/Application/ignore", &content)
    };
    let later = |source: &str| {
        let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": "l", "namespace": "d", "uid": "w", "resourceVersion": "7"}});
        let mut recorded = push("p", "d/lease/l", &lease);
        recorded["route"]["source"] = source.into();
        let mut came = recorded.clone();
        came["header"]["msg_id"] = "m".into();
        judged(&[recorded], vec![refused(), came])
    };
    let summary = later("edgecontroller").expect("excused");
    assert_eq!(count(&summary, Rule::Answered), 1, "{summary:?}");
    // A cloud that has a dynamic controller answers: this recording ends before the answer.
    let summary = later("dynamiccontroller").expect("excused for another reason");
    assert_eq!(
        (count(&summary, Rule::Answered), count(&summary, Rule::RecordingEnds)),
        (0, 1),
        "{summary:?}"
    );
}
