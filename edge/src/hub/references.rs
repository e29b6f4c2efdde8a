//! ConfigMaps and Secrets that a pod refers to. A stock cloud pushes a change of one that the node has asked for, and
//! never the first version (reference 6.5): the edge asks.

use std::collections::BTreeSet;

use serde_json::Value;
use tombolo_proto::message::{ObjectPath, ResourceType};
use tombolo_proto::object::{ObjectKey, Resource};

/// References of one pod that are followed, at most.
const REFERENCES_MAX: usize = 256;

/// An object that a pod refers to, and the path to ask for it.
pub(super) type Reference = (ObjectKey, ObjectPath);

/// What a pod refers to; nothing for another object.
pub(super) fn of_pod(body: &[u8], namespace: &str) -> Vec<Reference> {
    let Ok(pod) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
    let spec = &pod["spec"];
    let mut names = Names::default();
    for volume in list(spec, "volumes") {
        names.config_map(&volume["configMap"]["name"]);
        names.secret(&volume["secret"]["secretName"]);
        for source in list(&volume["projected"], "sources") {
            names.config_map(&source["configMap"]["name"]);
            names.secret(&source["secret"]["name"]);
        }
    }
    for secret in list(spec, "imagePullSecrets") {
        names.secret(&secret["name"]);
    }
    let containers = ["initContainers", "containers", "ephemeralContainers"];
    for container in containers.into_iter().flat_map(|key| list(spec, key)) {
        for source in list(container, "envFrom") {
            names.config_map(&source["configMapRef"]["name"]);
            names.secret(&source["secretRef"]["name"]);
        }
        for variable in list(container, "env") {
            names.config_map(&variable["valueFrom"]["configMapKeyRef"]["name"]);
            names.secret(&variable["valueFrom"]["secretKeyRef"]["name"]);
        }
    }
    names.references(namespace)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

#[derive(Default)]
struct Names {
    config_maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

impl Names {
    fn config_map(&mut self, name: &Value) {
        self.config_maps.extend(name.as_str().filter(|name| !name.is_empty()).map(str::to_owned));
    }

    fn secret(&mut self, name: &Value) {
        self.secrets.extend(name.as_str().filter(|name| !name.is_empty()).map(str::to_owned));
    }

    fn references(self, namespace: &str) -> Vec<Reference> {
        let one = |name: String, plural: &str, word: ResourceType| {
            let key = ObjectKey::new(Resource::new("", "v1", plural), namespace, &name);
            (key, ObjectPath::new(namespace, word, &name))
        };
        let config_maps =
            self.config_maps.into_iter().map(|name| one(name, "configmaps", ResourceType::ConfigMap));
        let secrets = self.secrets.into_iter().map(|name| one(name, "secrets", ResourceType::Secret));
        config_maps.chain(secrets).take(REFERENCES_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_way_to_refer_is_found_once() {
        let pod = json!({"spec": {
            "volumes": [
                {"configMap": {"name": "a"}},
                {"secret": {"secretName": "b"}},
                {"projected": {"sources": [{"configMap": {"name": "c"}}, {"secret": {"name": "d"}}]}},
                {"emptyDir": {}},
            ],
            "imagePullSecrets": [{"name": "e"}],
            "initContainers": [{"envFrom": [{"configMapRef": {"name": "f"}}, {"secretRef": {"name": "g"}}]}],
            "containers": [{"env": [
                {"valueFrom": {"configMapKeyRef": {"name": "a"}}},
                {"valueFrom": {"secretKeyRef": {"name": "h"}}},
                {"value": "x"},
            ]}],
        }});
        let found = of_pod(pod.to_string().as_bytes(), "shop");
        let paths: Vec<_> = found
            .iter()
            .map(|(key, path)| format!("{}/{}/{}", key.namespace(), path.resource_type.as_str(), key.name()))
            .collect();
        let expected = ["a", "c", "f"].map(|name| format!("shop/configmap/{name}")).into_iter();
        let expected = expected.chain(["b", "d", "e", "g", "h"].map(|name| format!("shop/secret/{name}")));
        assert_eq!(paths, expected.collect::<Vec<_>>());
        assert!(of_pod(b"no pod", "shop").is_empty());
    }
}
