use serde_json::{Value, json};
use tombolo_proto::session::kubeedge::LedgerEntry;
use tombolo_proto::{CloudRevision, Epoch, NodeId, ObjectKey, Resource, Uid};

use super::import::Seeds;
use super::record::{read, write};

fn recorded(name: &str, namespace: &str, kind: &str, object: &str, version: Option<&str>) -> Value {
    let mut value = json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"objectAPIVersion": "v1", "objectKind": kind, "objectName": object},
    });
    if let Some(version) = version {
        value["status"] = json!({"objectResourceVersion": version});
    }
    value
}

fn uid(text: &str) -> Uid {
    Uid::parse(text).expect("a UID")
}

#[test]
fn names_and_versions_are_read_as_kubeedge_writes_them() {
    let given = read(&recorded("edge-1.shop.u-1", "default", "ConfigMap", "a", Some("17"))).expect("one");
    assert_eq!(given.node.as_str(), "edge-1.shop", "everything before the last dot");
    assert_eq!(given.key, ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "a"));
    assert_eq!((given.entry.uid, given.entry.revision), (Some(uid("u-1")), Some(CloudRevision(17))));
    for version in [None, Some("0"), Some("")] {
        let given = read(&recorded("n.u", "", "Node", "n", version)).expect("one");
        assert_eq!((given.key.namespace(), given.entry.revision), ("", None), "{version:?}");
    }
    let claim = read(&recorded("n.u", "d", "PersistentVolumeClaim", "data", Some("3"))).expect("one");
    assert_eq!(claim.key, ObjectKey::new(Resource::new("", "v1", "persistentvolumeclaims"), "d", "data"));
    for foreign in [
        recorded("without-dot", "default", "Pod", "a", None),
        recorded("n.u", "default", "Service", "a", Some("3")),
        recorded("n.u", "default", "", "a", None),
        recorded("n.u", "default", "Pod", "", None),
        recorded("Not A Node.u", "default", "Pod", "a", None),
        json!(7),
    ] {
        assert!(read(&foreign).is_none(), "{foreign}");
    }
}

#[test]
fn records_read_back() {
    let node = NodeId::parse("edge-1").expect("a node");
    let entry = |uid, revision| LedgerEntry { kind: "Pod".into(), uid, revision };
    let key = ObjectKey::new(Resource::new("", "v1", "pods"), "default", "web");
    for revision in [None, Some(CloudRevision(9))] {
        let known = entry(Some(uid("u-1")), revision);
        let (name, mut object, status) = write(&node, &key, &known).expect("a certain incarnation");
        assert_eq!(name, "edge-1.u-1");
        assert_eq!(
            (&object["kind"], &object["apiVersion"]),
            (&json!("ObjectSync"), &json!("reliablesyncs.kubeedge.io/v1alpha1"))
        );
        object["status"] = status["status"].clone();
        let given = read(&object).expect("one");
        assert_eq!((given.node, given.key, given.entry), (node.clone(), key.clone(), known));
    }
    assert!(write(&node, &key, &entry(None, None)).is_none(), "its name would have no UID");
    let cluster = ObjectKey::new(Resource::new("", "v1", "nodes"), "", "edge-1");
    let (_, object, _) = write(&node, &cluster, &entry(Some(uid("u")), None)).expect("one");
    assert_eq!(object["kind"], "ClusterObjectSync");
    assert_eq!(object["metadata"].get("namespace"), None);
}

#[test]
fn objects_are_gathered_by_node() {
    let mut seeds = Seeds::default();
    for object in [
        recorded("a.u1", "default", "Pod", "web", Some("5")),
        recorded("a.u2", "default", "ConfigMap", "settings", Some("6")),
        recorded("b.u1", "default", "Pod", "web", None),
        recorded("b.u9", "default", "Pod", "web", Some("9")),
        recorded("b.u3", "default", "Service", "front", Some("9")),
    ] {
        seeds.take(&object);
    }
    assert_eq!(seeds.skipped, 1);
    let epoch = Epoch { cluster: uid("c"), generation: 2 };
    let ledgers = seeds.ledgers(&epoch);
    let found: Vec<_> = ledgers.iter().map(|(node, ledger)| (node.as_str(), ledger.len())).collect();
    assert_eq!(found, [("a", 2), ("b", 1)]);
    assert!(ledgers.iter().all(|(_, ledger)| ledger.epoch.as_ref() == Some(&epoch)));
    let (_, entry) = ledgers[1].1.entries().next().expect("one");
    assert_eq!((&entry.uid, &entry.revision), (&None, &None), "either incarnation may be at the edge");
}
