use std::path::PathBuf;

use kube::ResourceExt;

use super::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds")
}

/// The YAML file of a definition.
fn document(definition: &CustomResourceDefinition) -> String {
    let text = serde_saphyr::to_string(definition).unwrap();
    format!("# Made from cloud/src/grids/api.rs; cloudcore installs the same by itself.\n{text}")
}

/// `TOMBOLO_WRITE_CRDS=1 cargo test -p tombolo-cloud --lib the_files_of_the_definitions` writes them.
#[test]
fn the_files_of_the_definitions_are_those_that_are_installed() {
    for definition in definitions() {
        let path = folder().join(format!("{}.yaml", definition.name_any()));
        if std::env::var_os("TOMBOLO_WRITE_CRDS").is_some() {
            std::fs::write(&path, document(&definition)).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, document(&definition), "{}", path.display());
    }
}

#[test]
fn fields_below_a_template_are_not_pruned() {
    for definition in definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let spec = &schema["openAPIV3Schema"]["properties"]["spec"];
        assert_eq!(spec["required"], json!(["gridUniqKey"]));
        let key = &spec["properties"]["gridUniqKey"];
        assert_eq!((&key["minLength"], &key["default"]), (&json!(1), &Value::Null));
        let template = &spec["properties"]["template"];
        assert_eq!(template[OPEN], true, "{}", definition.name_any());
        if !spec["properties"]["templatePool"].is_null() {
            let pool = &spec["properties"]["templatePool"]["additionalProperties"];
            for one in [template, pool] {
                let pod = &one["properties"]["template"]["properties"];
                assert_eq!((&pod["metadata"][OPEN], &pod["spec"][OPEN]), (&json!(true), &json!(true)));
                assert_eq!(
                    one["properties"]["volumeClaimTemplates"]["items"]["properties"]["metadata"][OPEN],
                    true
                );
            }
        }
        let version = &definition.spec.versions[0];
        assert!(version.subresources.as_ref().is_some_and(|parts| parts.status.is_some()));
    }
}

#[test]
fn grids_stored_by_older_controllers_are_read() {
    let stored = json!({
        "apiVersion": "superedge.io/v1", "kind": "DeploymentGrid",
        "metadata": {"name": "g", "namespace": "default", "labels": {"superedge.io/grid-selector": "g"}},
        "spec": {
            "defaultTemplateName": "default",
            "template": {"replicas": 1, "strategy": {}, "template": {"metadata": {"creationTimestamp": null}}},
            "unknown": {"kept": true},
        },
        "status": {"states": {"a": {"replicas": 1, "conditions": []}}},
    });
    let grid: DeploymentGrid = serde_json::from_value(stored).unwrap();
    assert_eq!(grid.grid().spec.key, "", "a grid without a key is read, and refused by the planner");
    assert_eq!(grid.stored_status()["states"]["a"]["replicas"], 1);
    let service: ServiceGrid = serde_json::from_value(json!({
        "apiVersion": "superedge.io/v1", "kind": "ServiceGrid", "metadata": {"name": "s"},
        "spec": {"gridUniqKey": "zone", "template": {"ports": [{"port": 80}], "internalTrafficPolicy": "Local"}},
        "status": {"loadBalancer": {}, "conditions": [{"type": "CreateError", "status": "True"}]},
    }))
    .unwrap();
    assert_eq!(service.grid().spec.template["internalTrafficPolicy"], "Local");
}

#[test]
fn only_name_and_key_of_a_grid_are_kept() {
    let text = "x".repeat(10_000);
    let whole = |key: &str| {
        json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"a": text}, "annotations": {"a": text}, "finalizers": [text],
            },
            "spec": {"gridUniqKey": key, "template": {"a": text}, "templatePool": {"t": {"a": text}}, "templates": {"u": text}},
            "status": {"a": text},
        })
    };
    fn slim<K: GridKind + serde::Serialize>(whole: Value) -> Value {
        let mut grid: K = serde_json::from_value(whole).unwrap();
        grid.slim();
        let value = serde_json::to_value(&grid).unwrap();
        assert!(value.to_string().len() < 400, "{value}");
        value
    }
    for slim in [slim::<DeploymentGrid>, slim::<StatefulSetGrid>, slim::<ServiceGrid>] {
        let kept = slim(whole("zone"));
        assert_eq!((&kept["metadata"]["name"], &kept["metadata"]["uid"]), (&json!("web"), &json!("u")));
        assert_eq!(kept["spec"], json!({"gridUniqKey": "zone"}));
        assert_eq!(slim(whole(&text))["spec"], json!({"gridUniqKey": ""}), "no node has such a label");
    }
}
