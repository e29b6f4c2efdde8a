use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::body::ObjectMetadata;
use crate::endpoints::{Link, ServiceName};
use crate::graph::Graph;
use crate::labels::GRID_SELECTOR;
use crate::labels::TOPOLOGY_KEYS;
use crate::node::Node;
use crate::reach::Reach;

/// Labels written `k=a,z=1`.
fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Nodes written as `n1{k=a} n2{k=b,z=1}`; `n3!{k=a}` is voted dead.
fn set_nodes(graph: &mut Graph<String>, text: &str) {
    for one in text.split_whitespace() {
        let (name, rest) = one.split_once('{').unwrap();
        let node = Node { labels: labels(rest.trim_end_matches('}')), unhealthy: name.ends_with('!') };
        graph.set_node(name.trim_end_matches('!'), Some(node));
    }
}

/// Endpoints written `1@n1 2@n2 3`.
fn endpoints(text: &str) -> Vec<Value> {
    let endpoint = |one: &str| match one.split_once('@') {
        Some((address, node)) => json!({"addresses": [address], "nodeName": node, "hints": {"forZones": []}}),
        None => json!({"addresses": [one]}),
    };
    text.split_whitespace().map(endpoint).collect()
}

fn slice(name: &str, service: Option<&str>, text: &str) -> Value {
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {}},
        "addressType": "IPv4", "endpoints": endpoints(text), "ports": [{"port": 80}],
    });
    if let Some(service) = service {
        slice["metadata"]["labels"]["kubernetes.io/service-name"] = service.into();
    }
    slice
}

/// What node n1 sees of an object.
fn seen(graph: &Graph<String>, carrier: Carrier, object: &Value) -> Value {
    let body = object.to_string();
    let link = Link::of(carrier, body.as_bytes()).unwrap();
    let pruned = prune(carrier, body.as_bytes(), &graph.verdict(&link)).unwrap();
    serde_json::from_slice(&pruned).unwrap()
}

