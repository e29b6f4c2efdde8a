//! The table: requests of node A, and the code of each answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_tests::raw::{Names, signing_request};
use tombolo_tests::world::objects::NAMESPACE;

/// One request of node A.
pub(super) struct Row {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: Value,
    /// The API server's code, or cloudcore's own 400 for a request whose answer would not end.
    pub(super) code: u16,
}

pub(super) fn row(method: &'static str, path: impl Into<String>, body: Value, code: u16) -> Row {
    Row { method, path: path.into(), body, code }
}

/// Prefixes of paths, of namespaced and of cluster-wide kinds.
pub(super) const CORE: &str = "/api/v1";
pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
pub(super) const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
pub(super) const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";
pub(super) const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const NEW_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shops/events";
const SLICES: &str = "/apis/discovery.k8s.io/v1";

/// Path of a namespaced collection of the core group.
pub(super) fn of(kind: &str) -> String {
    format!("{CORE}/namespaces/{NAMESPACE}/{kind}")
}

fn none() -> Value {
    Value::Null
}

fn status() -> Value {
    json!({"status": {"phase": "Running"}})
}

fn label(key: &str) -> Value {
    json!({"metadata": {"labels": {key: "x"}}})
}

fn at_once() -> Value {
    json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
}

pub(super) fn lease(node: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
           "spec": {"holderIdentity": node, "leaseDurationSeconds": 40}})
}

pub(super) fn named(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
}

/// A request for a token that is bound to a pod.
pub(super) fn token(pod: &str, uid: &str) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [],
           "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}}})
}

pub(super) fn event(name: &str, pod: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": NAMESPACE},
           "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": pod, "namespace": NAMESPACE},
           "reason": "Tested", "message": "as a node would", "type": "Normal"})
}

/// An event in the form of newer clients.
fn new_event() -> Value {
    json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "new-a", "namespace": NAMESPACE},
           "eventTime": "2026-01-02T03:04:05.000000Z", "reason": "Tested", "action": "Test", "type": "Normal",
           "reportingController": "example.com/test", "reportingInstance": "test",
           "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "pod-a", "namespace": NAMESPACE}})
}

fn series() -> Value {
    json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000000Z"}})
}

/// A mirror pod on a node whose Node object has this UID.
pub(super) fn mirror(name: &str, node: &str, uid: &str) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": true});
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": name, "annotations": {"kubernetes.io/config.mirror": "m"}, "ownerReferences": [owner]},
           "spec": {"nodeName": node, "containers": [{"name": "c", "image": "registry.example/c:1"}]}})
}

