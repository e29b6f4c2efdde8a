//! Reports and questions of older edges (docs/reference/kubeedge.md#older-edges).

use std::time::SystemTime;

use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tombolo_proto::message::{Content, StatusError};
use tombolo_proto::{NodeId, ObjectKey};

use super::message::{STRATEGIC, Said, Target, into_result};
use super::objects::{done, is_settled};
use super::{Upstream, heartbeat};
use crate::kube::{ApiCall, Caller, RawObject, path_of, resources};

/// Pods of one report; a node carries at most a few hundred.
const POD_REPORTS_MAX: usize = 1024;

/// Extended resources of one node report.
const EXTENDED_MAX: usize = 64;

/// The extended resource of which a stock cloud keeps a second annotation, and that annotation.
const GPU: &str = "nvidia.com/gpu";
const GPU_STATUS: &str = "huawei.com/gpu-status";

#[derive(Deserialize)]
struct PodItems {
    items: Vec<RawObject>,
}

/// The object of an answer without what was not to be read, or why there is none.
fn whole(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string()).and_then(into_whole)
}

fn into_whole(object: RawObject) -> Result<Value, String> {
    object.into_whole().map_err(|error| error.to_string())
}

impl Upstream {
    /// The report of a node: `{"UID", "Status", "ExtendResources"}`. As a strategic merge, so that what others wrote
    /// (attached volumes, their conditions) survives.
    pub(super) async fn update_node_status(
        &self,
        node: &NodeId,
        target: Target<'_>,
        content: &Content,
    ) -> Said {
        let mut report: Value = content.read().unwrap_or_default();
        let Some(mut status) = report.get_mut("Status").map(Value::take).filter(Value::is_object) else {
            return Said::Refused("the content has no Status".to_owned());
        };
        let path = format!("/api/v1/nodes/{}", target.name);
        let live: Value = match self.as_node(node, ApiCall::get(path.as_str())).await {
            Ok(body) => serde_json::from_slice(&body).unwrap_or_default(),
            Err(error) => return Said::Refused(error.message),
        };
        heartbeat::refresh(&mut status, self.heartbeat_age_max, SystemTime::now());
        keep_what_is_not_the_nodes(&mut status, &live);
        let mut patch = json!({ "status": status });
        let annotations = annotations_of(report.get("ExtendResources"));
        if let Some(version) = live.pointer("/metadata/resourceVersion") {
            patch["metadata"] = json!({ "resourceVersion": version });
        }
        if !annotations.is_empty() {
            patch["metadata"]["annotations"] = annotations.into();
        }
        let call = ApiCall::patch(format!("{path}/status"), STRATEGIC, patch.to_string().into());
        done(self.as_node(node, call).await)
    }

    /// The report of pods: one `{"UID", "Name", "Status"}` with a name in the path, an array without. A pod that is
    /// gone needs no status; its deletion is sent again.
    pub(super) async fn update_pod_status(
        &self,
        node: &NodeId,
        target: Target<'_>,
        content: &Content,
    ) -> Said {
        let reports = match content.read() {
            Ok(Value::Array(reports)) => reports,
            Ok(report @ Value::Object(_)) => vec![report],
            _ => return Said::Refused("the content is no pod status".to_owned()),
        };
        let mut expelled = Vec::new();
        for report in reports.iter().take(POD_REPORTS_MAX) {
            let named = report.get("Name").and_then(Value::as_str).unwrap_or_default();
            let name = if target.name.is_empty() { named } else { target.name };
            if !crate::kube::is_path_segment(name) || !report.get("Status").is_some_and(Value::is_object) {
                return Said::Refused("a pod status lacks its name or status".to_owned());
            }
            let key = ObjectKey::new(resources::pods(), target.namespace, name);
            match self.report_pod(node, &key, report).await {
                Ok(true) => {}
                Ok(false) => expelled.push(key),
                Err(error) => return Said::Refused(error.message),
            }
        }
        Said::Expelled(expelled)
    }