fn addresses(slice: &Value) -> String {
    let addresses = slice["endpoints"].as_array().unwrap().iter();
    addresses.map(|endpoint| endpoint["addresses"][0].as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

fn annotated(annotation: &str, of_grid: bool) -> Reach {
    let labels = if of_grid { labels(&format!("{GRID_SELECTOR}=g")) } else { BTreeMap::new() };
    Reach::said_by(&labels, &[(TOPOLOGY_KEYS.to_owned(), annotation.to_owned())].into())
}

/// Rows P1 to P15, P30, P31, P33 and P34 of docs/reference/superedge.md#pruning-rows: (row, nodes, keys of the Service,
/// endpoints, kept).
#[test]
fn endpoints_of_other_units_are_cut() {
    let k = || annotated(r#"["k"]"#, true);
    for (row, nodes, reach, given, kept) in [
        ("P1", "n1{k=a} n2{k=b}", Some(k()), "1@n1 2@n2", "1"),
        ("P2", "n1{k=a} n2{k=a} n3{k=b}", Some(k()), "2@n2 3@n3 1@n1", "2 1"),
        ("P3", "n1{} n2{k=b}", Some(k()), "1@n1 2@n2", ""),
        ("P4", "n2{k=b}", Some(k()), "1@n1 2@n2", ""),
        ("P5", "n1{k=a} n2{}", Some(k()), "1@n1 2@n2", "1"),
        ("P6", "n1{k=a}", Some(k()), "1@n1 2@n2", "1"),
        ("P7", "n1{k=a}", Some(k()), "1@n1 9", "1"),
        ("P8", "n1{k=a}", Some(Reach::Everywhere), "1@n1 9 2@n2", "1 9 2"),
        ("P9", "n1{k=a}", None, "1@n1 9", ""),
        ("P11", "n1{k=a}", Some(annotated("zone", true)), "1@n1", ""),
        ("P12", "n1{k=a}", Some(annotated("zone", false)), "1@n1 2@n2", "1 2"),
        ("P13", "n1{k=a}", Some(annotated("[]", true)), "1@n1 2@n2", "1 2"),
        ("P14", "n1{k=a,z=1} n2{k=b,z=1}", Some(annotated(r#"["k","z"]"#, true)), "2@n2", "2"),
        ("P15", "n1{k=} n2{k=}", Some(k()), "1@n1 2@n2", ""),
        ("P33", "n1{k=a} n2!{k=a}", Some(k()), "1@n1 2@n2", "1"),
        ("P33 self", "n1!{k=a} n2{k=a}", Some(k()), "1@n1 2@n2", "1 2"),
        ("P33 normal", "n1{k=a} n2!{k=a}", Some(Reach::Everywhere), "1@n1 2@n2", "1 2"),
        ("P34", "n1{k=a} n2!{k=a} n2{k=a}", Some(k()), "1@n1 2@n2", "1 2"),
        ("what is no key closes", "n1{k=a} n2{k=a}", Some(annotated(r#"[""]"#, true)), "1@n1 2@n2", ""),
        ("numbers are no keys", "n1{k=a}", Some(annotated("[1]", true)), "1@n1", ""),
    ] {
        let mut graph = Graph::new("n1");
        set_nodes(&mut graph, nodes);
        graph.set_service(ServiceName::new("default", "s"), reach);
        let found = seen(&graph, Carrier::EndpointSlice, &slice("s-1", Some("s"), given));
        assert_eq!(addresses(&found), kept, "{row}");
    }
}

#[test]
fn a_service_without_the_annotation_is_open() {
    assert_eq!(Reach::said_by(&labels("superedge.io/grid-selector=g"), &BTreeMap::new()), Reach::Everywhere);
    let body = json!({"metadata": {"name": "s", "annotations": {TOPOLOGY_KEYS: r#"["k","z"]"#}}});
    let reach = Reach::of(body.to_string().as_bytes()).unwrap();
    assert_eq!(reach, Reach::closed_by(&["k", "z"]));
}

/// Rows P16 to P20 and P23 of docs/reference/superedge.md#pruning-rows.
#[test]
fn slices_belong_to_the_service_of_their_label() {
    let mut graph = Graph::new("n1");
    set_nodes(&mut graph, "n1{k=a} n2{k=b}");
    let long = "s".repeat(60);
    for service in ["web-svc", &long] {
        graph.set_service(ServiceName::new("default", service), Some(annotated(r#"["k"]"#, true)));
    }
    graph.set_service(ServiceName::new("default", "web-svc-extra"), Some(Reach::Everywhere));
    for (name, service, kept) in [
        ("web-svc-abc12", Some("web-svc"), "1"),
        ("custom", Some("web-svc"), "1"),
        ("web-svc-extra-abc12", Some("web-svc"), "1"),
        (&format!("{}-abc12", &long[..52]), Some(&*long), "1"),
        ("web-svc-abc12", None, "1 2"),
    ] {
        let found = seen(&graph, Carrier::EndpointSlice, &slice(name, service, "1@n1 2@n2"));
        assert_eq!(addresses(&found), kept, "{name} {service:?}");
    }
    let mut six = slice("web-svc-v6", Some("web-svc"), "fd00::1@n1 fd00::2@n2");
    six["addressType"] = "IPv6".into();
    assert_eq!(addresses(&seen(&graph, Carrier::EndpointSlice, &six)), "fd00::1");
    let mut elsewhere = slice("web-svc-abc12", Some("web-svc"), "1@n1 2@n2");
    elsewhere["metadata"]["namespace"] = "other".into();
    assert_eq!(addresses(&seen(&graph, Carrier::EndpointSlice, &elsewhere)), "", "no such Service there");
}

/// Rows P10, P21, P22 and P32 of docs/reference/superedge.md#pruning-rows: kept parts are unchanged, down to their
/// text.
#[test]
fn everything_else_stays_as_it_was() {
    let kept = r#"{ "nodeName":"n1","x":[1, 2], "conditions":{"ready":false,"terminating":true},"hints":{"forZones":[{"name":"z"}]}}"#;
    let text = |endpoints: &str| {
        format!(
            r#"{{"kind":"EndpointSlice","metadata":{{"name":"s-1","namespace":"default","labels":{{"kubernetes.io/service-name":"s"}}}},"new":{{"endpoints":1}}, "endpoints":{endpoints},"ports":[{{"port":80}}]}}"#
        )
    };
    let all = text(&format!(r#"[{{"nodeName":"n2"}} , {kept},{{"nodeName":null}},{{}}]"#));
    let mut graph = Graph::<String>::new("n1");
    set_nodes(&mut graph, "n1{k=a}");
    let cut = |graph: &Graph<String>, body: &str| {
        let link = Link::of(Carrier::EndpointSlice, body.as_bytes()).unwrap();
        let pruned = prune(Carrier::EndpointSlice, body.as_bytes(), &graph.verdict(&link)).unwrap();
        String::from_utf8(pruned.into_owned()).unwrap()
    };
    assert_eq!(cut(&graph, &all), text("[]"));
    graph.set_service(ServiceName::new("default", "s"), Some(annotated(r#"["k"]"#, true)));
    assert_eq!(cut(&graph, &all), text(&format!("[{kept}]")));
    for nothing in ["null", "[]"] {
        assert_eq!(cut(&graph, &text(nothing)), text(nothing));
    }
    graph.set_service(ServiceName::new("default", "s"), Some(Reach::Everywhere));
    assert_eq!(cut(&graph, &all), all);
}

#[test]
fn endpoints_are_cut_in_both_lists_of_each_subset() {
    let address = |ip: &str, node: &str| json!({"ip": ip, "nodeName": node, "targetRef": {"kind": "Pod"}});
    let object = json!({
        "metadata": {"name": "s", "namespace": "default"},
        "subsets": [
            {"addresses": [address("1", "n1"), address("2", "n2")], "notReadyAddresses": [address("3", "n2")], "ports": [{"port": 1}]},
            {"notReadyAddresses": [{"ip": "4"}, address("5", "n1")], "ports": [{"port": 2}]},
            {"addresses": null},
        ],
    });
    let mut graph = Graph::new("n1");
    set_nodes(&mut graph, "n1{k=a} n2{k=b}");
    graph.set_service(ServiceName::new("default", "s"), Some(annotated(r#"["k"]"#, true)));
    let link = Link::of(Carrier::Endpoints, object.to_string().as_bytes()).unwrap();
    assert_eq!(link.service, Some(ServiceName::new("default", "s")));
    assert!(link.mentions("n1") && link.mentions("n2") && !link.mentions("n3"));
    let mut expected = object.clone();
    expected["subsets"][0]["addresses"] = json!([address("1", "n1")]);
    expected["subsets"][0]["notReadyAddresses"] = json!([]);
    expected["subsets"][1]["notReadyAddresses"] = json!([address("5", "n1")]);
    assert_eq!(seen(&graph, Carrier::Endpoints, &object), expected);
}

#[test]
fn unreadable_objects_are_not_shown() {
    let nothing = Verdict::Nothing;
    for text in
        ["", "null", "[]", r#"{"endpoints":{}}"#, r#"{"endpoints":[1]}"#, r#"{"endpoints":[{"nodeName":1}]}"#]
    {
        assert!(prune(Carrier::EndpointSlice, text.as_bytes(), &nothing).is_err(), "{text}");
        assert!(Link::of(Carrier::EndpointSlice, text.as_bytes()).is_err(), "{text}");
    }
    assert!(prune(Carrier::Endpoints, br#"{"subsets":[{"addresses":[[]]}]}"#, &nothing).is_err());
    assert!(ObjectMetadata::of(b"{}").is_err());
}
