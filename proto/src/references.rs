//! Which ConfigMaps and Secrets a pod refers to: the cloud delivers them with the pod, and an edge under a KubeEdge
//! cloud requests them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::ids::is_dns_subdomain;
use crate::limits::DEPENDENCIES_MAX;
use crate::object::{ObjectKey, Resource};

/// Paths of a Secret's name inside one volume (Kubernetes core/v1 `Volume`). Projected sources are read separately.
const VOLUME_SECRETS: [&str; 10] = [
    "/secret/secretName",
    "/azureFile/secretName",
    "/cephfs/secretRef/name",
    "/cinder/secretRef/name",
    "/csi/nodePublishSecretRef/name",
    "/flexVolume/secretRef/name",
    "/iscsi/secretRef/name",
    "/rbd/secretRef/name",
    "/scaleIO/secretRef/name",
    "/storageos/secretRef/name",
];

/// The lists of containers in a pod's spec.
const CONTAINER_LISTS: [&str; 3] = ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"];

/// Every ConfigMap and Secret that the pod names, each once, in order; includes optional ones, because the pod must
/// see them when they exist. At most [`DEPENDENCIES_MAX`].
///
/// An API server does not validate the text of a reference. A text that cannot be an object name refers to nothing, so
/// it needs no request, no delivery and no waiting: it is left out here, and [`is_never_there`] recognises it when a
/// caller requests it.
#[must_use]
pub fn of_pod(namespace: &str, pod: &Value) -> Vec<ObjectKey> {
    let found = PodReferences::of(pod);
    let [configmaps, secrets] = ["configmaps", "secrets"].map(|name| Resource::new("", "v1", name));
    let configmaps = found.configmaps.iter().map(|name| ObjectKey::new(configmaps.clone(), namespace, name));
    let secrets = found.secrets.iter().map(|name| ObjectKey::new(secrets.clone(), namespace, name));
    let configmaps = configmaps.filter(|key| is_dns_subdomain(key.name()));
    let secrets = secrets.filter(|key| is_dns_subdomain(key.name()));
    configmaps.chain(secrets).take(DEPENDENCIES_MAX).collect()
}

/// Whether this is a ConfigMap or a Secret with a name that is not valid.
#[must_use]
pub fn is_never_there(key: &ObjectKey) -> bool {
    let resource = key.resource();
    resource.group.is_empty()
        && matches!(&*resource.name, "configmaps" | "secrets")
        && !is_dns_subdomain(key.name())
}

/// Whether every reference of the pod to this ConfigMap or Secret is marked optional, so that the pod starts without
/// it. Also true when there is no reference.
#[must_use]
pub fn starts_without(namespace: &str, pod: &Value, key: &ObjectKey) -> bool {
    let found = PodReferences::of(pod);
    let needed = match &*key.resource().name {
        "configmaps" => found.needed_configmaps.contains(key.name()),
        "secrets" => found.needed_secrets.contains(key.name()),
        _ => true,
    };
    key.namespace() == namespace && !needed
}

#[derive(Default)]
struct PodReferences<'a> {
    configmaps: BTreeSet<&'a str>,
    secrets: BTreeSet<&'a str>,
    needed_configmaps: BTreeSet<&'a str>,
    needed_secrets: BTreeSet<&'a str>,
}

impl<'a> PodReferences<'a> {
    fn of(pod: &'a Value) -> Self {
        let mut found = Self::default();
        for volume in list(pod, "/spec/volumes") {
            found.volume(volume);
        }
        for container in CONTAINER_LISTS.iter().flat_map(|path| list(pod, path)) {
            found.container(container);
        }
        for secret in list(pod, "/spec/imagePullSecrets") {
            found.secret(secret, "/name");
        }
        found
    }

    fn volume(&mut self, volume: &'a Value) {
        self.configmap(volume, "/configMap/name");
        for path in VOLUME_SECRETS {
            self.secret(volume, path);
        }
        for source in list(volume, "/projected/sources") {
            self.configmap(source, "/configMap/name");
            self.secret(source, "/secret/name");
        }
    }

