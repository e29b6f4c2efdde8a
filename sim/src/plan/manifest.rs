//! What objects of a plan say, and their manifests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::operation::is_zero;
use crate::observation::ObjectId;

/// What an object says. Each kind uses what it has a place for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectContent {
    /// Text that tells this content from any other.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Bytes of padding.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u32,
    /// Of a pod: the node that it is bound to; of a slice: the node of its endpoint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Of a pod: what it refers to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<PlannedReference>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Of a pod: its ServiceAccount.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    /// Of a role: `VERB,VERB RESOURCE,RESOURCE`, with groups after the plural names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Of a binding: `ClusterRole/NAME` or `Role/NAME`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Of a binding: `User/NAME`, `Group/NAME` or `ServiceAccount/NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
}

/// A reference of a pod. Its text need not be a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannedReference {
    /// A volume of a ConfigMap.
    ConfigVolume(String),
    /// The same, and the pod starts without it.
    OptionalConfigVolume(String),
    /// A ConfigMap in a projected volume.
    ProjectedConfig(String),
    /// A variable from a ConfigMap.
    ConfigVariable(String),
    /// All variables from a ConfigMap, in an init container.
    ConfigVariables(String),
    /// A volume of a Secret.
    SecretVolume(String),
    /// The same, and the pod starts without it.
    OptionalSecretVolume(String),
    /// A Secret in a projected volume.
    ProjectedSecret(String),
    /// A variable from a Secret.
    SecretVariable(String),
    /// All variables from a Secret.
    SecretVariables(String),
    /// A Secret with which images are pulled.
    PullSecret(String),
    /// The Secret of a CSI volume.
    CsiSecret(String),
    /// A claim, which no edge of ours receives.
    Claim(String),
}

/// The object as a user would send it to the API server.
#[must_use]
pub fn manifest(object: &ObjectId, content: &ObjectContent) -> Value {
    let (version, kind) = version_and_kind(&object.resource);
    let mut metadata = json!({"name": object.name});
    if !object.namespace.is_empty() {
        metadata["namespace"] = object.namespace.clone().into();
    }
    if !content.labels.is_empty() {
        metadata["labels"] = json!(content.labels);
    }
    let mut annotations = json!({});
    if !content.text.is_empty() {
        annotations["example.com/text"] = content.text.clone().into();
    }
    let padding = padding(content);
    let mut value = json!({"apiVersion": version, "kind": kind});
    match &*object.resource {
        "configmaps" => value["data"] = json!({"text": content.text, "padding": padding}),
        "secrets" => {
            value["type"] = "Opaque".into();
            value["data"] = json!({"padding": padding});
        }
        // An annotation holds at most 256 KiB. The shares of nodes are reached by several objects.
        _ if content.bytes > 0 => annotations["example.com/padding"] = padding.into(),
        _ => {}
    }
    if annotations.as_object().is_some_and(|all| !all.is_empty()) {
        metadata["annotations"] = annotations;
    }
    value["metadata"] = metadata;
    add_body(object, content, &mut value);
    leave_out_empty_lists(&mut value);
    value
}

/// An API server stores no empty list.
fn leave_out_empty_lists(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| member.as_array().is_none_or(|list| !list.is_empty()));
            members.values_mut().for_each(leave_out_empty_lists);
        }
        Value::Array(elements) => elements.iter_mut().for_each(leave_out_empty_lists),
        _ => {}
    }
}

/// Base64 letters, so that a Secret can hold them.
fn padding(content: &ObjectContent) -> String {
    let unit = "QUJDREVG";
    let count = usize::try_from(content.bytes).unwrap_or(0) / unit.len();
    unit.repeat(count)
}

fn add_body(object: &ObjectId, content: &ObjectContent, value: &mut Value) {
    match &*object.resource {
        "pods" => value["spec"] = pod_spec(content),
        "services" => {
            value["spec"] = json!({
                "selector": {"app": object.name}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]
            });
        }
        "endpointslices.discovery.k8s.io" => {
            value["addressType"] = "IPv4".into();
            value["endpoints"] = json!([{"addresses": ["10.0.0.1"], "nodeName": content.node}]);
            value["ports"] = json!([{"port": 8080, "protocol": "TCP"}]);
        }
        "nodes" => value["spec"] = json!({}),
        "leases.coordination.k8s.io" => value["spec"] = json!({"holderIdentity": content.text}),
        "events" => {
            value["message"] = content.text.clone().into();
            value["involvedObject"] = json!({"kind": "Node", "name": content.node});
        }
        "persistentvolumeclaims" => {
            value["spec"] =
                json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        }
        "roles.rbac.authorization.k8s.io" | "clusterroles.rbac.authorization.k8s.io" => {
            value["rules"] = content.rules.iter().map(|rule| role_rule(rule)).collect();
        }
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => {
            let (kind, name) = content.role.split_once('/').unwrap_or(("ClusterRole", &content.role));
            value["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
            value["subjects"] = content.subjects.iter().map(|subject| binding_subject(subject)).collect();
        }
        "deploymentgrids.superedge.io" | "statefulsetgrids.superedge.io" => {
            value["spec"] = grid_spec(object, content);
        }
        "servicegrids.superedge.io" => {
            value["spec"] = json!({
                "gridUniqKey": "zone",
                "template": {"selector": {"app": object.name}, "ports": [{"port": 80, "targetPort": 8080}]}
            });
        }
        _ => {}
    }
}

