use bytes::Bytes;

use super::*;
use crate::message::MessageId;

fn json(text: &str) -> Content {
    Content::from_json(&Bytes::copy_from_slice(text.as_bytes())).expect(text)
}

fn request(source: &str, operation: &str, resource: &str, content: Content) -> Message {
    let resource = ResourcePath::parse_wire(resource).expect(resource);
    let route = Route::new(Source::parse(source), Group::Meta, Operation::parse(operation), resource);
    Message::new(MessageId::parse("asked").expect("an id"), 1, route, content)
}

fn edged(operation: &str, resource: &str) -> Message {
    request("edged", operation, resource, Content::null())
}

fn fit(request: &Message, answer: Message) -> Option<Message> {
    let mut ids = MessageIds::new([1; 16], Moment::default(), 5);
    Some(Shape::of(request).fit(request, answer, &mut ids, Moment::default())?.message)
}

fn answered(request: &Message, content: &str) -> Message {
    let id = MessageId::parse("draft").expect("an id");
    let answer = request.controller_reply(id, 0, request.route.resource.clone(), json(content));
    fit(request, answer.with_resource_version("7")).expect("an answer")
}

/// What the kubelet's code of a KubeEdge edge does with the answer to a change: it reads the object only when there is
/// no error.
fn is_whole_failure(answer: &Message) -> bool {
    let value: serde_json::Value = answer.content.read().expect("JSON");
    let status = &value["Err"]["ErrStatus"];
    value["Object"].is_object()
        && status["code"].as_u64().is_some_and(|code| code >= 400)
        && status["reason"].as_str().is_some_and(|reason| !reason.is_empty())
}

const CHANGES: [(&str, &str); 7] = [
    ("insert", "null/node/edge1"),
    ("patch", "null/nodepatch/edge1"),
    ("patch", "default/podpatch/a"),
    ("insert", "default/pod/a"),
    ("insert", "kube-node-lease/lease/edge1"),
    ("update", "kube-node-lease/lease/edge1"),
    ("insert", "default/certificatesigningrequest/a"),
];

