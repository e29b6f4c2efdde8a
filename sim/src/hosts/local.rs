//! Local clients of a node: what they read, and what they write in the place of a kubelet.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tombolo_edge::simulation::{OPERATOR_TOKEN, SimulatedEdge};

use super::cluster::{Cluster, collection, path};
use super::edge::EdgeHost;
use crate::observation::{ObjectId, Seen};
use crate::oracle::content;

const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// How long the token of an account is valid.
const TOKEN_LASTS: std::time::Duration = std::time::Duration::from_secs(3600);

/// A request to the local API.
pub(super) fn request(
    method: &str,
    path_and_query: &str,
    token: &str,
    (content_type, body): (&str, &str),
) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(path_and_query);
    let request = request.header("authorization", format!("Bearer {token}")).header("accept", JSON);
    let request = request.header("user-agent", "kubelet/v1.36.0").header("content-type", content_type);
    request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).expect("plans have valid names")
}

/// Sends a request and reads the answer.
pub(super) async fn send(agent: &SimulatedEdge, request: Request<Full<Bytes>>) -> (u16, Value) {
    let answer = agent.api.handle(request, &<_>::default()).await;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    (code, body.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default())
}

/// Reads something.
pub(super) async fn get(agent: &SimulatedEdge, path_and_query: &str, token: &str) -> (u16, Value) {
    send(agent, request("GET", path_and_query, token, (JSON, ""))).await
}

/// The token that a local client shows: that of an account, or of the node's own kubeconfig.
pub(super) fn token(cluster: &Cluster, account: &str) -> String {
    match account.split_once('/') {
        Some((namespace, name)) => cluster.api.issue_token(namespace, name, TOKEN_LASTS),
        None => OPERATOR_TOKEN.to_owned(),
    }
}

impl EdgeHost {
    /// A local client reads an object.
    pub(super) fn read(&self, object: &ObjectId, token: String) {
        let Some((process, agent)) = self.agent() else { return };
        let path = path(object);
        process.host.spawn(async move {
            get(&agent, &path, &token).await;
        });
    }

    /// A local client deletes a pod that has terminated.
    pub(super) fn terminated(&self, object: &ObjectId) {
        let Some((process, agent)) = self.agent() else { return };
        let path = path(object);
        process.host.spawn(async move {
            let (code, pod) = get(&agent, &path, OPERATOR_TOKEN).await;
            let is_ending = pod.pointer("/metadata/deletionTimestamp").is_some();
            if code == 200 && is_ending {
                let uid = &pod["metadata"]["uid"];
                let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}).to_string();
                send(&agent, request("DELETE", &path, OPERATOR_TOKEN, (JSON, &options))).await;
            }
        });
    }

    /// A local client reports about an object, as a kubelet would.
    pub(super) fn report(&self, object: &ObjectId, text: &str) {
        let Some((process, agent)) = self.agent() else { return };
        let journal = self.readers.journal().clone();
        let (node, object, text) = (self.node.to_string(), object.clone(), text.to_owned());
        process.host.spawn(async move {
            let (method, path, content_type, body) = report_of(&node, &object, &text);
            let sent = request(method, &path, OPERATOR_TOKEN, (content_type, &body.to_string()));
            let (code, answer) = send(&agent, sent).await;
            if !matches!(code, 200..=299) {
                return;
            }
            let uid = answer.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
            let uid = if method == "POST" { String::new() } else { uid.to_owned() };
            // What the node's own copy was before it was written is no answer to this report.
            if let Some(marker) = content::marker(&object.resource, &body) {
                let marker = marker.to_owned();
                journal.see(Seen::ReportAccepted { node, object, uid, marker });
            }
        });
    }
}

/// Method, path, content type and body of a report.
fn report_of(node: &str, object: &ObjectId, text: &str) -> (&'static str, String, &'static str, Value) {
    match &*object.resource {
        "pods" => {
            ("PATCH", format!("{}/status", path(object)), MERGE_PATCH, json!({"status": {"message": text}}))
        }
        "nodes" => {
            let status = json!({"status": {"nodeInfo": {"bootID": text}}});
            ("PATCH", format!("{}/status", path(object)), MERGE_PATCH, status)
        }
        "leases.coordination.k8s.io" => {
            let lease = json!({"spec": {"renewTime": renewal(text)}});
            ("PATCH", path(object), MERGE_PATCH, lease)
        }
        _ => {
            let event = json!({
                "apiVersion": "v1", "kind": "Event", "message": text,
                "metadata": {"name": object.name, "namespace": object.namespace},
                "involvedObject": {"kind": "Node", "name": node},
            });
            ("POST", collection(&object.resource, &object.namespace), JSON, event)
        }
    }
}

/// A time that no other renewal has.
fn renewal(text: &str) -> String {
    let number: u32 = text.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
    format!("2026-01-01T00:00:00.{:06}Z", number % 1_000_000)
}
