//! Updates: what they may change, and what the server makes of them.

use jiff::Timestamp;
use serde_json::{Value, json};
use tombolo_apicore::kinds::Kinds;

use super::{creates, kind_of};
use tombolo_apicore::value::text;

fn stored(name: &str, kind: &str) -> Value {
    let found = creates()
        .into_iter()
        .map(|one| one["stored"].clone())
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no recorded {kind} {name}"))
}

/// Merges a change into a stored object. Returns the object as it would be stored, and the errors.
fn update(old: &Value, change: &Value, subresource: &str) -> (Value, Vec<String>) {
    let kinds = tombolo_catalog::kinds();
    let kind = kind_of(&kinds, old);
    let mut new = tombolo_apicore::patch::merge_patch(old, change).unwrap();
    kind.default(&mut new);
    kind.prepare_update(&mut new, old, subresource, Timestamp::UNIX_EPOCH);
    let errors = kind.validate_update(&new, old, subresource).errors;
    (new, errors.iter().map(|error| error.field.clone()).collect())
}

#[test]
fn immutable_fields_are_immutable() {
    let no: [&str; 0] = [];
    let mut established = stored("things.a.example", "CustomResourceDefinition");
    established["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (stored("minimal", "Pod"), json!({"spec": {"containers": [{"name": "c", "image": "other"}]}}), &no),
        (
            stored("minimal", "Pod"),
            json!({"spec": {"containers": [{"name": "c", "image": "nginx", "tty": true}]}}),
            &["spec"],
        ),
        (stored("minimal", "Pod"), json!({"spec": {"hostNetwork": true}}), &["spec"]),
        (stored("minimal", "Pod"), json!({"spec": {"activeDeadlineSeconds": 5}}), &no),
        (
            stored("minimal", "Pod"),
            json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}),
            &no,
        ),
        (stored("minimal", "Pod"), json!({"metadata": {"labels": {"a": "b"}}}), &no),
        (stored("minimal", "Pod"), json!({"metadata": {"uid": "other"}}), &["metadata.uid"]),
        (stored("d", "Deployment"), json!({"spec": {"replicas": 3}}), &no),
        (
            stored("d", "Deployment"),
            json!({"spec": {"selector": {"matchLabels": {"app": "y"}}, "template": {"metadata": {"labels": {"app": "y"}}}}}),
            &["spec.selector"],
        ),
        (stored("s", "StatefulSet"), json!({"spec": {"serviceName": "t"}}), &["spec"]),
        (stored("s", "StatefulSet"), json!({"spec": {"replicas": 3}}), &no),
        (stored("j", "Job"), json!({"spec": {"completions": 5}}), &["spec.completions"]),
        (
            stored("clusterip", "Service"),
            json!({"spec": {"clusterIP": "10.0.99.99"}}),
            &["spec.clusterIPs[0]"],
        ),
        (stored("sec", "Secret"), json!({"type": "other"}), &["type"]),
        (stored("rb", "RoleBinding"), json!({"roleRef": {"name": "other"}}), &["roleRef"]),
        (stored("pc", "PriorityClass"), json!({"value": 11}), &["value"]),
        (stored("sc", "StorageClass"), json!({"provisioner": "q.example"}), &["provisioner"]),
        (stored("es", "EndpointSlice"), json!({"addressType": "FQDN"}), &["addressType"]),
        (
            stored("pvc", "PersistentVolumeClaim"),
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
            &["spec"],
        ),
        (established, json!({"spec": {"scope": "Cluster"}}), &["spec.scope"]),
    ];
    for (old, change, fields) in cases {
        let (_, found) = update(&old, &change, "");
        assert_eq!(found, fields, "{} {change}", old["kind"]);
    }
}

#[test]
fn sealed_config_maps_stay_as_they_are() {
    let mut old = stored("cm", "ConfigMap");
    old["immutable"] = true.into();
    let cases: [(Value, &[&str]); 4] = [
        (json!({"data": {"a": "c"}}), &["data"]),
        (json!({"immutable": false}), &["immutable"]),
        (json!({"immutable": null}), &["immutable"]),
        (json!({"metadata": {"labels": {"x": "y"}}}), &[]),
    ];
    for (change, fields) in cases {
        assert_eq!(update(&old, &change, "").1, fields, "{change}");
    }
}

#[test]
fn generation_counts_changes_of_the_spec() {
    let cases = [
        (stored("d", "Deployment"), json!({"spec": {"replicas": 3}}), "", 2),
        (stored("d", "Deployment"), json!({"metadata": {"labels": {"a": "b"}}}), "", 1),
        (stored("d", "Deployment"), json!({"metadata": {"annotations": {"a": "b"}}}), "", 2),
        (stored("d", "Deployment"), json!({"status": {"replicas": 3}}), "status", 1),
        (stored("d", "Deployment"), json!({"metadata": {"generation": 77}}), "", 1),
        (stored("minimal", "Pod"), json!({"spec": {"activeDeadlineSeconds": 5}}), "", 2),
    ];
    for (old, change, subresource, generation) in cases {
        let (new, _) = update(&old, &change, subresource);
        assert_eq!(new["metadata"]["generation"], generation, "{change}");
    }
}