    /// Writes one pod's status. False when the pod is gone, or another one has its name.
    async fn report_pod(
        &self,
        node: &NodeId,
        key: &ObjectKey,
        report: &Value,
    ) -> Result<bool, Box<StatusError>> {
        let path = path_of(key.resource(), key.namespace(), key.name());
        // Asked in our own name: to the node, the authorizer calls an absent pod forbidden.
        let live = match into_result(self.kube.call(Caller::OwnFor(node), ApiCall::get(path.as_str())).await)
        {
            Ok(body) => whole(&body).map_err(|why| Box::new(StatusError::new(500, "InternalError", &why)))?,
            Err(error) if error.code == 404 => return Ok(false),
            Err(error) => return Err(error),
        };
        let text = |object: &Value, path: &str| {
            object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (uid, reported) = (text(&live, "/metadata/uid"), text(report, "/UID"));
        let elsewhere = text(&live, "/spec/nodeName") != node.as_str();
        if elsewhere || (!reported.is_empty() && reported != uid) {
            return Ok(false);
        }
        let mut status = report.get("Status").cloned().unwrap_or_default();
        complete_times(&mut status, &live);
        // On the version that was read: a newer report may have come through another replica since.
        let version = text(&live, "/metadata/resourceVersion");
        let metadata = json!({"uid": uid, "resourceVersion": version});
        let patch = json!({"metadata": metadata, "status": status}).to_string();
        let call = ApiCall::patch(format!("{path}/status"), STRATEGIC, patch.into());
        match self.as_node(node, call).await {
            // Not a conflict: the pod of this UID was there, and somebody else has written.
            Err(error) if error.code == 404 => return Ok(false),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        if live.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string) && has_ended(&status) {
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
            match self.as_node(node, ApiCall::json(Method::DELETE, path, &options)).await {
                Err(error) if !is_settled(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// The pods of the node, as an array.
    pub(super) async fn list_pods(&self, node: &NodeId) -> Said {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        let body = match self.as_node(node, ApiCall::get(path)).await {
            Ok(body) => body,
            Err(error) => return Said::Refused(error.message),
        };
        // One pod that is nested too deep costs no other one: each is read alone.
        let listed = serde_json::from_slice::<PodItems>(&body).map_err(|error| error.to_string());
        let pods =
            listed.and_then(|list| list.items.into_iter().map(into_whole).collect::<Result<Vec<_>, _>>());
        let mut pods = match pods {
            Ok(pods) => pods,
            Err(why) => return Said::Refused(format!("the API server's answer cannot be used: {why}")),
        };
        for pod in &mut pods {
            pod["kind"] = "Pod".into();
            pod["apiVersion"] = "v1".into();
        }
        Content::from_value(&pods).map_or_else(|error| Said::Refused(error.to_string()), Said::List)
    }

    /// The cluster's CA bundle, PEM: the one that every namespace has.
    pub(super) async fn ca_certificate(&self, node: &NodeId) -> Said {
        let path = path_of(&resources::configmaps(), "kube-system", "kube-root-ca.crt");
        match into_result(self.kube.call(Caller::OwnFor(node), ApiCall::get(path)).await) {
            Ok(body) => {
                let object: Value = serde_json::from_slice(&body).unwrap_or_default();
                match object.pointer("/data/ca.crt").and_then(Value::as_str) {
                    Some(pem) => Said::Text(pem.to_owned()),
                    None => Said::Refused("ConfigMap kube-root-ca.crt has no ca.crt".to_owned()),
                }
            }
            Err(error) => Said::Refused(error.message),
        }
    }
}

/// Attached volumes are the attach controller's, and a kubelet port that is set stays.
fn keep_what_is_not_the_nodes(status: &mut Value, live: &Value) {
    let Some(status) = status.as_object_mut() else { return };
    status.remove("volumesAttached");
    let port = live.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    if port.is_some_and(|port| port != 0) {
        status.remove("daemonEndpoints");
    }
}

/// Annotations that say which extended resources a node has: each under the resource's name, as JSON.
fn annotations_of(extended: Option<&Value>) -> Map<String, Value> {
    let mut annotations = Map::new();
    let Some(extended) = extended.and_then(Value::as_object) else { return annotations };
    for (resource, items) in extended.iter().take(EXTENDED_MAX) {
        if resource == GPU
            && let Some(items) = items.as_array().filter(|items| !items.is_empty())
        {
            let name = |item: &Value| item.get("name").cloned().unwrap_or_else(|| "".into());
            let healthy: Vec<Value> =
                items.iter().map(|item| json!({"id": name(item), "healthy": true})).collect();
            annotations.insert(GPU_STATUS.to_owned(), Value::Array(healthy).to_string().into());
        }
        annotations.insert(resource.clone(), items.to_string().into());
    }
    annotations
}

/// Older edges leave times out, or say the time of the report: what has not changed keeps the time that it has.
fn complete_times(status: &mut Value, live: &Value) {
    let now = || Value::String(format!("{:.0}", jiff::Timestamp::now()));
    let Some(status) = status.as_object_mut() else { return };
    match live.pointer("/status/startTime") {
        Some(start @ Value::String(_)) => drop(status.insert("startTime".to_owned(), start.clone())),
        _ if !status.get("startTime").is_some_and(Value::is_string) => {
            status.insert("startTime".to_owned(), now());
        }
        _ => {}
    }
    let known = live.pointer("/status/conditions").and_then(Value::as_array);
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let former = known.into_iter().flatten().find(|former| {
            ["type", "status"].iter().all(|member| former.get(*member) == condition.get(*member))
        });
        let former =
            former.and_then(|former| former.get("lastTransitionTime")).filter(|time| time.is_string());
        let Some(condition) = condition.as_object_mut() else { continue };
        match former {
            Some(time) => drop(condition.insert("lastTransitionTime".to_owned(), time.clone())),
            None if !condition.get("lastTransitionTime").is_some_and(Value::is_string) => {
                condition.insert("lastTransitionTime".to_owned(), now());
            }
            None => {}
        }
    }
}

/// The pod has ended, and none of its containers runs.
fn has_ended(status: &Value) -> bool {
    let ended = matches!(status.get("phase").and_then(Value::as_str), Some("Succeeded" | "Failed"));
    let containers = ["containerStatuses", "initContainerStatuses"];
    let mut all = containers.iter().filter_map(|list| status.get(*list)?.as_array()).flatten();
    ended && !all.any(|container| container.pointer("/state/running").is_some_and(Value::is_object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_resources_become_annotations() {
        let extended = json!({
            "nvidia.com/gpu": [{"name": "gpu-0", "type": "T4", "capacity": "1"}],
            "example.com/fpga": [{"name": "f", "capacity": "2"}],
        });
        let annotations = annotations_of(Some(&extended));
        let read = |name: &str| {
            serde_json::from_str::<Value>(annotations[name].as_str().expect("a text")).expect("JSON")
        };
        assert_eq!(read("nvidia.com/gpu"), extended["nvidia.com/gpu"]);
        assert_eq!(read("example.com/fpga"), extended["example.com/fpga"]);
        assert_eq!(read("huawei.com/gpu-status"), json!([{"id": "gpu-0", "healthy": true}]));
        assert_eq!(annotations.len(), 3);
        assert!(annotations_of(Some(&json!("x"))).is_empty() && annotations_of(None).is_empty());
    }

    #[test]
    fn what_belongs_to_others_is_kept() {
        let report = || json!({"volumesAttached": [1], "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}});
        let live = |port: u64| json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        let (mut kept, mut set) = (report(), report());
        keep_what_is_not_the_nodes(&mut kept, &live(10250));
        keep_what_is_not_the_nodes(&mut set, &live(0));
        assert_eq!((kept, set), (json!({}), json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}})));
    }

    #[test]
    fn times_are_kept_or_completed() {
        let old = "2020-01-01T00:00:00Z";
        let live = json!({"status": {"startTime": old, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": old}]}});
        let mut status = json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Initialized", "status": "True"}]});
        complete_times(&mut status, &live);
        assert_eq!(status["startTime"], old);
        assert_eq!(status["conditions"][0]["lastTransitionTime"], old);
        let time = status["conditions"][1]["lastTransitionTime"].as_str().expect("completed");
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.len() == old.len(), "{time}");
        let mut bare = json!({});
        complete_times(&mut bare, &json!({}));
        assert!(bare["startTime"].is_string());
    }

    #[test]
    fn a_pod_has_ended_when_nothing_of_it_runs() {
        let running = json!([{"state": {"running": {"startedAt": "x"}}}]);
        let over = json!([{"state": {"terminated": {}}}]);
        for (status, expected) in [
            (json!({"phase": "Succeeded", "containerStatuses": over}), true),
            (json!({"phase": "Failed"}), true),
            (json!({"phase": "Running", "containerStatuses": over}), false),
            (json!({"phase": "Failed", "containerStatuses": running}), false),
            (json!({"phase": "Failed", "initContainerStatuses": running}), false),
        ] {
            assert_eq!(has_ended(&status), expected, "{status}");
        }
    }
}
