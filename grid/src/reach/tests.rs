use tombolo_testkit::{Growth, alone};

use super::*;
use crate::endpoints::ServiceName;
use crate::graph::Graph;
use crate::node::Node;

impl Reach {
    /// The reach of a grid's Service with these keys.
    pub(crate) fn closed_by(keys: &[&str]) -> Self {
        said(&serde_json::json!(keys).to_string(), true)
    }
}

fn said(annotation: &str, of_grid: bool) -> Reach {
    let labels = of_grid.then(|| (GRID_SELECTOR.to_owned(), "g".to_owned())).into_iter().collect();
    Reach::said_by(&labels, &[(TOPOLOGY_KEYS.to_owned(), annotation.to_owned())].into())
}

/// The same rules as Kubernetes' validation of the field of this name.
#[test]
fn topology_keys_are_few_unique_and_valid_label_keys() {
    let numbered = |count: usize| {
        let keys: Vec<String> = (0..count).map(|number| format!("example.com/k{number}")).collect();
        serde_json::json!(keys).to_string()
    };
    for good in [r#"["k"]"#, r#"["k","*"]"#, r#"["*"]"#, r#" [ "\u006b" , "z" ] "#, &numbered(KEYS_MAX)] {
        let Reach::Units(keys) = said(good, true) else { panic!("{good}") };
        let read: Vec<String> = serde_json::from_str(good).unwrap();
        assert_eq!(keys.iter().collect::<Vec<_>>(), read, "{good}");
        assert_eq!(said(good, false), Reach::Units(keys), "{good}");
    }
    let wrong =
        [r#"["k","k"]"#, r#"["*","k"]"#, r#"["*","*"]"#, r#"["a b"]"#, r#"["a,b"]"#, r#"["k",""]"#, "[1]"];
    for bad in wrong.into_iter().chain([&*numbered(KEYS_MAX + 1), "", "null", "[\"k\"", "[\"k\"] x", "{}"]) {
        assert_eq!(said(bad, true), Reach::Nowhere, "{bad}");
        assert_eq!(said(bad, false), Reach::Everywhere, "{bad}");
    }
    assert_eq!(said("[]", true), Reach::Everywhere);
}

/// 80 Services with the longest annotations that Kubernetes accepts.
#[test]
fn annotation_with_many_topology_keys_takes_little_memory() {
    if !alone(module_path!(), "annotation_with_many_topology_keys_takes_little_memory") {
        return;
    }
    let same = format!("[{}\"a\"]", "\"a\",".repeat(64 * 1024 - 8));
    let others: Vec<String> = (0..40_000).map(|number| format!("{number:x}")).collect();
    let others = serde_json::json!(others).to_string();
    let mut graph: Graph<String> = Graph::new("n0");
    let labels = |unit: &str| [("a".to_owned(), unit.to_owned())].into();
    let growth = Growth::begin();
    for (number, of_grid) in (0..80).map(|number| (number, number % 2 == 0)) {
        for (kind, annotation) in [("same", &same), ("others", &others)] {
            let service = ServiceName::new("shop", &format!("{kind}-{number}"));
            graph.set_service(service, Some(said(annotation, of_grid)));
        }
        graph.set_node("n1", Some(Node { labels: labels(&number.to_string()), unhealthy: false }));
    }
    assert!(growth.most() < 8 * 1024 * 1024, "{} bytes", growth.most());
}
