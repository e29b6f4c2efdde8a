use proptest::prelude::*;

use super::*;

fn node(name: &str) -> NodeId {
    NodeId::parse(name).expect(name)
}

fn wire(text: &str) -> ResourcePath {
    ResourcePath::parse_wire(text).expect(text)
}

fn cloud(text: &str) -> ResourcePath {
    ResourcePath::parse_cloud(text).expect(text)
}

/// (inside the cloud, on the wire, target): the rows of docs/reference/kubeedge.md#resource-paths.
const BOTH_SPELLINGS: &[(&str, &str, &str)] = &[
    ("node/edge1/default/pod/nginx", "default/pod/nginx", "edge1"),
    ("node/edge1/default/podlist", "default/podlist", "edge1"),
    ("node/edge1/null/node/edge1", "null/node/edge1", "edge1"),
    ("node/edge1/default/certificatesigningrequest/", "default/certificatesigningrequest/", "edge1"),
    ("node/edge1/node/pod/nginx", "node/pod/nginx", "edge1"),
    ("node/edge1/membership", "membership", "edge1"),
    ("node/edge1/membership/detail", "membership/detail", "edge1"),
    ("node/edge1/twin", "twin", "edge1"),
    ("node/edge1/twin/cloud_updated", "twin/cloud_updated", "edge1"),
    ("node/edge1/k8s/ca.crt", "k8s/ca.crt", "edge1"),
    ("node/edge1/ignore/Application/ignore", "ignore/Application/ignore", "edge1"),
    ("node/edge1/watchapp/sync", "watchapp/sync", "edge1"),
    ("node/edge1/a/b/c/d/e/f/g/h", "a/b/c/d/e/f/g/h", "edge1"),
    ("node/edge1/8080:/v1/hello", "8080:/v1/hello", "edge1"),
    ("node/nodeid/default/rulestatus/r1", "default/rulestatus/r1", "nodeid"),
    (
        "operations.kubeedge.io/v1alpha2/nodeupgradejob/j1/node/edge1",
        "operations.kubeedge.io/v1alpha2/nodeupgradejob/j1/node/edge1",
        "edge1",
    ),
    ("task/t1/node/edge1", "task/t1/node/edge1", "edge1"),
];

#[test]
fn paths_are_trimmed_prefixed_and_targeted() {
    for (inside, outside, target) in BOTH_SPELLINGS {
        let path = cloud(inside);
        assert_eq!(path.to_string(), *inside);
        assert_eq!(path.to_wire(), *outside);
        assert_eq!(path.target(), Some(&node(target)), "{inside}");
        assert_eq!(wire(outside).with_node(node(target)), path, "{outside}");
    }
}

#[test]
fn paths_without_node_have_no_target_and_stay_unchanged() {
    for text in ["rule/r1", "ruleendpoint/e1", "node", "null", "node/edge1", "default/pod/nginx", ""] {
        let path = cloud(text);
        assert_eq!(path.target(), None, "{text}");
        assert_eq!(path.to_wire(), text);
    }
    assert_eq!(cloud("rule/r1").local, LocalPath::Rule("r1".into()));
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
fn a_namespace_called_rule_is_no_rule_on_the_wire() {
    assert!(matches!(wire("rule/podlist").local, LocalPath::Object(_)));
    assert!(matches!(wire("rule/pod/x").local, LocalPath::Object(_)));
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
        assert_eq!(wire(text).local, LocalPath::Other(text.into()));
    }
}

#[test]
fn bad_paths_are_refused_with_a_reason() {
    assert!(ResourcePath::parse_wire(&"x".repeat(limits::RESOURCE_LEN_MAX + 1)).is_err());
    assert!(ResourcePath::parse_wire("default/pod/a\0b").is_err());
    let refused = ResourcePath::parse_cloud("node/Not A Name/default/pod/x").expect_err("no node name");
    assert!(refused.to_string().contains("node name"), "{refused}");
}

proptest! {
    #[test]
    fn any_text_survives_the_wire_spelling(text in "[a-z/:.$]{0,40}|(node|null|rule|task|k8s)(/[a-z.]{0,4}){0,6}") {
        prop_assert_eq!(wire(&text).to_wire(), text);
    }

    #[test]
    fn any_text_survives_both_spellings(local in "[a-z]{1,4}(/[a-z]{0,4}){0,5}") {
        let text = format!("node/edge1/{local}");
        let path = cloud(&text);
        prop_assert_eq!(path.to_string(), &text[..]);
        prop_assert_eq!(path.to_wire(), local);
    }
}
