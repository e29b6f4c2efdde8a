//! Recorded traffic of KubeEdge (`tests/transcripts`): every frame is understood, encoded identically, and has a
//! type.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tombolo_proto::frame::{Change, Reply, ReplyBody};
use tombolo_proto::message::{Group, Message, Operation, Outcome, ResourcePath, ResourceType, Source};
use tombolo_proto::session::kubeedge::{
    Application, Broken, CloudConfig, CloudSession, Down, EdgeConfig, EdgeSession, Kinds, Ledger, Shape, Up,
};
use tombolo_proto::session::{CloudEvent, EdgeEvent};
use tombolo_proto::{Moment, NodeId, kubeedge};

use super::cluster::{Cluster, epoch};

struct Line {
    connection: u64,
    down: bool,
    frame: Value,
    message: Message,
}

/// The folder of handwritten transcripts, which are no evidence of the behaviour of KubeEdge peers.
const MADE: &str = "made";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts")
}

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

/// The transcripts in a folder and its subfolders, whatever their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).expect("transcripts").map(|entry| entry.expect("an entry").path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    files.extend(
        folders.iter().filter(|folder| !folder.ends_with(MADE)).flat_map(|folder| self::files(folder)),
    );
    files
}

/// The node and all messages of each transcript.
fn transcripts() -> Vec<(String, Vec<Line>)> {
    let transcripts = files(&folder());
    assert!(transcripts.len() >= 3, "{transcripts:?}");
    transcripts.iter().map(|path| read(&std::fs::read_to_string(path).expect("readable"))).collect()
}

fn read(text: &str) -> (String, Vec<Line>) {
    let mut values = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    let header = values.next().expect("a header");
    let node = header["node"].as_str().expect("a node").to_owned();
    let mut lines = Vec::new();
    for value in values {
        let frame = value["frame"].clone();
        match kubeedge::decode(&bytes(&frame)) {
            Ok(message) => lines.push(Line {
                connection: value["conn"].as_u64().expect("a number"),
                down: value["dir"] == "down",
                frame,
                message,
            }),
            // When a KubeEdge edge stops, it sends the zero message, which cannot be answered.
            Err(error) => {
                let zero = serde_json::json!({"header": {"msg_id": "", "timestamp": 0}, "route": {}, "content": null});
                assert_eq!(frame, zero, "{error}");
            }
        }
    }
    (node, lines)
}

/// An edge's knowledge of the cluster's kinds: those of the recorded definitions.
fn kinds() -> Arc<Kinds> {
    let entry =
        serde_json::json!({"resource": "destinationrules", "responseKind": {"kind": "DestinationRule"}});
    let version = serde_json::json!({"version": "v1", "resources": [entry]});
    let group = serde_json::json!({"metadata": {"name": "networking.istio.io"}, "versions": [version]});
    let document = serde_json::json!({"items": [group]}).to_string();
    Arc::new(Kinds::discovered(document.as_bytes()).expect("a document"))
}

#[test]
fn every_frame_is_encoded_as_recorded() {
    let mut frames = 0;
    for (_, lines) in transcripts() {
        for line in &lines {
            let again: Value = serde_json::from_slice(&kubeedge::encode(&line.message)).expect("JSON");
            assert_eq!(again, line.frame);
            frames += 1;
        }
    }
    assert!(frames > 200, "only {frames} frames");
}

#[test]
fn every_kind_of_message_has_a_type() {
    for (_, lines) in transcripts() {
        for Line { down, message, .. } in lines {
            let route = &message.route;
            assert!(!matches!(route.source, Source::Other(_)), "{route:?}");
            assert!(!matches!(route.group, Group::Other(_)), "{route:?}");
            assert!(!matches!(route.operation, Operation::Other(_)), "{route:?}");
            // Reports of the device twin have paths of their own, which this project does not parse.
            let is_report = route.source == Source::Twin;
            assert!(is_report || !matches!(route.resource, ResourcePath::Other(_)), "{route:?}");
            check_content(&message);
            if down {
                let told = Down::of(&kinds(), message.clone());
                // This project supports neither devices nor a message bus.
                let source = &message.route.source;
                let is_unused = [Source::DeviceController, Source::RouterEventBus].contains(source);
                let known = matches!(told, Down::Reply(..) | Down::Deliver(..));
                assert!(known || is_unused && matches!(told, Down::Other(_)), "{told:?}");
            } else {
                let told = Up::of(message.clone());
                assert!(!matches!(told, Up::Stray | Up::Control(_) | Up::Failure { .. }), "{told:?}");
                if let Up::Request(request) = told {
                    assert_ne!(Shape::of(&request), Shape::Unknown, "{:?}", request.route);
                }
            }
        }
    }
}

