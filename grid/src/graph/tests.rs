//! Random changes, and an oracle that knows only the rules: it reads whole objects and recomputes everything.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::endpoints::Carrier;
use crate::prune::prune;

const ME: &str = "n0";

/// One change of the cluster.
#[derive(Debug, Clone)]
enum Change {
    /// Labels by key, and a vote; none deletes the node.
    Node(usize, Option<(Vec<Option<usize>>, bool)>),
    /// Text of the annotation, and whether the Service is of a grid; none deletes the Service.
    Service(usize, Option<(Option<&'static str>, bool)>),
    /// Service of the label, and nodes of the endpoints; none deletes the slice.
    Slice(usize, Option<(Option<usize>, Vec<Option<usize>>)>),
}

const KEYS: [&str; 2] = ["k", "z"];
const UNITS: [&str; 3] = ["", "a", "b"];
const ANNOTATIONS: [&str; 5] = [r#"["k"]"#, r#"["z"]"#, r#"["k","z"]"#, "[]", "zone"];

fn change() -> impl Strategy<Value = Change> {
    let labels = vec(option::of(0..UNITS.len()), KEYS.len());
    let annotation = option::of(proptest::sample::select(&ANNOTATIONS[..]));
    prop_oneof![
        (0..4usize, option::weighted(0.8, (labels, any::<bool>()))).prop_map(|(n, to)| Change::Node(n, to)),
        (0..3usize, option::weighted(0.8, (annotation, any::<bool>())))
            .prop_map(|(n, to)| Change::Service(n, to)),
        (0..5usize, option::weighted(0.8, (option::of(0..3usize), vec(option::of(0..5usize), 0..4))))
            .prop_map(|(n, to)| Change::Slice(n, to)),
    ]
}

/// The cluster as whole objects.
#[derive(Default)]
struct Cluster {
    nodes: BTreeMap<String, Value>,
    services: BTreeMap<String, Value>,
    slices: BTreeMap<String, Value>,
}

fn object(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "labels": {}, "annotations": {}}})
}

fn put(objects: &mut BTreeMap<String, Value>, name: &str, to: Option<Value>) {
    match to {
        Some(object) => objects.insert(name.to_owned(), object),
        None => objects.remove(name),
    };
}

impl Cluster {
    /// Makes a change here and in the graph. Returns what may look different according to the graph.
    fn make(&mut self, change: &Change, graph: &mut Graph<String>) -> Vec<String> {
        match change {
            Change::Node(number, to) => {
                let name = format!("n{number}");
                let node = to.as_ref().map(|(units, voted)| {
                    let mut node = object(&name);
                    for (key, unit) in KEYS.iter().zip(units) {
                        if let Some(unit) = unit {
                            node["metadata"]["labels"][key] = UNITS[*unit].into();
                        }
                    }
                    if *voted {
                        node["metadata"]["annotations"]["nodeunhealth"] = "yes".into();
                    }
                    node
                });
                let facts = node.as_ref().map(|node| Node::of(node.to_string().as_bytes()).unwrap());
                put(&mut self.nodes, &name, node);
                graph.set_node(&name, facts)
            }
            Change::Service(number, to) => {
                let name = format!("s{number}");
                let service = to.as_ref().map(|(annotation, of_grid)| {
                    let mut service = object(&name);
                    if let Some(text) = annotation {
                        service["metadata"]["annotations"]["topologyKeys"] = (*text).into();
                    }
                    if *of_grid {
                        service["metadata"]["labels"]["superedge.io/grid-selector"] = "g".into();
                    }
                    service
                });
                let reach =
                    service.as_ref().map(|service| Reach::of(service.to_string().as_bytes()).unwrap());
                put(&mut self.services, &name, service);
                graph.set_service(ServiceName::new("default", &name), reach)
            }
            Change::Slice(number, to) => {
                let name = format!("e{number}");
                let slice = to.as_ref().map(|(service, nodes)| {
                    let mut slice = object(&name);
                    if let Some(service) = service {
                        slice["metadata"]["labels"]["kubernetes.io/service-name"] =
                            format!("s{service}").into();
                    }
                    let endpoint = |node: &Option<usize>| match node {
                        Some(node) => json!({"nodeName": format!("n{node}")}),
                        None => json!({}),
                    };
                    slice["endpoints"] = nodes.iter().map(endpoint).collect();
                    slice
                });
                let read =
                    |slice: &Value| Link::of(Carrier::EndpointSlice, slice.to_string().as_bytes()).unwrap();
                graph.set_link(name.clone(), slice.as_ref().map(read));
                put(&mut self.slices, &name, slice);
                vec![name]
            }
        }
    }

    /// Whether a change may make a slice look different.
    fn concerns(&self, change: &Change, slice: &str) -> bool {
        let of = |slice: &Value| {
            slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str().map(str::to_owned)
        };
        match change {
            Change::Slice(number, _) => *slice == format!("e{number}"),
            Change::Service(number, _) => of(&self.slices[slice]) == Some(format!("s{number}")),
            Change::Node(number, _) => {
                let (node, slice) = (format!("n{number}"), &self.slices[slice]);
                let service =
                    of(slice).and_then(|service| self.services.get(&service)).unwrap_or(&Value::Null);
                let annotation =
                    service["metadata"]["annotations"]["topologyKeys"].as_str().unwrap_or_default();
                let keys: Vec<String> = serde_json::from_str(annotation).unwrap_or_default();
                let endpoints = slice["endpoints"].as_array().unwrap();
                let on_node = endpoints.iter().any(|endpoint| endpoint["nodeName"] == node);
                !keys.is_empty() && (node == ME || on_node)
            }
        }
    }