/// A request for a client certificate of a node.
pub(super) fn certificate(name: &str, node: &str) -> Value {
    let common = format!("system:node:{node}");
    let names = Names { common: &common, organisations: &["system:nodes"], dns: &[] };
    let (der, _) = signing_request(&names).unwrap();
    let body = STANDARD.encode(der);
    let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n");
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
           "spec": {"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                    "usages": ["digital signature", "client auth"]}})
}

/// UIDs that requests must contain: of both nodes and their pods.
#[derive(Default)]
pub(super) struct Uids {
    pub(super) own_node: String,
    pub(super) other_node: String,
    pub(super) own_pod: String,
    pub(super) other_pod: String,
}

/// Every row; those that delete the node's own objects come last.
pub(super) fn table(uids: &Uids) -> Vec<Row> {
    let own = [nodes(), of_pods(uids), configs(), leases(), accounts(uids), storage()];
    let general = [others(), reviews(), whole_collections()];
    own.into_iter().chain(general).flatten().collect()
}

/// Deletions that the node may do at the end.
pub(super) fn farewell() -> Vec<Row> {
    vec![row("DELETE", of("pods/pod-a"), at_once(), 200)]
}

fn nodes() -> Vec<Row> {
    let path = |name: &str| format!("{CORE}/nodes/{name}");
    let edge = json!({"apiVersion": "v1", "kind": "Node", "status": {"phase": "Running"},
                      "metadata": {"name": "node-a", "labels": {"node-role.kubernetes.io/edge": ""}}});
    vec![
        row("GET", path("node-a"), none(), 200),
        row("GET", path("node-b"), none(), 200),
        row("POST", format!("{CORE}/nodes"), named("Node", "node-b"), 403),
        row("POST", format!("{CORE}/nodes"), named("Node", "node-c"), 403),
        row("PATCH", path("node-a/status"), status(), 200),
        row("PATCH", path("node-b/status"), status(), 403),
        // A complete object without the node's taints changes the taints.
        row("PUT", path("node-a/status"), edge, 403),
        row("PUT", path("node-b/status"), named("Node", "node-b"), 403),
        row("PUT", path("node-b"), named("Node", "node-b"), 403),
        row("GET", path("node-a/status"), none(), 403),
        row("PATCH", path("node-a"), label("example.com/mine"), 200),
        row("PATCH", path("node-a"), label("node-restriction.kubernetes.io/x"), 403),
        row("PATCH", path("node-a"), label("node-role.kubernetes.io/control-plane"), 403),
        row(
            "PATCH",
            path("node-a"),
            json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
            403,
        ),
        row("PATCH", path("node-b"), label("example.com/mine"), 403),
        row("DELETE", path("node-a"), none(), 403),
        row("DELETE", path("node-b"), none(), 403),
    ]
}

fn of_pods(uids: &Uids) -> Vec<Row> {
    let pod = |name: &str| of(&format!("pods/{name}"));
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pod-b"}});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "pod-b"}, "target": {"name": "node-a"}});
    vec![
        row("GET", pod("pod-a"), none(), 200),
        row("GET", pod("pod-b"), none(), 403),
        row("GET", format!("{CORE}/pods?fieldSelector=spec.nodeName%3Dnode-a"), none(), 200),
        row("GET", format!("{CORE}/pods?fieldSelector=spec.nodeName%3Dnode-b"), none(), 403),
        row("GET", format!("{CORE}/pods"), none(), 403),
        row("GET", of("pods"), none(), 403),
        row("POST", of("pods"), mirror("mirror-a", "node-a", &uids.own_node), 201),
        row("POST", of("pods"), mirror("mirror-b", "node-b", &uids.other_node), 403),
        row("GET", pod("pod-a/status"), none(), 403),
        row("PATCH", pod("pod-a/status"), status(), 200),
        // For a report, another node's pod does not exist: a report that was refused with 403 would be repeated for days.
        row("PATCH", pod("pod-b/status"), status(), 404),
        row("PUT", pod("pod-b/status"), named("Pod", "pod-b"), 404),
        row("PATCH", pod("pod-a"), label("x"), 403),
        row("PUT", pod("pod-a"), named("Pod", "pod-a"), 403),
        row("PUT", pod("pod-b"), named("Pod", "pod-b"), 403),
        row("POST", pod("pod-b/eviction"), eviction, 403),
        row("POST", pod("pod-b/binding"), binding, 403),
        row("GET", pod("pod-b/log"), none(), 403),
        row("DELETE", pod("pod-b"), at_once(), 403),
    ]
}

fn configs() -> Vec<Row> {
    let mut rows = Vec::new();
    for (plural, kind, prefix) in [("secrets", "Secret", "secret"), ("configmaps", "ConfigMap", "map")] {
        let path = |node: &str| of(&format!("{plural}/{prefix}-{node}"));
        rows.extend([
            row("GET", path("a"), none(), 200),
            row("GET", path("b"), none(), 403),
            row("GET", of(plural), none(), 403),
            row("GET", of(&format!("{plural}?fieldSelector=metadata.name%3D{prefix}-b")), none(), 403),
            row("POST", of(plural), named(kind, "new"), 403),
        ]);
        for node in ["a", "b"] {
            let replacement = named(kind, &format!("{prefix}-{node}"));
            rows.extend([
                row("PATCH", path(node), label("x"), 403),
                row("PUT", path(node), replacement, 403),
                row("DELETE", path(node), none(), 403),
            ]);
        }
    }
    rows.push(row("GET", "/api/v1/namespaces/kubeedge/secrets/casecret", none(), 403));
    rows
}

fn leases() -> Vec<Row> {
    let path = |name: &str| format!("{LEASES}/{name}");
    vec![
        row("POST", LEASES, lease("node-a"), 201),
        row("GET", path("node-a"), none(), 200),
        row("PATCH", path("node-a"), json!({"spec": {"leaseDurationSeconds": 41}}), 200),
        row("POST", LEASES, lease("node-b"), 403),
        row("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease("node-a"), 403),
        row("GET", path("node-b"), none(), 403),
        row("PATCH", path("node-b"), json!({"spec": {"leaseDurationSeconds": 41}}), 403),
        row("PUT", path("node-b"), lease("node-b"), 403),
        row("DELETE", path("node-b"), none(), 403),
    ]
}

fn accounts(uids: &Uids) -> Vec<Row> {
    let path = |name: &str| of(&format!("serviceaccounts/{name}"));
    let unbound =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    vec![
        row("GET", path("account-a"), none(), 200),
        row("GET", path("account-b"), none(), 403),
        row("PATCH", path("account-b"), label("x"), 403),
        row("PUT", path("account-b"), named("ServiceAccount", "account-b"), 403),
        row("DELETE", path("account-b"), none(), 403),
        // Tokens: only for the account of a pod that is bound to this node, and bound to that pod.
        row("POST", path("account-a/token"), token("pod-a", &uids.own_pod), 201),
        row("POST", path("account-a/token"), unbound.clone(), 403),
        row("POST", path("account-b/token"), token("pod-b", &uids.other_pod), 403),
        row("POST", path("account-b/token"), token("pod-a", &uids.own_pod), 403),
        row("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", unbound, 403),
    ]
}

fn storage() -> Vec<Row> {
    let volume = |name: &str| format!("{CORE}/persistentvolumes/{name}");
    let claim = |name: &str| of(&format!("persistentvolumeclaims/{name}"));
    let csi_node = |name: &str| json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": []}});
    vec![
        row("GET", volume("volume-b"), none(), 403),
        row("PATCH", volume("volume-b"), label("x"), 403),
        row("PUT", volume("volume-b"), named("PersistentVolume", "volume-b"), 403),
        row("DELETE", volume("volume-b"), none(), 403),
        row("GET", claim("claim-a"), none(), 200),
        row("GET", claim("claim-b"), none(), 403),
        row("PATCH", claim("claim-b/status"), json!({"status": {}}), 403),
        row("PUT", claim("claim-b"), named("PersistentVolumeClaim", "claim-b"), 403),
        row("DELETE", claim("claim-b"), none(), 403),
        row("GET", ATTACHMENTS, none(), 403),
        row("GET", format!("{ATTACHMENTS}/attachment-b"), none(), 403),
        row("DELETE", format!("{ATTACHMENTS}/attachment-b"), none(), 403),
        row("POST", CSI_NODES, csi_node("node-a"), 201),
        row("GET", format!("{CSI_NODES}/node-a"), none(), 200),
        row("POST", CSI_NODES, csi_node("node-b"), 403),
        row("PATCH", format!("{CSI_NODES}/node-b"), label("x"), 403),
        row("PUT", format!("{CSI_NODES}/node-b"), csi_node("node-b"), 403),
        row("DELETE", format!("{CSI_NODES}/node-b"), none(), 403),
    ]
}

fn others() -> Vec<Row> {
    let service = || of("services/till");
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    vec![
        row("GET", service(), none(), 200),
        row("GET", format!("{CORE}/services"), none(), 200),
        row("PATCH", service(), label("x"), 403),
        row("PUT", service(), named("Service", "till"), 403),
        row("DELETE", service(), none(), 403),
        row("PATCH", format!("{SLICES}/namespaces/{NAMESPACE}/endpointslices/till"), label("x"), 403),
        row("POST", of("events"), event("about-a", "pod-a"), 201),
        row("PATCH", of("events/about-a"), json!({"message": "again"}), 200),
        row("PUT", of("events/about-a"), event("about-a", "pod-a"), 200),
        row("POST", NEW_EVENTS, new_event(), 201),
        row("PATCH", format!("{NEW_EVENTS}/new-a"), series(), 200),
        row("PUT", format!("{NEW_EVENTS}/new-b"), new_event(), 400),
        row("GET", of("events/about-a"), none(), 403),
        row("DELETE", of("events/about-a"), none(), 403),
        row("POST", REQUESTS, certificate("request-a", "node-a"), 201),
        row("GET", format!("{REQUESTS}/request-a"), none(), 200),
        row("POST", REQUESTS, certificate("request-b", "node-b"), 403),
        row("PUT", format!("{REQUESTS}/request-a/approval"), none(), 403),
        row("GET", "/apis/storage.k8s.io/v1/csidrivers", none(), 200),
        row("GET", "/apis/storage.k8s.io/v1/csidrivers/none", none(), 404),
        row("GET", "/apis/node.k8s.io/v1/runtimeclasses", none(), 200),
        row("GET", "/apis/node.k8s.io/v1/runtimeclasses/none", none(), 404),
        row("GET", roles, none(), 403),
        row("POST", format!("{CORE}/namespaces"), named("Namespace", "x"), 403),
        row("GET", "/apis/apps/v1/deployments", none(), 403),
    ]
}

/// Kinds whose collections only an administrator may delete.
const COLLECTIONS: [&str; 12] = [
    "/api/v1/nodes",
    "/api/v1/namespaces/shops/pods",
    "/api/v1/namespaces/shops/secrets",
    "/api/v1/namespaces/shops/configmaps",
    "/api/v1/namespaces/shops/events",
    "/api/v1/namespaces/shops/serviceaccounts",
    "/api/v1/namespaces/shops/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    LEASES,
    CSI_NODES,
    ATTACHMENTS,
    REQUESTS,
];

/// A node may not delete a collection, and cannot watch by an API call: cloudcore itself rejects that.
fn whole_collections() -> Vec<Row> {
    let mut rows = Vec::new();
    for path in COLLECTIONS {
        rows.push(row("DELETE", path, none(), 403));
        rows.push(row("GET", format!("{path}?watch=true"), none(), 400));
    }
    rows
}

/// Reviews of others, as a kubelet requests them.
fn reviews() -> Vec<Row> {
    const ROOT: &str = "/apis/authorization.k8s.io/v1";
    let whole = |kind: &str, spec: &Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    let asked = json!({"verb": "get", "resource": "pods", "namespace": NAMESPACE});
    let about = json!({"user": "somebody", "resourceAttributes": asked});
    let mut local = whole("LocalSubjectAccessReview", &about);
    local["metadata"] = json!({"namespace": NAMESPACE});
    let own = whole("SelfSubjectAccessReview", &json!({"resourceAttributes": asked}));
    let rules = whole("SelfSubjectRulesReview", &json!({"namespace": NAMESPACE}));
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}});
    let of = format!("{ROOT}/namespaces/{NAMESPACE}/localsubjectaccessreviews");
    vec![
        row("POST", "/apis/authentication.k8s.io/v1/tokenreviews", token, 201),
        row("POST", format!("{ROOT}/subjectaccessreviews"), whole("SubjectAccessReview", &about), 201),
        row("POST", of, local, 201),
        row("POST", format!("{ROOT}/selfsubjectaccessreviews"), own, 201),
        row("POST", format!("{ROOT}/selfsubjectrulesreviews"), rules, 201),
    ]
}