/// The object that a message, a delivery or an answer, gives the edge.
fn given(message: &Message) -> Option<Change> {
    match Down::of(&kinds(), message.clone()) {
        Down::Deliver(_, change) => Some(change),
        Down::Reply(_, reply) => Down::carried(&reply),
        Down::Broken(_, why) => panic!("{:?}: {why}", message.route),
        _ => None,
    }
}

fn object_of(change: &Change) -> Option<Value> {
    let Change::Upsert(object) = change else { return None };
    Some(serde_json::from_slice(&object.body).expect("JSON"))
}

/// Converts an object as Go's typed encoders would: no kind, no apiVersion, nulls for unset fields.
fn typed(content: &mut Value) {
    let object = if content.get("Object").is_some() { &mut content["Object"] } else { content };
    if !object["metadata"].is_object() {
        return;
    }
    let members = object.as_object_mut().expect("an object");
    members.remove("kind");
    members.remove("apiVersion");
    for member in ["items", "endpoints", "ports", "subsets", "data", "labels"] {
        members.entry(member).or_insert(Value::Null);
    }
    let metadata = object["metadata"].as_object_mut().expect("checked");
    metadata.insert("creationTimestamp".to_owned(), Value::Null);
    metadata.entry("annotations").or_insert(Value::Null);
}

/// A KubeEdge cloud omits kind and apiVersion in objects of typed informers.
#[test]
fn untyped_objects_are_stored_like_typed_ones() {
    let (mut stripped, mut kinds) = (0, BTreeSet::new());
    for (_, lines) in transcripts() {
        for line in lines.iter().filter(|line| line.down) {
            let Some(said) = given(&line.message) else { continue };
            let Some(whole) = object_of(&said) else { continue };
            let mut frame = line.frame.clone();
            typed(&mut frame["content"]);
            let message = kubeedge::decode(&bytes(&frame)).expect("a message");
            let change = given(&message).expect("an object");
            let held = object_of(&change).expect("an object");
            assert_eq!(change.key(), said.key());
            assert_eq!((&held["kind"], &held["apiVersion"]), (&whole["kind"], &whole["apiVersion"]));
            assert!(held["kind"].is_string() && held["apiVersion"].is_string(), "{held}");
            kinds.insert(held["kind"].to_string());
            stripped += 1;
        }
    }
    assert!(stripped > 10 && kinds.len() > 3, "{stripped} of {kinds:?}");
}

/// A frame of a dynamic controller, written from the protocol.
fn frame(path: &str, operation: &str, content: &Value) -> Value {
    serde_json::json!({
        "header": {"msg_id": "m", "timestamp": 1, "resourceversion": "77", "sync": false},
        "route": {"source": "dynamiccontroller", "group": "resource", "operation": operation, "resource": path},
        "content": content,
    })
}

fn metadata(name: &str) -> Value {
    serde_json::json!({
        "name": name, "namespace": "default", "uid": "u-1", "resourceVersion": "77", "creationTimestamp": null,
        "labels": null, "ownerReferences": null, "managedFields": null,
    })
}

