//! Random calls. They name versions and identifiers by the object whose they are, since the servers choose other ones.

use std::fmt;

use http::Method;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};

/// End of the name of the object that ends what is compared of a watch.
pub(crate) const FENCE: &str = "fence";

/// A call of the API.
#[derive(Debug, Clone)]
pub(crate) struct ApiCall {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Value,
}

impl ApiCall {
    fn new(method: Method, path: String, body: Value) -> Self {
        Self { method, path, content_type: "application/json", body }
    }

    pub(crate) fn post(path: &str, body: Value) -> Self {
        Self::new(Method::POST, path.to_owned(), body)
    }
}

impl fmt::Display for ApiCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.method, self.path, self.content_type, self.body)
    }
}

/// A kind of the series.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComparedKind {
    prefix: &'static str,
    pub(crate) plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    has_status: bool,
}

impl ComparedKind {
    /// Path of its objects: those of one namespace, or all.
    pub(crate) fn collection(&self, namespace: &str) -> String {
        let Self { prefix, plural, .. } = self;
        if self.namespaced {
            format!("{prefix}/namespaces/{namespace}/{plural}")
        } else {
            format!("{prefix}/{plural}")
        }
    }

    fn api_version(&self) -> &'static str {
        self.prefix.trim_start_matches("/apis/").trim_start_matches("/api/")
    }
}

const fn kind(prefix: &'static str, plural: &'static str, kind: &'static str) -> ComparedKind {
    ComparedKind { prefix, plural, kind, namespaced: true, has_status: false }
}

pub(crate) const KINDS: [ComparedKind; 6] = [
    kind("/api/v1", "configmaps", "ConfigMap"),
    kind("/api/v1", "secrets", "Secret"),
    ComparedKind { has_status: true, ..kind("/api/v1", "pods", "Pod") },
    ComparedKind { has_status: true, namespaced: false, ..kind("/api/v1", "nodes", "Node") },
    kind("/apis/coordination.k8s.io/v1", "leases", "Lease"),
    kind("/api/v1", "serviceaccounts", "ServiceAccount"),
];

/// Chooses the calls.
pub(crate) struct Writer {
    namespace: String,
    /// Grows, so that contents differ.
    count: u32,
}

impl Writer {
    pub(crate) fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), count: 0 }
    }

    pub(crate) fn next(&mut self, rng: &mut StdRng) -> ApiCall {
        self.count += 1;
        let kind = KINDS.choose(rng).expect("kinds");
        let name = ["x", "y"].choose(rng).expect("names");
        let name = if kind.namespaced { (*name).to_owned() } else { format!("{}-{name}", self.namespace) };
        let collection = kind.collection(&self.namespace);
        let (one, id) = (format!("{collection}/{name}"), format!("{}/{name}", kind.kind));
        let object = self.object(kind, &name, rng);
        match rng.random_range(0..100) {
            0..20 => ApiCall::new(Method::POST, collection, object),
            20..35 => ApiCall::new(Method::PUT, one, versioned(object, &id, rng)),
            35..55 => self.patch(kind, (one, &name), rng),
            55..63 if kind.has_status => {
                ApiCall::new(Method::PUT, format!("{one}/status"), versioned(object, &id, rng))
            }
            63..75 => ApiCall::new(Method::DELETE, one, delete_options(&id, rng)),
            75..78 if kind.namespaced => ApiCall::new(
                Method::DELETE,
                format!("{collection}?labelSelector=text%3Dv{}", self.count.saturating_sub(1)),
                Value::Null,
            ),
            78..88 => ApiCall::new(Method::GET, one, Value::Null),
            88..94 if kind.namespaced => {
                let query =
                    ["", "?labelSelector=text", "?limit=1", "?fieldSelector=metadata.name%3Dx"].choose(rng);
                ApiCall::new(Method::GET, format!("{collection}{}", query.expect("queries")), Value::Null)
            }
            _ => odd(kind, (&collection, &one, &name), rng),
        }
    }

    /// An object, as a user writes it.
    fn object(&self, kind: &ComparedKind, name: &str, rng: &mut StdRng) -> Value {
        let text = format!("v{}", self.count);
        let mut object = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind,
            "metadata": {"name": name, "labels": {"text": text}},
        });
        if kind.namespaced {
            object["metadata"]["namespace"] = self.namespace.clone().into();
        }
        if rng.random_bool(0.15) {
            object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        }
        if rng.random_bool(0.2) {
            object["metadata"]["annotations"] = json!({"note": text});
        }
        match kind.kind {
            "ConfigMap" => {
                object["data"] = json!({"text": text});
                if rng.random_bool(0.1) {
                    object["immutable"] = true.into();
                }
            }
            "Secret" => object["stringData"] = json!({"text": text}),
            "Pod" => {
                let image = ["a", "b"].choose(rng).expect("images");
                object["spec"] = pod_spec(image);
                if rng.random_bool(0.5) {
                    object["spec"]["nodeName"] = "n".into();
                }
                object["status"] = json!({"phase": "Running", "message": text});
            }
            "Node" => {
                if rng.random_bool(0.5) {
                    object["spec"] = json!({"unschedulable": true});
                }
                object["status"] = node_status(&text);
            }
            "Lease" => object["spec"] = json!({"holderIdentity": text, "leaseDurationSeconds": 40}),
            _ => {}
        }
        object
    }

    fn patch(&self, kind: &ComparedKind, (path, name): (String, &str), rng: &mut StdRng) -> ApiCall {
        let text = format!("p{}", self.count);
        let form = rng.random_range(0..5);
        let (content_type, query, body) = match form {
            0 => ("application/merge-patch+json", "", json!({"metadata": {"labels": {"text": text}}})),
            1 => {
                let body = json!({"metadata": {"annotations": {"note": null}, "labels": {"patched": text}}});
                ("application/strategic-merge-patch+json", "", body)
            }
            2 => {
                let body = json!([{"op": "add", "path": "/metadata/labels/patched", "value": text}]);
                ("application/json-patch+json", "", body)
            }
            3 => ("application/merge-patch+json", "", json!({"metadata": {"finalizers": null}})),
            _ => {
                let mut body = json!({
                    "apiVersion": kind.api_version(), "kind": kind.kind,
                    "metadata": {"name": name, "labels": {"text": text}},
                });
                if kind.kind == "Pod" {
                    body["spec"] = pod_spec("a");
                }
                let query = ["?fieldManager=one", "?fieldManager=two", "?fieldManager=two&force=true", ""];
                ("application/apply-patch+yaml", *query.choose(rng).expect("queries"), body)
            }
        };
        let status = if kind.has_status && rng.random_bool(0.2) { "/status" } else { "" };
        ApiCall { method: Method::PATCH, path: format!("{path}{status}{query}"), content_type, body }
    }
}