    /// What the node must see of a slice, a literal implementation of the rules of
    /// docs/reference/superedge.md#pruning.
    fn expected(&self, slice: &Value) -> Value {
        let mut expected = slice.clone();
        let endpoints = expected["endpoints"].as_array_mut().unwrap();
        let Some(name) = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str() else {
            return expected;
        };
        let Some(service) = self.services.get(name) else {
            endpoints.clear();
            return expected;
        };
        let Some(annotation) = service["metadata"]["annotations"]["topologyKeys"].as_str() else {
            return expected;
        };
        let Ok(keys) = serde_json::from_str::<Vec<String>>(annotation) else {
            if service["metadata"]["labels"]["superedge.io/grid-selector"].is_string() {
                endpoints.clear();
            }
            return expected;
        };
        if keys.is_empty() {
            return expected;
        }
        endpoints.retain(|endpoint| {
            let Some(own) = self.nodes.get(ME) else { return false };
            let Some(name) = endpoint["nodeName"].as_str() else { return false };
            let Some(node) = self.nodes.get(name) else { return false };
            if name != ME && node["metadata"]["annotations"]["nodeunhealth"] == "yes" {
                return false;
            }
            keys.iter().any(|key| {
                let value = |node: &Value| node["metadata"]["labels"][key].as_str().unwrap_or("").to_owned();
                !value(own).is_empty() && value(own) == value(node)
            })
        });
        expected
    }
}

fn shown(cluster: &Cluster, graph: &Graph<String>, name: &str) -> Option<Value> {
    let body = cluster.slices.get(name)?.to_string();
    let link = Link::of(Carrier::EndpointSlice, body.as_bytes()).unwrap();
    let pruned = prune(Carrier::EndpointSlice, body.as_bytes(), &graph.verdict(&link)).unwrap();
    Some(serde_json::from_slice(&pruned).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(tombolo_testkit::cases(512)))]

    /// A reader that recomputes what the graph names after each change always shows what the rules require.
    #[test]
    fn recomputation_is_sufficient_and_minimal(changes in vec(change(), 1..60)) {
        let (mut cluster, mut graph) = (Cluster::default(), Graph::new(ME));
        let mut served: BTreeMap<String, Value> = BTreeMap::new();
        for change in &changes {
            let affected: BTreeSet<String> = cluster.make(change, &mut graph).into_iter().collect();
            for name in &affected {
                prop_assert!(cluster.concerns(change, name), "{:?} does not concern {}", change, name);
            }
            for name in affected {
                let now = shown(&cluster, &graph, &name);
                put(&mut served, &name, now);
            }
            let expected: BTreeMap<String, Value> =
                cluster.slices.iter().map(|(name, slice)| (name.clone(), cluster.expected(slice))).collect();
            prop_assert_eq!(&served, &expected, "after {:?}", change);
        }
    }
}

/// Rows P29, P30 and P31 of docs/reference/superedge.md#pruning-rows.
#[test]
fn change_affects_its_dependents() {
    let mut graph = Graph::new(ME);
    let node =
        |unit: &str| Some(Node { labels: [("k".to_owned(), unit.to_owned())].into(), unhealthy: false });
    let name = |name: &str| ServiceName::new("default", name);
    let closed = || Some(Reach::closed_by(&["k"]));
    for (carrier, service, nodes) in
        [("e1", "s1", &["n0", "n1"][..]), ("e2", "s1", &["n2"]), ("e3", "s2", &["n1"]), ("e4", "s3", &["n1"])]
    {
        let nodes = nodes.iter().map(|node| Box::from(*node)).collect();
        graph.set_link(carrier, Some(Link { service: Some(name(service)), nodes }));
    }
    assert_eq!(graph.set_service(name("s1"), closed()), ["e1", "e2"]);
    assert_eq!(graph.set_service(name("s2"), Some(Reach::Everywhere)), ["e3"]);
    assert_eq!(graph.set_service(name("s2"), Some(Reach::Everywhere)), [] as [&str; 0]);
    assert_eq!(graph.set_service(name("s3"), Some(Reach::closed_by(&["z"]))), ["e4"]);
    assert_eq!(graph.set_node("n1", node("b")), ["e1"]);
    assert_eq!(graph.set_node("n1", node("b")), [] as [&str; 0]);
    assert_eq!(graph.set_node("n1", node("a")), ["e1"]);
    assert_eq!(graph.set_node("n0", node("a")), ["e1", "e2"], "this node's unit decides about all of them");
    assert_eq!(graph.set_service(name("s2"), closed()), ["e3"]);
    assert_eq!(graph.set_node("n1", None), ["e1", "e3"]);
    graph.set_link("e1", None);
    assert_eq!(graph.set_service(name("s1"), None), ["e2"]);
}