    fn container(&mut self, container: &'a Value) {
        for variable in list(container, "/env") {
            self.configmap(variable, "/valueFrom/configMapKeyRef/name");
            self.secret(variable, "/valueFrom/secretKeyRef/name");
        }
        for source in list(container, "/envFrom") {
            self.configmap(source, "/configMapRef/name");
            self.secret(source, "/secretRef/name");
        }
    }

    fn configmap(&mut self, value: &'a Value, path: &str) {
        self.configmaps.extend(name(value, path));
        self.needed_configmaps.extend(name(value, path).filter(|_| !is_optional(value, path)));
    }

    fn secret(&mut self, value: &'a Value, path: &str) {
        self.secrets.extend(name(value, path));
        self.needed_secrets.extend(name(value, path).filter(|_| !is_optional(value, path)));
    }
}

fn name<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
    value.pointer(path).and_then(Value::as_str).filter(|name| !name.is_empty())
}

/// Whether the reference with its name at `path` has `optional: true` beside it.
fn is_optional(value: &Value, path: &str) -> bool {
    let parent = path.rsplit_once('/').and_then(|(parent, _)| value.pointer(parent));
    parent.is_some_and(|parent| parent.get("optional") == Some(&Value::Bool(true)))
}

fn list<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(spec: &Value) -> Vec<String> {
        of_pod("d", &json!({ "spec": spec })).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_kind_of_volume_that_names_an_object_is_known() {
        for (volume, reference) in [
            (json!({"configMap": {"name": "x"}}), "v1/configmaps/d/x"),
            (json!({"secret": {"secretName": "x"}}), "v1/secrets/d/x"),
            (json!({"azureFile": {"secretName": "x", "shareName": "s"}}), "v1/secrets/d/x"),
            (json!({"cephfs": {"secretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"cinder": {"secretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"csi": {"nodePublishSecretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"flexVolume": {"secretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"iscsi": {"secretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"rbd": {"secretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"scaleIO": {"secretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"storageos": {"secretRef": {"name": "x"}}}), "v1/secrets/d/x"),
            (json!({"projected": {"sources": [{"configMap": {"name": "x"}}]}}), "v1/configmaps/d/x"),
            (json!({"projected": {"sources": [{"secret": {"name": "x"}}]}}), "v1/secrets/d/x"),
        ] {
            assert_eq!(names(&json!({"volumes": [volume.clone()]})), [reference], "{volume}");
        }
    }

    #[test]
    fn all_containers_and_pull_secrets_count() {
        let container = |tag: &str| {
            json!({
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": format!("{tag}-c1"), "key": "k"}}},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": format!("{tag}-s1"), "key": "k"}}},
                        {"name": "C", "value": "plain"}],
                "envFrom": [{"configMapRef": {"name": format!("{tag}-c2")}},
                            {"secretRef": {"name": format!("{tag}-s2"), "optional": true}}]
            })
        };
        let spec = json!({
            "containers": [container("main")], "initContainers": [container("init")],
            "ephemeralContainers": [container("debug")], "imagePullSecrets": [{"name": "pull"}, {}]
        });
        let mut expected: Vec<String> = Vec::new();
        for (kind, letter) in [("configmaps", "c"), ("secrets", "s")] {
            for tag in ["debug", "init", "main"] {
                expected.extend([1, 2].map(|n| format!("v1/{kind}/d/{tag}-{letter}{n}")));
            }
        }
        expected.push("v1/secrets/d/pull".to_owned());
        assert_eq!(names(&spec), expected);
    }

    #[test]
    fn object_named_twice_is_one_reference() {
        let volume = json!({"configMap": {"name": "x"}});
        assert_eq!(names(&json!({"volumes": [volume.clone(), volume]})).len(), 1);
    }

    /// A pod spec with this text in every place that can hold a reference.
    fn everywhere(text: &str) -> Value {
        let volume = |path: &str| {
            let (parent, member) = path.trim_start_matches('/').rsplit_once('/').unwrap_or_default();
            parent.rsplit('/').fold(json!({ member: text }), |inner, name| json!({ name: inner }))
        };
        let mut volumes: Vec<Value> = VOLUME_SECRETS.iter().map(|path| volume(path)).collect();
        volumes.push(volume("/configMap/name"));
        volumes.push(
            json!({"projected": {"sources": [{"configMap": {"name": text}}, {"secret": {"name": text}}]}}),
        );
        volumes.push(json!({"persistentVolumeClaim": {"claimName": text}}));
        let container = json!({
            "env": [{"valueFrom": {"configMapKeyRef": {"name": text}}}, {"valueFrom": {"secretKeyRef": {"name": text}}}],
            "envFrom": [{"configMapRef": {"name": text}}, {"secretRef": {"name": text}}]
        });
        json!({"spec": {
            "volumes": volumes, "containers": [container], "initContainers": [container],
            "ephemeralContainers": [container], "imagePullSecrets": [{"name": text}],
            "serviceAccountName": text, "nodeName": text
        }})
    }

    #[test]
    fn text_that_is_no_valid_name_is_no_reference() {
        let long = "x".repeat(300);
        for text in
            ["a/b", "a b", "A", &long, "", ".", "..", "a..b", "-a", "ä", "a\0b", "a\n", "a%2Fb", "a_b", "a:b"]
        {
            assert_eq!(of_pod("d", &everywhere(text)), [], "{text:?}");
            let key = ObjectKey::new(Resource::new("", "v1", "secrets"), "d", text);
            assert!(is_never_there(&key), "{text:?}");
            assert!(!starts_without("d", &everywhere(text), &key) || text.is_empty(), "{text:?}");
        }
        assert_eq!(of_pod("d", &everywhere("a.b-1")).len(), 2);
        let other = ObjectKey::new(Resource::new("rbac.authorization.k8s.io", "v1", "secrets"), "", "a:b");
        assert!(!is_never_there(&other), "other kinds have other rules");
    }

    proptest::proptest! {
        #[test]
        fn every_accepted_reference_can_be_delivered(text in ".{0,20}|[a-z.]{0,8}|[a-z]{250,260}") {
            for key in of_pod("d", &everywhere(&text)) {
                proptest::prop_assert_eq!(crate::codec::unreadable(&key, &[]), None);
            }
        }
    }

    #[test]
    fn odd_shapes_are_no_references() {
        for spec in [
            json!(null),
            json!({"volumes": {}}),
            json!({"volumes": [null, 3, {"secret": {"secretName": ""}}, {"secret": null}]}),
            json!({"containers": [{"env": "x", "envFrom": [{}]}]}),
        ] {
            assert_eq!(names(&spec), Vec::<String>::new(), "{spec}");
        }
    }

    #[test]
    fn object_is_optional_when_all_references_are_optional() {
        let configmap = ObjectKey::new(Resource::new("", "v1", "configmaps"), "d", "x");
        let secret = ObjectKey::new(Resource::new("", "v1", "secrets"), "d", "x");
        for (key, kind, keyed, whole, named) in [
            (&configmap, "configMap", "configMapKeyRef", "configMapRef", "name"),
            (&secret, "secret", "secretKeyRef", "secretRef", "secretName"),
        ] {
            let spec = |optional: bool| {
                let source = json!({"name": "x", "optional": optional});
                [
                    json!({"volumes": [{kind: {named: "x", "optional": optional}}]}),
                    json!({"volumes": [{"projected": {"sources": [{kind: source}]}}]}),
                    json!({"containers": [{"envFrom": [{whole: source}]}]}),
                    json!({"initContainers": [{"env": [{"name": "A", "valueFrom": {keyed: source}}]}]}),
                ]
            };
            for (optional, needed) in spec(true).iter().zip(&spec(false)) {
                assert!(starts_without("d", &json!({ "spec": optional }), key), "{optional}");
                assert!(!starts_without("d", &json!({ "spec": needed }), key), "{needed}");
                let mut both = optional.clone();
                both["ephemeralContainers"] = json!([{"envFrom": [{whole: {"name": "x"}}]}]);
                assert!(!starts_without("d", &json!({ "spec": both }), key), "{both}");
            }
        }
        assert!(!starts_without("d", &json!({"spec": {"imagePullSecrets": [{"name": "x"}]}}), &secret));
    }
}
