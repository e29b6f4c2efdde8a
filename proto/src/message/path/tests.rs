use proptest::prelude::*;

use super::*;

fn wire(text: &str) -> ResourcePath {
    ResourcePath::parse_wire(text).expect(text)
}

/// The rows of docs/reference/kubeedge.md#resource-paths.
const ON_THE_WIRE: [&str; 18] = [
    "node",
    "null",
    "default/pod/nginx",
    "default/podlist",
    "null/node/edge1",
    "default/certificatesigningrequest/",
    "node/pod/nginx",
    "membership",
    "membership/detail",
    "twin",
    "twin/cloud_updated",
    "k8s/ca.crt",
    "ignore/Application/ignore",
    "watchapp/sync",
    "a/b/c/d/e/f/g/h",
    "8080:/v1/hello",
    "operations.kubeedge.io/v1alpha2/nodeupgradejob/j1/node/edge1",
    "task/t1/node/edge1",
];

#[test]
fn paths_are_printed_as_they_were_read() {
    for text in ON_THE_WIRE {
        let path = wire(text);
        assert_eq!((path.to_wire().as_str(), path.to_string().as_str()), (text, text));
    }
    assert_eq!(wire(""), ResourcePath::Unset);
    let node = NodeId::parse("edge1").expect("a name");
    assert_eq!(wire("task/t1/node/edge1"), ResourcePath::LegacyTask { task: "t1".into(), node });
}

#[test]
fn objects_are_taken_apart() {
    let path = wire("kube-node-lease/lease/edge1");
    let object = path.as_object().expect("an object path");
    assert_eq!((object.namespace(), object.name.as_deref()), ("kube-node-lease", Some("edge1")));
    assert_eq!(object.resource_type, ResourceType::Lease);
    assert_eq!(wire("null/node/edge1").as_object().expect("an object path").namespace(), "");
    assert_eq!(ResourcePath::from(ObjectPath::new("", ResourceType::Node, "edge1")), wire("null/node/edge1"));
}

#[test]
fn namespace_called_rule_is_not_a_rule() {
    assert!(matches!(wire("rule/podlist"), ResourcePath::Object(_)));
    assert!(matches!(wire("rule/pod/x"), ResourcePath::Object(_)));
}

#[test]
fn unknown_types_and_shapes_are_kept() {
    let unknown = wire("default/gizmo/g1");
    assert!(matches!(
        unknown.as_object().map(|object| &object.resource_type),
        Some(ResourceType::Other(word)) if word.as_str() == "gizmo"
    ));
    for text in [
        "/pod/x",
        "default//x",
        "default/pod/",
        "$hw/events/node/e/twin",
        "node/connection",
        "task/t/node/No!",
    ] {
        assert_eq!(wire(text), ResourcePath::Other(text.into()));
    }
}

#[test]
fn bad_paths_are_refused_with_a_reason() {
    assert!(ResourcePath::parse_wire(&"x".repeat(limits::RESOURCE_LEN_MAX + 1)).is_err());
    assert!(ResourcePath::parse_wire("default/pod/a\0b").is_err());
}

proptest! {
    #[test]
    fn any_text_round_trips_in_a_path(text in "[a-z/:.$]{0,40}|(node|null|rule|task|k8s)(/[a-z.]{0,4}){0,6}") {
        prop_assert_eq!(wire(&text).to_wire(), text);
    }
}