#[test]
fn a_list_of_pods_is_an_array_or_an_error() {
    let request = edged("query", "default/podlist");
    let good = answered(&request, r#"[{"kind":"Pod"}]"#);
    assert_eq!(
        (good.route.operation, good.content.as_json()),
        (Operation::Response, &br#"[{"kind":"Pod"}]"#[..].into())
    );
    for content in [r#"{"ErrStatus":{}}"#, "null", r#""text""#] {
        assert_eq!(answered(&request, content).route.operation, Operation::Error, "{content}");
    }
}

#[test]
fn failed_changes_have_a_complete_answer() {
    for (operation, resource) in CHANGES {
        let request = edged(operation, resource);
        for content in [
            r#"{"Object":null,"Err":null}"#,
            r#"{"Object":null,"Err":{}}"#,
            r#"{"Object":{"metadata":{}},"Err":{"Op":"Get","URL":"https://x","Err":{}}}"#,
            r#"{"Object":null,"Err":{"ErrStatus":{}}}"#,
            r#"{"Object":null,"Err":{"ErrStatus":{"code":409,"reason":"AlreadyExists","message":"there"}}}"#,
            r#"{"ErrStatus":{"code":404,"reason":"NotFound","message":"gone"}}"#,
            r#""some text""#,
            "null",
            "[]",
        ] {
            let answer = answered(&request, content);
            assert!(
                is_whole_failure(&answer),
                "{operation} {resource} {content}: {:?}",
                answer.content.as_json()
            );
            assert_eq!(answer.route.operation, Operation::Response, "the caller reads the wrapper");
        }
        let error =
            fit(&request, request.controller_error(request.header.id.clone(), 0, "no")).expect("an answer");
        assert!(is_whole_failure(&error), "{operation} {resource}");
    }
}

#[test]
fn successes_pass_as_they_are() {
    let request = edged("patch", "default/podpatch/a");
    let content = r#"{"Object":{"metadata":{"name":"a"}},"Err":null}"#;
    let answer = answered(&request, content);
    assert_eq!(answer.content.as_json(), content);
    assert_eq!(answer.header.resource_version, "7");
    assert_eq!(answer.header.parent, Some(request.header.id.clone()));
    let expected = Route::new(
        Source::EdgeController,
        Group::Resource,
        Operation::Response,
        request.route.resource.clone(),
    );
    assert_eq!(answer.route, expected);
}

#[test]
fn missing_lease_is_answered_without_an_object() {
    let request = edged("query", "kube-node-lease/lease/edge1");
    let error = StatusError::new(404, "NotFound", "not found");
    let content = String::from_utf8(Outcome::Failed(error).to_content().as_json().to_vec()).expect("text");
    assert_eq!(answered(&request, &content).content.as_json(), &content);
}

#[test]
fn a_failed_query_is_never_stored() {
    for resource in
        ["default/configmap/a", "default/secret/a", "default/serviceaccounttoken/a", "null/node/edge1"]
    {
        let request = edged("query", resource);
        for content in
            [r#"{"ErrStatus":{"code":404,"message":"gone"}}"#, "{}", "null", r#""text""#, r#"{"Op":"Get"}"#]
        {
            let answer = answered(&request, content);
            assert_eq!(answer.route.operation, Operation::Error, "{resource} {content}");
            assert!(answer.content.as_text().is_some_and(|text| !text.is_empty()), "{resource} {content}");
            assert_eq!(answer.header.resource_version, "");
        }
        let answer = answered(&request, r#"{"metadata":{"name":"a"},"data":{}}"#);
        assert_eq!(answer.route.operation, Operation::Response);
    }
}

#[test]
fn deletions_succeed_with_ok_alone() {
    let request = edged("delete", "default/pod/a");
    assert!(answered(&request, r#""OK""#).content.is_ok());
    assert_eq!(answered(&request, r#"{"ErrStatus":{}}"#).route.operation, Operation::Error);
}

#[test]
fn applications_are_answered_with_their_own_record() {
    let record = concat!(
        r#"{"ID":"i","Key":"/version","Verb":"get","Nodename":"n","Option":"e30=","ReqBody":null,"Subresource":"","#,
        r#""RespBody":null,"Status":"InApplying","Reason":"","Error":{"ErrStatus":{"metadata":{}}},"Timestamp":"t"}"#
    );
    let request = request("metaserver", "null", "null", json(record));
    let refused = request.controller_error(request.header.id.clone(), 0, "not served");
    let answer = fit(&request, refused).expect("an answer");
    assert_eq!(answer.route.operation, Operation::ApplicationResponse);
    assert_eq!(answer.route.resource.to_wire(), "ignore/Application/ignore");
    let record = Application::read(&answer.content).expect("a record");
    assert_eq!((record.id.as_str(), record.status.as_str()), ("i", "Rejected"));
    assert_eq!(record.error.said().expect("a status").code, 500);
    let sync = self::request("metaserver", "null", "watchapp/sync", json("{}"));
    let answer = answered(&sync, "{}");
    assert_eq!(
        (answer.route.resource.to_wire().as_str(), answer.content.as_json().as_ref()),
        ("watchapp/sync", &b"{}"[..])
    );
}

#[test]
fn unawaited_request_gets_nothing_and_an_unknown_one_a_refusal() {
    for (operation, resource) in [("insert", "default/event/a"), ("update", "default/rulestatus/a")] {
        let request = edged(operation, resource);
        assert!(
            fit(&request, request.reply(request.header.id.clone(), 0, Content::ok())).is_none(),
            "{resource}"
        );
    }
    let request = edged("subscribe", "default/pod/a");
    assert_eq!(answered(&request, r#""OK""#).route.operation, Operation::Error);
    for (operation, resource) in [
        ("upgrade", "task/t/node/n"),
        ("UpdateNodeActionStatus", "operations.kubeedge.io/v1alpha2/nodeupgradejob/j/node/n"),
    ] {
        let answer = answered(&self::request("websocket", operation, resource, Content::null()), r#""OK""#);
        assert_eq!(
            (answer.route.operation, answer.route.group),
            (Operation::Error, Group::Resource),
            "{resource}"
        );
    }
    let ca = edged("query", "k8s/ca.crt");
    let answer = answered(&ca, r#""PEM""#);
    assert_eq!((answer.route.source.as_str(), answer.route.group.as_str()), ("cloudhub", "resource"));
}

#[test]
fn an_application_behind_service_bus_is_answered_where_it_waits() {
    let mut call = request("servicebus", "upload", "http://shop.example/orders", Content::null());
    call.route.group = Group::User;
    let refused = call.controller_error(call.header.id.clone(), 0, "no router");
    let answer = fit(&call, refused).expect("an answer");
    let expected = Route { operation: Operation::Error, ..call.route.clone() };
    assert_eq!((&answer.route, answer.content.as_text().as_deref()), (&expected, Some("no router")));
    let published = Message { route: Route { source: Source::Bus, ..call.route.clone() }, ..call.clone() };
    assert_eq!(Shape::of(&published), Shape::Silent, "MQTT waits for nothing");
    call.header.parent = Some(call.header.id.clone());
    assert_eq!(Shape::of(&call), Shape::Silent, "an answer is not answered");
}