/// A status as complete as a kubelet's: an API server adds empty members in place of missing ones, the model does not.
fn node_status(text: &str) -> Value {
    let info = ["architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"]
        .into_iter()
        .chain(["kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID"]);
    let time = "2026-01-01T00:00:00Z";
    json!({
        "conditions": [{
            "type": "Ready", "status": "True", "reason": text, "lastHeartbeatTime": time, "lastTransitionTime": time,
        }],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": info.map(|name| (name.to_owned(), Value::from(text))).collect::<serde_json::Map<_, _>>(),
    })
}

/// A pod without a token, whose volume would get a random name.
fn pod_spec(image: &str) -> Value {
    json!({"automountServiceAccountToken": false, "containers": [{"name": "main", "image": image}]})
}

/// An update with the present version, an old one, none, or the identifier of another object.
fn versioned(mut object: Value, id: &str, rng: &mut StdRng) -> Value {
    let metadata = &mut object["metadata"];
    match rng.random_range(0..10) {
        0..6 => metadata["resourceVersion"] = format!("@version:{id}@").into(),
        6 => metadata["resourceVersion"] = format!("@old:{id}@").into(),
        7 => metadata["uid"] = "00000000-0000-4000-8000-000000000000".into(),
        _ => {}
    }
    object
}

fn delete_options(id: &str, rng: &mut StdRng) -> Value {
    match rng.random_range(0..8) {
        0 => json!({"preconditions": {"uid": format!("@uid:{id}@")}}),
        1 => json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}}),
        2 => json!({"preconditions": {"resourceVersion": format!("@old:{id}@")}}),
        3 => json!({"gracePeriodSeconds": 0}),
        4 => json!({"gracePeriodSeconds": 5}),
        5 => json!({"propagationPolicy": "Background"}),
        _ => Value::Null,
    }
}

/// What a server refuses.
fn odd(kind: &ComparedKind, (collection, one, name): (&str, &str, &str), rng: &mut StdRng) -> ApiCall {
    let named =
        |name: &str| json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": name}});
    match rng.random_range(0..8) {
        0 => ApiCall::post(collection, named("Not A Name")),
        1 => ApiCall::new(Method::PUT, one.to_owned(), named("other")),
        2 => ApiCall::post(one, named(name)),
        3 => ApiCall::new(Method::GET, format!("{one}/nothing"), Value::Null),
        4 => ApiCall::new(Method::GET, format!("{collection}s"), Value::Null),
        5 => ApiCall::new(Method::GET, format!("{collection}?labelSelector=%3D%3D"), Value::Null),
        6 => ApiCall { content_type: "text/plain", ..ApiCall::post(collection, named(name)) },
        _ => ApiCall::post(collection, json!({"apiVersion": "v9", "kind": "Odd", "metadata": {"name": "z"}})),
    }
}

/// An object that every watch of a kind shows last.
pub(crate) fn fence(kind: &ComparedKind, namespace: &str) -> ApiCall {
    let name = if kind.namespaced { FENCE.to_owned() } else { format!("{namespace}-{FENCE}") };
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": name}});
    if kind.kind == "Pod" {
        object["spec"] = pod_spec("a");
    }
    ApiCall::post(&kind.collection(namespace), object)
}
