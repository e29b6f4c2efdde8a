//! Admission: namespaces that exist, what a node may write (docs/reference/kubernetes.md#noderestriction), and what the
//! default plugins add to pods and nodes.

use serde_json::{Value, json};

use super::kinds::{KindInfo, KindKey};
use super::object::{self, default, member, text};
use super::rights::ApiUser;
use super::state::ModelState;
use super::status::ApiStatus;

/// Annotation of pods that a kubelet runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Admits a new object, and adds what the plugins add.
///
/// # Errors
/// 403 or 404.
pub(super) fn create(
    state: &mut ModelState,
    user: &ApiUser,
    kind: &KindInfo,
    object: &mut Value,
) -> Result<(), ApiStatus> {
    namespace_accepts(state, kind, object)?;
    if let Some(node) = user.node() {
        node_creates(state, node, kind, object)?;
    }
    match (kind.key.group.as_str(), kind.key.resource.as_str()) {
        ("", "pods") => pod(state, object)?,
        ("", "nodes") => taint(object),
        _ => {}
    }
    Ok(())
}

/// NamespaceLifecycle.
fn namespace_accepts(state: &ModelState, kind: &KindInfo, object: &Value) -> Result<(), ApiStatus> {
    if !kind.namespaced {
        return Ok(());
    }
    let (key, namespace) = (KindKey::new("", "namespaces"), object::namespace(object));
    let Some(found) = state.storage.get(&key, namespace) else {
        return Err(ApiStatus::not_found(&key, namespace));
    };
    if !object::is_being_deleted(found) {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut refused = ApiStatus::forbidden(&kind.key, object::name(object), &why);
    let message = format!("namespace {namespace} is being terminated");
    refused.details["causes"] =
        json!([{"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}]);
    Err(refused)
}

fn pod(state: &mut ModelState, object: &mut Value) -> Result<(), ApiStatus> {
    let spec = member(object, "spec");
    default(spec, "priority", 0.into());
    default(spec, "preemptionPolicy", "PreemptLowerPriority".into());
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    for condition in ["not-ready", "unreachable"] {
        let key = format!("node.kubernetes.io/{condition}");
        let tolerated = |one: &Value| {
            let is_it = one["key"] == key.as_str() || one["key"].is_null();
            is_it && matches!(one["effect"].as_str(), None | Some("NoExecute"))
        };
        if let Some(list) = tolerations.as_array_mut().filter(|list| !list.iter().any(tolerated)) {
            list.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
    if object["metadata"]["annotations"].get(MIRROR).is_some() {
        return Ok(());
    }
    service_account(state, object)
}

/// The plugin ServiceAccount: the account has to exist, and its token is mounted.
fn service_account(state: &mut ModelState, object: &mut Value) -> Result<(), ApiStatus> {
    let (namespace, name) = (object::namespace(object).to_owned(), object::name(object).to_owned());
    let spec = member(object, "spec");
    default(spec, "serviceAccountName", "default".into());
    let account = spec["serviceAccountName"].as_str().unwrap_or_default().to_owned();
    default(spec, "serviceAccount", account.as_str().into());
    let found = state.storage.get(&KindKey::new("", "serviceaccounts"), &format!("{namespace}/{account}"));
    let Some(found) = found else {
        let why = format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        );
        return Err(ApiStatus::forbidden(&KindKey::new("", "pods"), &name, &why));
    };
    let wants = |value: &Value| value["automountServiceAccountToken"].as_bool();
    if !wants(&object["spec"]).or_else(|| wants(found)).unwrap_or(true) {
        return Ok(());
    }
    mount_token(object, &state.dice.name("kube-api-access-"));
    Ok(())
}

fn mount_token(object: &mut Value, volume: &str) {
    const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let is_mounted = |container: &Value| {
        container["volumeMounts"]
            .as_array()
            .is_some_and(|list| list.iter().any(|one| one["mountPath"] == PATH))
    };
    let spec = member(object, "spec");
    let mut used = false;
    for name in ["initContainers", "containers"] {
        for container in spec.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten() {
            if is_mounted(container) {
                continue;
            }
            let Some(container) = container.as_object_mut() else { continue };
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            if let Some(mounts) = mounts.as_array_mut() {
                mounts.push(json!({"name": volume, "readOnly": true, "mountPath": PATH}));
                used = true;
            }
        }
    }
    if !used {
        return;
    }
    let namespace =
        json!({"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}});
    let volume = json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]}});
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    if let Some(volumes) = volumes.as_array_mut() {
        volumes.push(volume);
    }
}

/// The plugin TaintNodesByCondition.
fn taint(object: &mut Value) {
    let taints = member(object, "spec").entry("taints").or_insert_with(|| json!([]));
    let key = "node.kubernetes.io/not-ready";
    if let Some(taints) = taints.as_array_mut()
        && !taints.iter().any(|taint| taint["key"] == key)
    {
        taints.push(json!({"key": key, "effect": "NoSchedule"}));
    }
}

fn restricted(kind: &KindInfo, name: &str, why: &str) -> ApiStatus {
    ApiStatus::forbidden(&kind.key, name, why)
}

fn node_creates(state: &ModelState, node: &str, kind: &KindInfo, object: &Value) -> Result<(), ApiStatus> {
    let name = object::name(object);
    match (kind.key.group.as_str(), kind.key.resource.as_str()) {
        ("", "nodes") => {
            own_node(node, kind, name)?;
            labels(kind, &Value::Null, object)
        }
        ("", "pods") => mirror_pod(state, node, kind, object),
        ("coordination.k8s.io", "leases") => {
            let own = object::namespace(object) == "kube-node-lease" && name == node;
            let why = "can only access node lease with the same name as the requesting node";
            own.then_some(()).ok_or_else(|| restricted(kind, name, why))
        }
        ("storage.k8s.io", "csinodes") => {
            let why = "can only access CSINode with the same name as the requesting node";
            (name == node).then_some(()).ok_or_else(|| restricted(kind, name, why))
        }
        _ => Ok(()),
    }
}

fn own_node(node: &str, kind: &KindInfo, name: &str) -> Result<(), ApiStatus> {
    let why = format!("node {node:?} is not allowed to modify node {name:?}");
    (name == node).then_some(()).ok_or_else(|| restricted(kind, name, &why))
}

fn mirror_pod(state: &ModelState, node: &str, kind: &KindInfo, object: &Value) -> Result<(), ApiStatus> {
    let name = object::name(object);
    let refuse = |why: String| Err(restricted(kind, name, &why));
    if object["metadata"]["annotations"].get(MIRROR).is_none() {
        return refuse(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if text(object, "/spec/nodeName") != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = object["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    let own = state.storage.get(&KindKey::new("", "nodes"), node);
    let owned = |owner: &Value| {
        owner["kind"] == "Node"
            && owner["name"] == node
            && own.is_some_and(|own| owner["uid"] == object::uid(own))
    };
    match owners {
        [] => {}
        [one] if owned(one) => {}
        _ => {
            return refuse(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
    }
    if !text(object, "/spec/serviceAccountName").is_empty() {
        return refuse(format!("node {node:?} can not create pods that reference a service account"));
    }
    Ok(())
}

/// Labels in the domains of Kubernetes that a node may set itself.
const OWN_LABELS: [&str; 13] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
];

fn may_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || OWN_LABELS.contains(&key) || within("kubelet.kubernetes.io") || within("node.kubernetes.io")
}

fn labels(kind: &KindInfo, old: &Value, new: &Value) -> Result<(), ApiStatus> {
    let of = |object: &Value| object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (before, after) = (of(old), of(new));
    let all = before.keys().chain(after.keys());
    let mut changed: Vec<&str> =
        all.filter(|key| before.get(*key) != after.get(*key)).map(String::as_str).collect();
    changed.retain(|key| !may_label(key));
    changed.sort_unstable();
    changed.dedup();
    if changed.is_empty() {
        return Ok(());
    }
    let why = format!("is not allowed to modify labels: {}", changed.join(", "));
    Err(restricted(kind, object::name(new), &why))
}

/// Admits an update.
///
/// # Errors
/// 403.
pub(super) fn update(
    user: &ApiUser,
    kind: &KindInfo,
    (old, new): (&Value, &Value),
    subresource: &str,
) -> Result<(), ApiStatus> {
    let Some(node) = user.node() else { return Ok(()) };
    let name = object::name(old);
    match (kind.key.group.as_str(), kind.key.resource.as_str(), subresource) {
        ("", "nodes", _) => {
            own_node(node, kind, name)?;
            if old["spec"]["taints"] != new["spec"]["taints"] {
                let why = format!("node {node:?} is not allowed to modify taints");
                return Err(restricted(kind, name, &why));
            }
            labels(kind, old, new)
        }
        ("", "pods", "status") => {
            if text(old, "/spec/nodeName") != node {
                let why = format!(
                    "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
                );
                return Err(restricted(kind, name, &why));
            }
            if old["metadata"]["labels"] != new["metadata"]["labels"] {
                let why = format!("node {node:?} cannot update labels through pod status");
                return Err(restricted(kind, name, &why));
            }
            Ok(())
        }
        ("coordination.k8s.io" | "storage.k8s.io", ..) if name != node => {
            let why = "can only access node lease with the same name as the requesting node";
            Err(restricted(kind, name, why))
        }
        _ => Ok(()),
    }
}

/// Admits a deletion.
///
/// # Errors
/// 403.
pub(super) fn delete(user: &ApiUser, kind: &KindInfo, object: &Value) -> Result<(), ApiStatus> {
    let name = object::name(object);
    let kept = ["default", "kube-system", "kube-public"];
    if kind.key == KindKey::new("", "namespaces") && kept.contains(&name) {
        return Err(restricted(kind, name, "this namespace may not be deleted"));
    }
    let Some(node) = user.node() else { return Ok(()) };
    match kind.key.resource.as_str() {
        "pods" if text(object, "/spec/nodeName") != node => {
            let why = format!("node {node:?} can only delete pods with spec.nodeName set to itself");
            Err(restricted(kind, name, &why))
        }
        "nodes" => own_node(node, kind, name),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::built_in;
    use super::super::rights::RightsTable;
    use super::*;

    fn kind(name: &str) -> KindInfo {
        built_in().find(|kind| kind.kind == name).expect("a kind")
    }

    fn state() -> ModelState {
        let mut state = ModelState::new(1, 0, RightsTable::default());
        state.put(&kind("Namespace"), json!({"metadata": {"name": "d"}}), "c");
        let gone = json!({"metadata": {"name": "gone", "deletionTimestamp": "t"}});
        state.put(&kind("Namespace"), gone, "c");
        state
    }

    fn pod(namespace: &str) -> Value {
        json!({"metadata": {"name": "p", "namespace": namespace}, "spec": {"containers": [{"name": "c"}]}})
    }

    #[test]
    fn objects_need_a_namespace_that_stays() {
        let (mut state, admin) = (state(), ApiUser::named("admin"));
        let mut admit = |namespace: &str| {
            let mut map = json!({"metadata": {"name": "m", "namespace": namespace}});
            create(&mut state, &admin, &kind("ConfigMap"), &mut map).map_err(|refused| refused.code)
        };
        assert_eq!(admit("d"), Ok(()));
        assert_eq!(admit("none"), Err(404));
        assert_eq!(admit("gone"), Err(403));
    }

    #[test]
    fn pods_get_the_token_of_an_account_that_exists() {
        let (mut state, admin) = (state(), ApiUser::named("admin"));
        let mut first = pod("d");
        let refused = create(&mut state, &admin, &kind("Pod"), &mut first).expect_err("no account");
        assert!(
            refused.code == 403 && refused.message.contains("error looking up service account d/default")
        );
        let account = json!({"metadata": {"name": "default", "namespace": "d"}});
        state.put(&kind("ServiceAccount"), account, "c");
        let mut second = pod("d");
        create(&mut state, &admin, &kind("Pod"), &mut second).expect("admitted");
        let volume = &second["spec"]["volumes"][0];
        assert_eq!(volume["projected"]["sources"][1]["configMap"]["name"], "kube-root-ca.crt");
        assert_eq!(second["spec"]["containers"][0]["volumeMounts"][0]["name"], volume["name"]);
        assert_eq!(second["spec"]["tolerations"].as_array().map(Vec::len), Some(2));
        let mut quiet = pod("d");
        quiet["spec"]["automountServiceAccountToken"] = false.into();
        create(&mut state, &admin, &kind("Pod"), &mut quiet).expect("admitted");
        assert!(quiet["spec"].get("volumes").is_none());
    }

    #[test]
    fn a_node_writes_only_what_is_its_own() {
        let (mut state, node) = (state(), ApiUser::named("system:node:n"));
        let mut code = |of: &str, mut object: Value| {
            create(&mut state, &node, &kind(of), &mut object).map_err(|refused| refused.message)
        };
        let other = code("Node", json!({"metadata": {"name": "m"}})).expect_err("not its own");
        assert!(other.contains(r#"node "n" is not allowed to modify node "m""#), "{other}");
        code("Node", json!({"metadata": {"name": "n", "labels": {"shop": "7"}}})).expect("its own");
        let edge = json!({"metadata": {"name": "n", "labels": {"node-role.kubernetes.io/edge": ""}}});
        code("Node", edge).expect_err("a reserved label");
        code("Pod", pod("d")).expect_err("no mirror pod");
        let mut mirror = pod("d");
        mirror["metadata"]["annotations"] = json!({MIRROR: "x"});
        mirror["spec"]["nodeName"] = "n".into();
        code("Pod", mirror).expect("a mirror pod");
        let bound = |node: &str| json!({"metadata": {"name": "p"}, "spec": {"nodeName": node}});
        for (of, expected) in [("n", true), ("m", false)] {
            let pods = kind("Pod");
            assert_eq!(update(&node, &pods, (&bound(of), &bound(of)), "status").is_ok(), expected);
            assert_eq!(delete(&node, &pods, &bound(of)).is_ok(), expected);
        }
        let tainted = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a"}]}});
        update(&node, &kind("Node"), (&json!({"metadata": {"name": "n"}}), &tainted), "")
            .expect_err("a taint");
    }
}
