//! Defaults of the built-in kinds, as far as the product or its grids can see them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::kinds::KindKey;
use super::object::{default, member, text};

/// Sets what an object leaves out.
pub(super) fn set(kind: &KindKey, object: &mut Value) {
    match (kind.group.as_str(), kind.resource.as_str()) {
        ("", "pods") => {
            pod_spec(member(object, "spec"));
            default(member(object, "spec"), "enableServiceLinks", true.into());
            default(member(object, "status"), "phase", "Pending".into());
            quality(object);
        }
        ("", "nodes") => node_status(object),
        ("", "secrets") => secret(object),
        ("", "services") => service(object),
        ("", "namespaces") => namespace(object),
        ("", "persistentvolumeclaims") => {
            default(member(object, "spec"), "volumeMode", "Filesystem".into());
            default(member(object, "status"), "phase", "Pending".into());
        }
        ("", "persistentvolumes") => {
            let spec = member(object, "spec");
            default(spec, "volumeMode", "Filesystem".into());
            default(spec, "persistentVolumeReclaimPolicy", "Retain".into());
            default(member(object, "status"), "phase", "Pending".into());
        }
        ("apps", "deployments") => deployment(object),
        ("apps", "statefulsets") => stateful_set(object),
        ("apps", "daemonsets" | "replicasets") => template(object),
        ("apiextensions.k8s.io", _) => definition(object),
        _ => {}
    }
}

fn pod_spec(spec: &mut Map<String, Value>) {
    default(spec, "restartPolicy", "Always".into());
    default(spec, "terminationGracePeriodSeconds", 30.into());
    default(spec, "dnsPolicy", "ClusterFirst".into());
    default(spec, "securityContext", json!({}));
    default(spec, "schedulerName", "default-scheduler".into());
    for name in ["containers", "initContainers"] {
        for container in spec.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                self::container(container);
            }
        }
    }
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        default(spec, "serviceAccount", account);
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        for (name, mode) in
            [("configMap", "defaultMode"), ("secret", "defaultMode"), ("projected", "defaultMode")]
        {
            if let Some(source) = volume.get_mut(name).and_then(Value::as_object_mut) {
                default(source, mode, 420.into());
            }
        }
    }
}

fn container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !image.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
    default(container, "imagePullPolicy", if is_latest { "Always" } else { "IfNotPresent" }.into());
    default(container, "terminationMessagePath", "/dev/termination-log".into());
    default(container, "terminationMessagePolicy", "File".into());
    default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            default(port, "protocol", "TCP".into());
        }
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef").and_then(Value::as_object_mut) {
            default(field, "apiVersion", "v1".into());
        }
    }
}

/// These members are no pointers in Kubernetes' types, so every Node has them.
fn node_status(object: &mut Value) {
    let status = member(object, "status");
    default(status, "daemonEndpoints", json!({"kubeletEndpoint": {"Port": 0}}));
    let info = ["architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"]
        .into_iter()
        .chain(["kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"]);
    default(
        status,
        "nodeInfo",
        info.map(|name| (name.to_owned(), Value::from(""))).collect::<Map<_, _>>().into(),
    );
}

/// `status.qosClass`, without the quantities themselves.
fn quality(object: &mut Value) {
    let containers = object["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let has = |container: &Value, part: &str| {
        container["resources"][part].as_object().is_some_and(|part| !part.is_empty())
    };
    let guaranteed = |container: &Value| {
        let limits = &container["resources"]["limits"];
        let requests = &container["resources"]["requests"];
        ["cpu", "memory"].iter().all(|name| {
            limits.get(name).is_some() && requests.get(name).is_none_or(|value| value == &limits[name])
        })
    };
    let class = if !containers.iter().any(|one| has(one, "limits") || has(one, "requests")) {
        "BestEffort"
    } else if containers.iter().all(guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    };
    default(member(object, "status"), "qosClass", class.into());
}

/// `stringData` is written into `data`, in Base64.
fn secret(object: &mut Value) {
    let Some(secret) = object.as_object_mut() else { return };
    default(secret, "type", "Opaque".into());
    let Some(Value::Object(texts)) = secret.remove("stringData") else { return };
    let data = secret.entry("data").or_insert_with(|| json!({}));
    for (name, value) in texts {
        let bytes = k8s_openapi::ByteString(value.as_str().unwrap_or_default().as_bytes().to_vec());
        data[name] = serde_json::to_value(bytes).unwrap_or_default();
    }
}

fn service(object: &mut Value) {
    let spec = member(object, "spec");
    default(spec, "type", "ClusterIP".into());
    default(spec, "sessionAffinity", "None".into());
    if spec["type"] != "ExternalName" {
        default(spec, "internalTrafficPolicy", "Cluster".into());
        default(spec, "ipFamilies", json!(["IPv4"]));
        default(spec, "ipFamilyPolicy", "SingleStack".into());
    }
    if matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
        default(spec, "externalTrafficPolicy", "Cluster".into());
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(port) = port.as_object_mut() else { continue };
        default(port, "protocol", "TCP".into());
        if let Some(number) = port.get("port").cloned() {
            default(port, "targetPort", number);
        }
    }
    default(member(object, "status"), "loadBalancer", json!({}));
}