fn pod_spec(content: &ObjectContent) -> Value {
    let mut volumes = Vec::new();
    let (mut env, mut env_from, mut init, mut pull) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (number, reference) in content.references.iter().enumerate() {
        let mut volume = |source: Value| {
            let mut volume = source;
            volume["name"] = format!("volume-{number}").into();
            volumes.push(volume);
        };
        let variable = |source: Value| json!({"name": format!("VARIABLE_{number}"), "valueFrom": source});
        match reference {
            PlannedReference::ConfigVolume(name) => volume(json!({"configMap": {"name": name}})),
            PlannedReference::OptionalConfigVolume(name) => {
                volume(json!({"configMap": {"name": name, "optional": true}}));
            }
            PlannedReference::ProjectedConfig(name) => {
                volume(json!({"projected": {"sources": [{"configMap": {"name": name}}]}}));
            }
            PlannedReference::SecretVolume(name) => volume(json!({"secret": {"secretName": name}})),
            PlannedReference::OptionalSecretVolume(name) => {
                volume(json!({"secret": {"secretName": name, "optional": true}}));
            }
            PlannedReference::ProjectedSecret(name) => {
                volume(json!({"projected": {"sources": [{"secret": {"name": name}}]}}));
            }
            PlannedReference::CsiSecret(name) => {
                volume(json!({"csi": {"driver": "example.com", "nodePublishSecretRef": {"name": name}}}));
            }
            PlannedReference::Claim(name) => volume(json!({"persistentVolumeClaim": {"claimName": name}})),
            PlannedReference::ConfigVariable(name) => {
                env.push(variable(json!({"configMapKeyRef": {"name": name, "key": "text"}})));
            }
            PlannedReference::SecretVariable(name) => {
                env.push(variable(json!({"secretKeyRef": {"name": name, "key": "text"}})));
            }
            PlannedReference::ConfigVariables(name) => init.push(json!({"configMapRef": {"name": name}})),
            PlannedReference::SecretVariables(name) => env_from.push(json!({"secretRef": {"name": name}})),
            PlannedReference::PullSecret(name) => pull.push(json!({"name": name})),
        }
    }
    let image = "registry.example/program:1";
    let mut spec = json!({
        "containers": [{"name": "main", "image": image, "env": env, "envFrom": env_from}],
        "volumes": volumes, "imagePullSecrets": pull, "automountServiceAccountToken": false
    });
    if !init.is_empty() {
        spec["initContainers"] = json!([{"name": "init", "image": image, "envFrom": init}]);
    }
    for (member, text) in [("nodeName", &content.node), ("serviceAccountName", &content.account)] {
        if !text.is_empty() {
            spec[member] = text.clone().into();
        }
    }
    spec
}

fn role_rule(text: &str) -> Value {
    let (verbs, resources) = text.split_once(' ').unwrap_or((text, ""));
    let both = |resource: &str| {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        (plural.to_owned(), group.to_owned())
    };
    let (plurals, groups): (Vec<_>, Vec<_>) = resources.split(',').map(both).unzip();
    let verbs: Vec<&str> = verbs.split(',').collect();
    json!({"verbs": verbs, "resources": plurals, "apiGroups": groups})
}

fn binding_subject(text: &str) -> Value {
    let (kind, name) = text.split_once('/').unwrap_or(("User", text));
    match (kind, name.split_once('/')) {
        ("ServiceAccount", Some((namespace, name))) => {
            json!({"kind": kind, "namespace": namespace, "name": name})
        }
        _ => json!({"kind": kind, "apiGroup": "rbac.authorization.k8s.io", "name": name}),
    }
}

fn grid_spec(object: &ObjectId, content: &ObjectContent) -> Value {
    let labels = json!({"app": object.name});
    let container = json!({"name": "main", "image": format!("registry.example/program:{}", content.text)});
    let mut template = json!({
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    });
    if object.resource.starts_with("statefulset") {
        template["serviceName"] = object.name.clone().into();
    }
    json!({"gridUniqKey": "zone", "template": template})
}

