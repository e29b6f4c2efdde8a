//! Messages of dialect `kubeedge` as files, as KubeEdge v1.23 writes them: every later version must read the same from
//! them, and write them again byte by byte (docs/reference/kubeedge.md#json-envelope).
//!
//! `keywords.txt` and `paths.txt` have a line for every keyword of a route and every shape of a path: name here, text on
//! the wire. A line that is no longer true means that KubeEdge nodes are not understood.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use tombolo_proto::kubeedge;
use tombolo_proto::message::{
    Content, Group, Message, MessageId, Operation, ResourcePath, ResourceType, Route, Source,
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/kubeedge")
}

fn file(name: &str) -> String {
    let path = folder().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A message with the identity, the number of milliseconds after the first one, and the route.
fn message(id: &str, after: i64, route: (Source, Group, Operation, &str), content: &str) -> Message {
    let (source, group, operation, resource) = route;
    let resource = ResourcePath::parse_wire(resource).expect("a path");
    let content = Content::from_json(&Bytes::copy_from_slice(content.as_bytes())).expect("JSON");
    let route = Route::new(source, group, operation, resource);
    Message::new(MessageId::parse(id).expect("an id"), 1_786_000_000_000 + after, route, content)
}

fn answer(id: &str, to: &str, after: i64, resource: &str, content: &str) -> Message {
    let route = (Source::EdgeController, Group::Resource, Operation::Response, resource);
    let mut answer = message(id, after, route, content);
    answer.header.parent = Some(MessageId::parse(to).expect("an id"));
    answer
}

/// File name without extension, and the message in the file.
fn expected() -> Vec<(&'static str, Message)> {
    let (edged, meta, resource) = (Source::Edged, Group::Meta, Group::Resource);
    let heartbeat = (Source::WebSocket, resource.clone(), Operation::Keepalive, "node");
    let insert = (Source::EdgeController, resource, Operation::Insert, "default/pod/nginx");
    let patch = (edged.clone(), meta.clone(), Operation::Patch, "default/podpatch/nginx");
    let root = "default/configmap/kube-root-ca.crt";
    let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"nginx","namespace":"default","uid":"U"},"spec":{"nodeName":"edge1"}}"#;
    let patched = r#""{\"metadata\":{\"uid\":\"U\"},\"status\":{\"phase\":\"Running\"}}""#;
    let stored = r#"{"Object":{"metadata":{"name":"nginx"},"spec":{},"status":{}},"Err":null}"#;
    let not_found = r#"{"Object":null,"Err":{"ErrStatus":{"metadata":{},"status":"Failure","message":"leases \"edge1\" not found","reason":"NotFound","details":{"name":"edge1","kind":"leases"},"code":404}}}"#;
    let map = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"kube-root-ca.crt","namespace":"default","resourceVersion":"380"},"data":{}}"#;
    vec![
        ("heartbeat", message("3f0c1d2e-0000-4000-8000-00000000000a", 0, heartbeat, r#""ping""#)),
        ("pod_insert", message("A", 1, insert, pod).with_resource_version("4711")),
        ("pod_ack", answer("B", "A", 50, "default/pod/nginx", r#""OK""#)),
        ("pod_patch", message("C", 100, patch, patched)),
        (
            "pod_patch_answer",
            answer("D", "C", 140, "default/podpatch/nginx", stored).with_resource_version("4715"),
        ),
        ("lease_refused", answer("F", "E", 200, "kube-node-lease/lease/edge1", not_found)),
        ("configmap_query", message("G", 300, (edged, meta, Operation::Query, root), "null")),
        ("configmap_answer", answer("H", "G", 330, root, map).with_resource_version("380")),
        ("every_member", every_member()),
    ]
}

/// What no KubeEdge component sets, and a path and numbers that are passed on unread.
fn every_member() -> Message {
    let route = (Source::parse("s"), Group::parse("g"), Operation::HttpGet, "8080:/v1/hello");
    let mut message = message("J", 0, route, "[1e400,9007199254740993]");
    message.header.timestamp_millis = -1;
    message.header.sync = true;
    message.header.context_type = "channel".to_owned();
    message.route.destination = "d".to_owned();
    message
}

#[test]
fn fixtures_are_read_and_written_as_ever() {
    for (name, message) in expected() {
        let text = file(&format!("{name}.json"));
        let read = kubeedge::decode(&Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(read.unwrap_or_else(|error| panic!("{name}: {error}")), message, "{name}");
        assert_eq!(kubeedge::encode(&message), text, "{name}");
    }
}

#[test]
fn every_message_file_is_expected() {
    let files = fs::read_dir(folder()).expect("fixtures").map(|entry| entry.expect("an entry").path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let files: BTreeSet<String> =
        files.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    let names: BTreeSet<String> = expected().into_iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(files, names);
}

/// Set, name here and text on the wire of every known keyword.
fn keywords() -> BTreeSet<String> {
    macro_rules! lines {
        ($($set:ident),+) => {
            [$($set::KNOWN.iter().map(|word| line(stringify!($set), &format!("{word:?}"), word.as_str()))
                .collect::<Vec<_>>()),+].concat()
        };
    }
    lines!(Operation, ResourceType, Source, Group).into_iter().collect()
}

fn line(set: &str, name: &str, wire: &str) -> String {
    format!("{set} {name} {wire}").trim_end().to_owned()
}

/// A keyword may be added, with a line; the old lines stay.
#[test]
fn keywords_keep_their_meaning() {
    let fixed: BTreeSet<String> = file("keywords.txt").lines().map(str::to_owned).collect();
    assert_eq!(keywords(), fixed);
}

/// A new shape does not compile without a name here, and needs a line in `paths.txt`.
fn shape(path: &ResourcePath) -> &'static str {
    match path {
        ResourcePath::Unset => "Unset",
        ResourcePath::Object(_) => "Object",
        ResourcePath::CaCertificate => "CaCertificate",
        ResourcePath::Keepalive => "Keepalive",
        ResourcePath::Null => "Null",
        ResourcePath::ApplicationReply => "ApplicationReply",
        ResourcePath::WatchSync => "WatchSync",
        ResourcePath::Membership => "Membership",
        ResourcePath::MembershipDetail => "MembershipDetail",
        ResourcePath::Twin => "Twin",
        ResourcePath::TwinCloudUpdated => "TwinCloudUpdated",
        ResourcePath::NodeTask { .. } => "NodeTask",
        ResourcePath::LegacyTask { .. } => "LegacyTask",
        ResourcePath::Other(_) => "Other",
    }
}

#[test]
fn paths_keep_their_meaning() {
    let mut shapes = BTreeSet::new();
    for line in file("paths.txt").lines() {
        let (name, wire) = line.split_once(' ').unwrap_or((line, ""));
        let path = ResourcePath::parse_wire(wire).expect("a path");
        assert_eq!((shape(&path), path.to_wire().as_str()), (name, wire), "{path:?}");
        shapes.insert(name.to_owned());
    }
    assert_eq!(shapes.len(), 14, "{shapes:?}");
}