/// An address for a Service that has none and wants one: the first that no other has.
pub(super) fn allocate_address(service: &mut Value, taken: &BTreeSet<String>) {
    let spec = member(service, "spec");
    let wants = spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default().is_empty();
    let is_external = spec.get("type").is_some_and(|kind| kind == "ExternalName");
    if !is_external && wants {
        let mut all = (2..=u16::MAX).map(|number| format!("10.96.{}.{}", number / 256, number % 256));
        if let Some(address) = all.find(|address| !taken.contains(address)) {
            spec.insert("clusterIP".to_owned(), address.into());
        }
    }
    if let Some(address) = spec.get("clusterIP").filter(|address| address.is_string()).cloned() {
        default(spec, "clusterIPs", json!([address]));
    }
}

fn namespace(object: &mut Value) {
    let name = text(object, "/metadata/name").to_owned();
    member(&mut object["metadata"], "labels").insert("kubernetes.io/metadata.name".to_owned(), name.into());
    default(member(object, "spec"), "finalizers", json!(["kubernetes"]));
    default(member(object, "status"), "phase", "Active".into());
}

fn template(object: &mut Value) {
    let template = member(object, "spec").entry("template").or_insert_with(|| json!({}));
    pod_spec(member(template, "spec"));
}

fn deployment(object: &mut Value) {
    template(object);
    let spec = member(object, "spec");
    default(spec, "replicas", 1.into());
    default(spec, "revisionHistoryLimit", 10.into());
    default(spec, "progressDeadlineSeconds", 600.into());
    let strategy = spec.entry("strategy").or_insert_with(|| json!({}));
    if let Some(strategy) = strategy.as_object_mut() {
        default(strategy, "type", "RollingUpdate".into());
        if strategy["type"] == "RollingUpdate" {
            let rolling = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
            if let Some(rolling) = rolling.as_object_mut() {
                default(rolling, "maxSurge", "25%".into());
                default(rolling, "maxUnavailable", "25%".into());
            }
        }
    }
    member(object, "status");
}

fn stateful_set(object: &mut Value) {
    template(object);
    let spec = member(object, "spec");
    default(spec, "replicas", 1.into());
    default(spec, "revisionHistoryLimit", 10.into());
    default(spec, "podManagementPolicy", "OrderedReady".into());
    default(
        spec,
        "persistentVolumeClaimRetentionPolicy",
        json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
    );
    let strategy = spec.entry("updateStrategy").or_insert_with(|| json!({}));
    if let Some(strategy) = strategy.as_object_mut() {
        default(strategy, "type", "RollingUpdate".into());
        if strategy["type"] == "RollingUpdate" {
            default(strategy, "rollingUpdate", json!({"partition": 0}));
        }
    }
    default(member(object, "status"), "replicas", 0.into());
}

fn definition(object: &mut Value) {
    let spec = member(object, "spec");
    default(spec, "conversion", json!({"strategy": "None"}));
    let names = spec.entry("names").or_insert_with(|| json!({}));
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(names) = names.as_object_mut() {
        default(names, "singular", kind.to_lowercase().into());
        default(names, "listKind", format!("{kind}List").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(group: &str, resource: &str, mut object: Value) -> Value {
        set(&KindKey::new(group, resource), &mut object);
        object
    }

    #[test]
    fn pods_and_workloads_get_what_an_api_server_gives_them() {
        let pod =
            defaulted("", "pods", json!({"spec": {"containers": [{"name": "c", "image": "a:5000/b"}]}}));
        assert_eq!(pod["spec"]["restartPolicy"], "Always");
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
        let set = defaulted("apps", "statefulsets", json!({"spec": {}}));
        assert_eq!(
            set["spec"]["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
        );
        let deployment =
            defaulted("apps", "deployments", json!({"spec": {"strategy": {"type": "Recreate"}}}));
        assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}));
        assert_eq!(deployment["spec"]["template"]["spec"]["dnsPolicy"], "ClusterFirst");
    }

    #[test]
    fn the_texts_of_a_secret_become_data() {
        let secret = defaulted("", "secrets", json!({"stringData": {"a": "hello"}, "data": {"b": "eA=="}}));
        assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "aGVsbG8=", "b": "eA=="}}));
    }

    #[test]
    fn services_get_addresses_of_their_own() {
        let mut service = defaulted("", "services", json!({"spec": {"ports": [{"port": 80}]}}));
        allocate_address(&mut service, &BTreeSet::from(["10.96.0.2".to_owned()]));
        assert_eq!(service["spec"]["clusterIPs"], json!(["10.96.0.3"]));
        assert_eq!(service["spec"]["ports"][0], json!({"port": 80, "protocol": "TCP", "targetPort": 80}));
        let mut headless = defaulted("", "services", json!({"spec": {"clusterIP": "None"}}));
        allocate_address(&mut headless, &BTreeSet::new());
        assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    }
}