#[test]
fn each_endpoint_writes_its_part_only() {
    let old = stored("d", "Deployment");
    let change = json!({"spec": {"replicas": 3}, "status": {"replicas": 3}});
    let (new, _) = update(&old, &change, "");
    assert_eq!((&new["spec"]["replicas"], &new["status"]), (&json!(3), &old["status"]));
    let (new, _) = update(&old, &change, "status");
    assert_eq!((&new["spec"], &new["status"]["replicas"]), (&old["spec"], &json!(3)));
    let namespace = stored("made", "Namespace");
    let (new, _) = update(&namespace, &json!({"spec": {"finalizers": []}}), "");
    assert_eq!(new["spec"], namespace["spec"]);
    let (new, _) = update(&namespace, &json!({"spec": {"finalizers": []}}), "finalize");
    assert_eq!(new["spec"], json!({}));
}

#[test]
fn services_keep_allocated_addresses_and_ports() {
    let old = stored("nodeport", "Service");
    let change =
        json!({"spec": {"clusterIP": null, "clusterIPs": null, "ports": [{"port": 80, "targetPort": 8080}]}});
    let (new, errors) = update(&old, &change, "");
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(new["spec"]["clusterIP"], old["spec"]["clusterIP"]);
    assert_eq!(new["spec"]["ports"][0]["nodePort"], old["spec"]["ports"][0]["nodePort"]);
}

#[test]
fn changed_storage_version_moves_no_objects() {
    let version = |name: &str, storage: bool| {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        json!({"name": name, "served": true, "storage": storage, "schema": schema})
    };
    let mut definition = json!({"metadata": {"name": "things.a.example"}, "spec": {
        "group": "a.example", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"},
        "versions": [version("v1", true), version("v2", false)],
    }});
    let storage =
        |kinds: &Kinds| kinds.by_kind("a.example", "v2", "Thing").unwrap().storage.version.to_string();
    let before = tombolo_catalog::kinds().with_crd(&definition).unwrap();
    assert_eq!(storage(&before), "v1");
    definition["spec"]["versions"] = json!([version("v1", false), version("v2", true)]);
    // The migration is complete: the definition's status no longer lists the old version.
    definition["status"]["storedVersions"] = json!(["v2"]);
    assert_eq!(storage(&before.with_crd(&definition).unwrap()), "v1");
    assert_eq!(storage(&tombolo_catalog::kinds().with_crd_stored_as(&definition, Some("v1")).unwrap()), "v1");
    assert_eq!(storage(&tombolo_catalog::kinds().with_crd(&definition).unwrap()), "v2");
}

#[test]
fn a_new_storage_version_is_noted() {
    let kinds = tombolo_catalog::kinds();
    let kind = kinds.by_kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let old = json!({"spec": {"versions": [{"name": "v1", "storage": true}]}, "status": {"storedVersions": ["v1"]}});
    let mut new =
        json!({"spec": {"versions": [{"name": "v1", "storage": false}, {"name": "v2", "storage": true}]}});
    kind.prepare_update(&mut new, &old, "", Timestamp::UNIX_EPOCH);
    assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn events_are_stored_once_and_served_in_both_versions() {
    let kinds = tombolo_catalog::kinds();
    let events = kinds.by_kind("events.k8s.io", "v1", "Event").unwrap();
    let mut object = stored("ev2", "Event");
    events.to_storage(&mut object);
    assert_eq!(text(&object, &["apiVersion"]), "v1");
    assert_eq!(text(&object, &["involvedObject", "name"]), "minimal");
    assert_eq!(text(&object, &["message"]), "m");
    events.from_storage(&mut object);
    assert_eq!(object, stored("ev2", "Event"));
}

#[test]
fn every_kind_has_selectable_names_and_as_many_cells_as_columns() {
    let kinds = tombolo_catalog::kinds();
    let now = jiff::Timestamp::UNIX_EPOCH;
    for kind in kinds.iter() {
        assert!(kind.is_selectable("metadata.name"), "{}", kind.kind);
        assert!(!kind.is_selectable("spec.no.such.field"), "{}", kind.kind);
        assert_eq!(kind.cells(&json!({}), now).len(), kind.columns().len(), "{}", kind.kind);
    }
    let pod = kinds.by_kind("", "v1", "Pod").unwrap();
    assert_eq!(pod.field_value(&json!({"spec": {"nodeName": "n"}}), "spec.nodeName").as_deref(), Some("n"));
    assert_eq!(pod.default_grace(&json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 7}})), 7);
    assert_eq!(pod.default_grace(&json!({"spec": {"terminationGracePeriodSeconds": 7}})), 0);
}