/// `apiVersion` and `kind` of a resource that plans use.
fn version_and_kind(resource: &str) -> (&'static str, &'static str) {
    const RBAC: &str = "rbac.authorization.k8s.io/v1";
    match resource {
        "pods" => ("v1", "Pod"),
        "configmaps" => ("v1", "ConfigMap"),
        "secrets" => ("v1", "Secret"),
        "services" => ("v1", "Service"),
        "nodes" => ("v1", "Node"),
        "namespaces" => ("v1", "Namespace"),
        "events" => ("v1", "Event"),
        "serviceaccounts" => ("v1", "ServiceAccount"),
        "persistentvolumeclaims" => ("v1", "PersistentVolumeClaim"),
        "leases.coordination.k8s.io" => ("coordination.k8s.io/v1", "Lease"),
        "endpointslices.discovery.k8s.io" => ("discovery.k8s.io/v1", "EndpointSlice"),
        "roles.rbac.authorization.k8s.io" => (RBAC, "Role"),
        "rolebindings.rbac.authorization.k8s.io" => (RBAC, "RoleBinding"),
        "clusterroles.rbac.authorization.k8s.io" => (RBAC, "ClusterRole"),
        "clusterrolebindings.rbac.authorization.k8s.io" => (RBAC, "ClusterRoleBinding"),
        "deploymentgrids.superedge.io" => ("superedge.io/v1", "DeploymentGrid"),
        "statefulsetgrids.superedge.io" => ("superedge.io/v1", "StatefulSetGrid"),
        "servicegrids.superedge.io" => ("superedge.io/v1", "ServiceGrid"),
        _ => ("v1", "Unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::content::references;

    #[test]
    fn every_reference_is_in_the_manifest() {
        let all = [
            PlannedReference::ConfigVolume("a".to_owned()),
            PlannedReference::OptionalConfigVolume("b".to_owned()),
            PlannedReference::ProjectedConfig("c".to_owned()),
            PlannedReference::ConfigVariable("d".to_owned()),
            PlannedReference::ConfigVariables("e".to_owned()),
            PlannedReference::SecretVolume("f".to_owned()),
            PlannedReference::OptionalSecretVolume("g".to_owned()),
            PlannedReference::ProjectedSecret("h".to_owned()),
            PlannedReference::SecretVariable("i".to_owned()),
            PlannedReference::SecretVariables("j".to_owned()),
            PlannedReference::PullSecret("k".to_owned()),
            PlannedReference::CsiSecret("l".to_owned()),
            PlannedReference::Claim("m".to_owned()),
        ];
        let content =
            ObjectContent { node: "edge-0".to_owned(), references: all.to_vec(), ..Default::default() };
        let pod = manifest(&"pods/team/p".parse().unwrap(), &content);
        let names: Vec<String> = references("team", &pod).into_iter().map(|id| id.name).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]);
        assert_eq!(pod["spec"]["nodeName"], "edge-0");
    }

    #[test]
    fn roles_and_bindings_are_written_as_short_texts() {
        let rules = vec!["get,list services,endpointslices.discovery.k8s.io".to_owned()];
        let role = ObjectContent { rules, ..Default::default() };
        let role = manifest(&"clusterroles.rbac.authorization.k8s.io//r".parse().unwrap(), &role);
        assert_eq!(role["rules"][0]["apiGroups"], json!(["", "discovery.k8s.io"]));
        assert_eq!(role["kind"], "ClusterRole");
        let binding = ObjectContent {
            role: "ClusterRole/r".to_owned(),
            subjects: vec!["Group/g".to_owned(), "ServiceAccount/team/a".to_owned()],
            ..Default::default()
        };
        let binding = manifest(&"rolebindings.rbac.authorization.k8s.io/team/b".parse().unwrap(), &binding);
        assert_eq!(binding["roleRef"]["name"], "r");
        assert_eq!(
            binding["subjects"][1],
            json!({"kind": "ServiceAccount", "namespace": "team", "name": "a"})
        );
    }

    #[test]
    fn padding_is_in_the_object() {
        let content = ObjectContent { text: "v".to_owned(), bytes: 1 << 20, ..Default::default() };
        let secret = manifest(&"secrets/team/s".parse().unwrap(), &content);
        assert!(secret.to_string().len() > 1 << 20);
        assert_eq!(secret["metadata"]["annotations"]["example.com/text"], "v");
        assert_ne!(
            manifest(&"pods/team/p".parse().unwrap(), &ObjectContent::default()),
            manifest(
                &"pods/team/p".parse().unwrap(),
                &ObjectContent { text: "w".to_owned(), ..Default::default() }
            )
        );
    }
}