#[test]
fn typed_deliveries_of_a_dynamic_controller_are_held() {
    for (path, kind, version, resource) in [
        ("default/endpointslice/echo-25h7p", "EndpointSlice", "discovery.k8s.io/v1", "endpointslices"),
        ("default/deployment/echo", "Deployment", "apps/v1", "deployments"),
        ("default/ingress/echo", "Ingress", "networking.k8s.io/v1", "ingresses"),
        ("default/networkpolicy/echo", "NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
        ("default/service/echo", "Service", "v1", "services"),
        ("default/endpoints/echo", "Endpoints", "v1", "endpoints"),
    ] {
        let name = path.rsplit('/').next().expect("a name");
        let mut content = serde_json::json!({
            "metadata": metadata(name), "spec": {}, "status": {}, "endpoints": null, "ports": null, "subsets": null,
        });
        for operation in ["insert", "update", "delete"] {
            let message = kubeedge::decode(&bytes(&frame(path, operation, &content))).expect(path);
            let change = given(&message).unwrap_or_else(|| panic!("{path} {operation} is not held"));
            assert_eq!((&*change.key().resource().name, change.key().name()), (resource, name));
            match (operation, object_of(&change)) {
                ("delete", None) => {}
                (_, Some(held)) => {
                    assert_eq!(
                        (held["kind"].as_str(), held["apiVersion"].as_str()),
                        (Some(kind), Some(version))
                    );
                    assert!(
                        held["endpoints"].is_null() && held["status"].is_object(),
                        "the rest must be unchanged"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        // Null and the empty string count as missing too.
        content["kind"] = Value::Null;
        content["apiVersion"] = "".into();
        let message = kubeedge::decode(&bytes(&frame(path, "insert", &content))).expect(path);
        assert_eq!(object_of(&given(&message).expect(path)).expect(path)["kind"], kind);
    }
}

#[test]
fn typed_deliveries_of_other_kinds_are_those_of_discovery_or_refused_alone() {
    let unknown = frame("default/widget/w", "insert", &serde_json::json!({"metadata": metadata("w")}));
    let message = kubeedge::decode(&bytes(&unknown)).expect("a message");
    assert!(matches!(
        Down::of(&Kinds::default(), message.clone()),
        Down::Broken(_, Broken::UnknownKind(why)) if why.contains("widget")
    ));
    // The cluster's discovery document names the kind; an object of an unknown kind does not end the session.
    let entry = serde_json::json!({"resource": "widgetry", "responseKind": {"kind": "Widget"}});
    let version = serde_json::json!({"version": "v3", "resources": [entry]});
    let document =
        serde_json::json!({"items": [{"metadata": {"name": "example.org"}, "versions": [version]}]});
    let kinds = Arc::new(Kinds::discovered(document.to_string().as_bytes()).expect("a document"));
    let node = NodeId::parse("n").expect("a name");
    let mut session = EdgeSession::new(EdgeConfig::new(node, 0, [4; 16]), Moment::default());
    session.handle_document(Moment::default(), &bytes(&unknown)).expect("the session continues");
    assert!(session.take_unknown_kind() && !session.take_unknown_kind());
    assert!(session.poll_event().is_none(), "nothing is delivered");
    session.learn(Arc::clone(&kinds));
    for (operation, content) in [
        ("insert", serde_json::json!({"metadata": metadata("w")})),
        ("update", serde_json::json!({"metadata": metadata("w"), "items": null})),
        ("delete", serde_json::json!({"metadata": metadata("w")})),
        ("delete", Value::Null),
    ] {
        let message =
            kubeedge::decode(&bytes(&frame("default/widget/w", operation, &content))).expect("a message");
        let Down::Deliver(_, change) = Down::of(&kinds, message) else { panic!("{operation}") };
        assert_eq!(change.key().resource().to_string(), "example.org/v3/widgetry", "{operation}");
        if let Some(held) = object_of(&change) {
            let said = (held["kind"].as_str(), held["apiVersion"].as_str());
            assert_eq!(said, (Some("Widget"), Some("example.org/v3")), "{operation}");
        }
    }
    session.handle_document(Moment::default(), &bytes(&unknown)).expect("known now");
    assert!(!session.take_unknown_kind());
    assert!(matches!(session.poll_event(), Some(EdgeEvent::Deliver { .. })));
}

/// Records of MetaServer and wrappers can be parsed as such without loss.
fn check_content(message: &Message) {
    let (content, value) = (&message.content, || message.content.read::<Value>().expect("JSON"));
    match &message.route.resource {
        ResourcePath::ApplicationReply | ResourcePath::Null => {
            let again: Value =
                Application::read(content).expect("a record").to_content().read().expect("JSON");
            assert_eq!(again, value());
        }
        ResourcePath::WatchSync => {
            let all = Application::read_all(content).expect("records");
            assert_eq!(serde_json::to_value(all).expect("JSON"), value());
        }
        ResourcePath::Object(path)
            if message.route.operation == Operation::Response && content.is_object() =>
        {
            let wrapped = value().get("Err").is_some();
            let outcome = Outcome::read(content).expect("an object");
            let named = matches!(path.resource_type, ResourceType::Lease | ResourceType::PodPatch);
            assert!(!named || wrapped);
            if let (true, Outcome::Done(object)) = (wrapped, outcome) {
                assert_eq!(object.read::<Value>().expect("JSON"), value()["Object"]);
            }
        }
        _ => {}
    }
}

/// The answers of a KubeEdge cloud pass our cloud session unchanged, with two exceptions. The object beside an error is
/// empty in ours, because every edge only checks its presence. A status in place of an object, which an edge would
/// store, is an error in ours (docs/reference/kubeedge.md#safe-answers).
#[test]
fn answers_of_a_kubeedge_cloud_keep_their_form() {
    let mut answered = 0;
    for (node, lines) in transcripts() {
        let replies: BTreeMap<String, &Line> = lines
            .iter()
            .filter(|line| line.down)
            .filter_map(|line| Some((line.message.header.parent.as_ref()?.to_string(), line)))
            .collect();
        let mut config = CloudConfig::new(NodeId::parse(&node).expect("a name"), epoch(), 0, [3; 16]);
        config.window = 64;
        let (view, now) = (Cluster::unknown(), Moment::default());
        let mut session = CloudSession::new(config, Ledger::default(), now, &view);
        for line in lines.iter().filter(|line| !line.down) {
            session.handle_document(now, &bytes(&line.frame)).expect("a good frame");
            while let Some(event) = session.poll_event() {
                if let CloudEvent::Request(request) = event {
                    let id = line.message.header.id.to_string();
                    let reply = replies.get(&id).expect("KubeEdge has answered everything here");
                    let body = ReplyBody::Message(Box::new(reply.message.clone()));
                    session.reply(Reply { id: request.id, body });
                    compare(&mut session, reply, &view);
                    answered += 1;
                }
            }
            // Confirmations of the device twin, which KubeEdge clouds omit.
            while session.poll_transmit(now, &view).is_some() {}
        }
    }
    assert!(answered > 50, "only {answered} answers");
}

fn compare(session: &mut CloudSession, expected: &Line, view: &Cluster) {
    let now = Moment::default();
    let document = session.poll_transmit(now, view).or_else(|| {
        // The object of the answer must be in the ledger first.
        let write = session.poll_ledger(now, view).expect("a reason to wait");
        session.ledger_saved(write.number);
        session.poll_transmit(now, view)
    });
    let document = document.expect("an answer").to_bytes();
    let mut given: Value = serde_json::from_slice(&document).expect("JSON");
    let mut wanted = expected.frame.clone();
    if let Some(message) = wanted.pointer("/content/ErrStatus/message").cloned() {
        wanted["route"]["operation"] = "error".into();
        wanted["content"] = message;
    }
    for frame in [&mut given, &mut wanted] {
        frame["header"]["msg_id"] = Value::Null;
        frame["header"]["timestamp"] = Value::Null;
        if frame["content"]["Err"].is_object() && frame["content"]["Object"].is_object() {
            frame["content"]["Object"] = Value::Null;
        }
    }
    assert_eq!(given, wanted);
}

/// Our edge session acknowledges what the KubeEdge edge has acknowledged, with equal acknowledgements.
#[test]
fn our_edge_acknowledges_as_the_kubeedge_edge_did() {
    for (node, lines) in transcripts() {
        let connections: BTreeSet<u64> = lines.iter().map(|line| line.connection).collect();
        for connection in connections {
            let lines = || lines.iter().filter(|line| line.connection == connection);
            let pushes: BTreeSet<String> = lines()
                .filter(|line| line.down && line.message.header.parent.is_none())
                // The requester does not wait for answers about memberships and published messages.
                .filter(|line| ![Group::Twin, Group::User].contains(&line.message.route.group))
                .map(|line| line.message.header.id.to_string())
                .collect();
            let acks = |message: &Message| {
                message.header.parent.as_ref().is_some_and(|id| pushes.contains(&id.to_string()))
            };
            let expected: BTreeSet<String> = lines()
                .filter(|line| !line.down && acks(&line.message))
                .map(|line| ack(&line.message))
                .collect();
            let config = EdgeConfig::new(NodeId::parse(&node).expect("a name"), 0, [4; 16]);
            let mut session = EdgeSession::new(config, Moment::default());
            session.learn(kinds());
            let mut given = BTreeSet::new();
            for line in lines().filter(|line| line.down) {
                session.handle_document(Moment::default(), &bytes(&line.frame)).expect("a good frame");
                while let Some(event) = session.poll_event() {
                    let EdgeEvent::Deliver { seq, .. } = event else { panic!("{event:?}") };
                    session.committed(Moment::default(), seq);
                }
                while let Some(document) = session.poll_transmit(Moment::default()) {
                    let message = kubeedge::decode(&document.to_bytes()).expect("own output");
                    if acks(&message) {
                        given.insert(ack(&message));
                    }
                }
            }
            let missing: Vec<_> = expected.difference(&given).collect();
            assert!(missing.is_empty(), "{missing:?}");
            // The last pushes may not have been acknowledged before the connection ended.
            assert_eq!(given.len(), pushes.len());
        }
    }
}

fn ack(message: &Message) -> String {
    let parent = message.header.parent.as_ref().expect("an acknowledgement");
    format!("{parent} {:?} {:?}", message.route, message.content.as_text())
}

/// The KubeEdge edge acknowledged everything that a KubeEdge cloud waits for: the table of classes is correct.
#[test]
fn every_message_is_classified() {
    for (_, lines) in transcripts() {
        let acked: BTreeSet<String> = lines
            .iter()
            .filter(|line| !line.down)
            .filter_map(|line| line.message.header.parent.as_ref().map(ToString::to_string))
            .collect();
        let last = lines.last().map(|line| line.connection);
        for line in lines.iter().filter(|line| line.down && Down::wants_acknowledgement(&line.message)) {
            let id = line.message.header.id.to_string();
            assert!(acked.contains(&id) || Some(line.connection) == last, "{:?}", line.message.route);
        }
    }
}
