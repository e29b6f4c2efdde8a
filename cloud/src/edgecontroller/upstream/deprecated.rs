//! Reports and requests of older edges (docs/reference/kubeedge.md#older-edges).

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use http::Method;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use tombolo_proto::message::{Content, StatusError};
use tombolo_proto::{NodeId, ObjectKey};

use super::message::{NamespacedName, ReplyContent, STRATEGIC, into_result};
use super::objects::{done, is_settled};
use super::position::Position;
use super::{Upstream, heartbeat};
use crate::edgecontroller::written::Known;
use crate::kube::{ApiCall, Caller, RawObject, is_object, path_of, read_tree, resources};

/// Maximum number of pods in one report; a node runs at most a few hundred.
const POD_REPORTS_MAX: usize = 1024;

/// Maximum number of extended resources in one node report.
const EXTENDED_MAX: usize = 64;

/// The extended resource for which a KubeEdge cloud keeps a second annotation, and that annotation.
const GPU: &str = "nvidia.com/gpu";
const GPU_STATUS: &str = "huawei.com/gpu-status";

/// A pod list, of which each pod is parsed separately.
#[derive(Deserialize)]
struct PodItems<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// One report of a pod, before its status is parsed.
#[derive(Deserialize)]
struct PodReport<'a> {
    #[serde(rename = "Name", default)]
    name: String,
    #[serde(rename = "UID", default)]
    uid: String,
    #[serde(rename = "Status", borrow)]
    status: &'a RawValue,
}

/// The reports in a content: an array, or a single report.
fn reports_of(payload: &[u8]) -> Result<Vec<&RawValue>, String> {
    let unusable = |_| "the content is not a pod status".to_owned();
    if is_object(payload) {
        return serde_json::from_slice(payload).map(|report| vec![report]).map_err(unusable);
    }
    // Counted first, because uncounted items take no memory.
    let count = serde_json::from_slice::<Vec<IgnoredAny>>(payload).map_err(unusable)?.len();
    if count > POD_REPORTS_MAX {
        return Err(format!(
            "the content has {count} pod statuses; at most {POD_REPORTS_MAX} are allowed: send fewer"
        ));
    }
    serde_json::from_slice(payload).map_err(unusable)
}

/// The write that results from a reported pod.
struct Write {
    uid: String,
    patch: String,
    /// The pod was being deleted, and has ended.
    has_gone: bool,
}

/// Whether this pod is bound to the node. Nothing else of it is read.
fn runs_on(node: &NodeId, pod: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct PodBinding<'a> {
        #[serde(borrow)]
        spec: Spec<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec<'a> {
        #[serde(borrow)]
        node_name: Cow<'a, str>,
    }
    serde_json::from_slice::<PodBinding<'_>>(pod).is_ok_and(|pod| pod.spec.node_name == node.as_str())
}

/// The change that a report makes to the present pod. `None` if the report is about another pod. No parsed tree is left
/// when anything is awaited.
fn write_of(node: &NodeId, live: &[u8], report: &PodReport<'_>) -> Result<Option<Write>, String> {
    // Checked first: the node must not learn whether another node's pod can be read.
    if !runs_on(node, live) {
        return Ok(None);
    }
    let live = whole(live)?;
    let text = |path: &str| live.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let uid = text("/metadata/uid").to_owned();
    if !report.uid.is_empty() && report.uid != uid {
        return Ok(None);
    }
    let mut status = read_tree(report.status.get().as_bytes()).map_err(|error| error.to_string())?;
    complete_times(&mut status, &live);
    let is_deleted = live.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string);
    let has_gone = is_deleted && has_ended(&status);
    // On the version that was read: a newer report may have arrived through another replica since.
    let metadata = json!({"uid": uid, "resourceVersion": text("/metadata/resourceVersion")});
    let patch = Map::from_iter([("metadata".to_owned(), metadata), ("status".to_owned(), status)]);
    let patch = Value::from(patch).to_string();
    Ok(Some(Write { uid, patch, has_gone }))
}

/// The patch of a Node's status that results from a report, based on the present Node.
fn node_patch(report: &[u8], live: &[u8], heartbeat_age_max: Duration) -> Result<String, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct StatusReport<'a> {
        #[serde(borrow)]
        status: &'a RawValue,
        #[serde(borrow, default)]
        extend_resources: Option<&'a RawValue>,
    }
    let without = |_| "the content has no Status".to_owned();
    let report: StatusReport<'_> = serde_json::from_slice(report).map_err(without)?;
    let read = |text: &RawValue| read_tree(text.get().as_bytes()).map_err(|error| error.to_string());
    let mut status = read(report.status)?;
    if !status.is_object() {
        return Err("the content has no Status".to_owned());
    }
    let live = whole(live)?;
    heartbeat::refresh(&mut status, heartbeat_age_max, SystemTime::now());
    keep_what_is_not_the_nodes(&mut status, &live);
    let mut patch = Value::from(Map::from_iter([("status".to_owned(), status)]));
    let annotations = annotations_of(report.extend_resources.map(read).transpose()?.as_ref());
    if let Some(version) = live.pointer("/metadata/resourceVersion") {
        patch["metadata"] = json!({ "resourceVersion": version });
    }
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = annotations.into();
    }
    Ok(patch.to_string())
}

/// The object of an answer; an error if it could not be read whole.
fn whole(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string()).and_then(into_whole)
}

fn into_whole(object: RawObject) -> Result<Value, String> {
    object.into_whole().map_err(|error| error.to_string())
}

impl Upstream {
    /// Writes the status report of a node: `{"UID", "Status", "ExtendResources"}`. As a strategic merge patch, so that
    /// fields of other writers (attached volumes, their conditions) survive.
    pub(super) async fn update_node_status(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
        position: Option<&Position>,
    ) -> ReplyContent {
        let path = format!("/api/v1/nodes/{}", target.name);
        let live = match self.as_node(node, ApiCall::get(path.as_str())).await {
            Ok(body) => body,
            Err(error) => return ReplyContent::Refused(error.message),
        };
        let key = ObjectKey::new(resources::nodes(), "", target.name);
        if let Err(conflict) = self.may_follow(node, position, &key, &live).await {
            return ReplyContent::Refused(conflict.message);
        }
        let patch = match node_patch(&content.payload(), &live, self.heartbeat_age_max) {
            Ok(patch) => patch,
            Err(sentence) => return ReplyContent::Refused(sentence),
        };
        let call = ApiCall::patch(format!("{path}/status"), STRATEGIC, patch.into());
        let written = self.as_node(node, call).await;
        if let Ok(object) = &written {
            self.note_written(&key, Known::of(object), position.map(Position::order));
        }
        done(written)
    }

    /// Writes a report of pods: one `{"UID", "Name", "Status"}` if the path has a name, otherwise an array. A pod that
    /// no longer exists needs no status; its deletion is sent again.
    pub(super) async fn update_pod_status(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
        position: Option<&Position>,
    ) -> ReplyContent {
        let payload = content.payload();
        let reports = match reports_of(&payload) {
            Ok(reports) => reports,
            Err(sentence) => return ReplyContent::Refused(sentence),
        };
        let mut deleted_pods = Vec::new();
        for report in reports {
            let report: Option<PodReport<'_>> = serde_json::from_str(report.get()).ok();
            let Some(report) = report.filter(|report| is_object(report.status.get().as_bytes())) else {
                return ReplyContent::Refused("a pod status lacks its name or status".to_owned());
            };
            let name = if target.name.is_empty() { &*report.name } else { target.name };
            if !crate::kube::is_path_segment(name) {
                return ReplyContent::Refused("a pod status lacks its name or status".to_owned());
            }
            let key = ObjectKey::new(resources::pods(), target.namespace, name);
            match self.report_pod(node, &key, &report, position).await {
                Ok(true) => {}
                Ok(false) => deleted_pods.push(key),
                Err(error) => return ReplyContent::Refused(error.message),
            }
        }
        ReplyContent::DeletedPods(deleted_pods)
    }

    /// Writes one pod's status. False when the pod no longer exists, or another one has its name.
    async fn report_pod(
        &self,
        node: &NodeId,
        key: &ObjectKey,
        report: &PodReport<'_>,
        position: Option<&Position>,
    ) -> Result<bool, Box<StatusError>> {
        let path = path_of(key.resource(), key.namespace(), key.name());
        // Read as cloudcore: the authorizer would call an absent pod forbidden for the node.
        let live = match into_result(self.kube.call(Caller::OwnFor(node), ApiCall::get(path.as_str())).await)
        {
            Ok(body) => body,
            Err(error) if error.code == 404 => return Ok(false),
            Err(error) => return Err(error),
        };
        let write = write_of(node, &live, report);
        let write = write.map_err(|why| Box::new(StatusError::new(500, "InternalError", &why)))?;
        let Some(Write { uid, patch, has_gone }) = write else { return Ok(false) };
        self.may_follow(node, position, key, &live).await?;
        let call = ApiCall::patch(format!("{path}/status"), STRATEGIC, patch.into());
        match self.as_node(node, call).await {
            // Not for a conflict: the pod of this UID existed, and another writer changed it.
            Err(error) if error.code == 404 => return Ok(false),
            Err(error) => return Err(error),
            Ok(object) => self.note_written(key, Known::of(&object), position.map(Position::order)),
        }
        if has_gone {
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
            match self.as_node(node, ApiCall::json(Method::DELETE, path, &options)).await {
                Err(error) if !is_settled(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// The pods of the node, as an array.
    pub(super) async fn list_pods(&self, node: &NodeId) -> ReplyContent {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
        let body = match self.as_node(node, ApiCall::get(path)).await {
            Ok(body) => body,
            Err(error) => return ReplyContent::Refused(error.message),
        };
        match array_of(&body) {
            Ok(pods) => ReplyContent::List(pods),
            Err(why) => ReplyContent::Refused(format!("the API server's answer cannot be used: {why}")),
        }
    }

    /// The cluster's CA bundle in PEM: the one that every namespace contains.
    pub(super) async fn ca_certificate(&self, node: &NodeId) -> ReplyContent {
        let path = path_of(&resources::configmaps(), "kube-system", "kube-root-ca.crt");
        match into_result(self.kube.call(Caller::OwnFor(node), ApiCall::get(path)).await) {
            Ok(body) => {
                let object: Value = serde_json::from_slice(&body).unwrap_or_default();
                match object.pointer("/data/ca.crt").and_then(Value::as_str) {
                    Some(pem) => ReplyContent::Text(pem.to_owned()),
                    None => ReplyContent::Refused("ConfigMap kube-root-ca.crt has no ca.crt".to_owned()),
                }
            }
            Err(error) => ReplyContent::Refused(error.message),
        }
    }
}

/// The pods of a list as an array, each with its kind. They are parsed one by one.
fn array_of(list: &[u8]) -> Result<Content, String> {
    let list: PodItems<'_> = serde_json::from_slice(list).map_err(|error| error.to_string())?;
    let mut pods = Vec::with_capacity(list.items.len());
    for pod in list.items {
        let mut pod = whole(pod.get().as_bytes())?;
        pod["kind"] = "Pod".into();
        pod["apiVersion"] = "v1".into();
        pods.push(to_raw_value(&pod).map_err(|error| error.to_string())?);
    }
    Content::from_value(&pods).map_err(|error| error.to_string())
}

/// Keeps fields of others: attached volumes belong to the attach controller, and a kubelet port that is set stays.
fn keep_what_is_not_the_nodes(status: &mut Value, live: &Value) {
    let Some(status) = status.as_object_mut() else { return };
    status.remove("volumesAttached");
    let port = live.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    if port.is_some_and(|port| port != 0) {
        status.remove("daemonEndpoints");
    }
}

/// A GPU in the annotation of a KubeEdge cloud.
#[derive(Serialize)]
struct Device {
    id: String,
    healthy: bool,
}

/// Annotations that name the extended resources of a node: each under the resource's name, as JSON.
fn annotations_of(extended: Option<&Value>) -> Map<String, Value> {
    let mut annotations = Map::new();
    let Some(extended) = extended.and_then(Value::as_object) else { return annotations };
    for (resource, items) in extended.iter().take(EXTENDED_MAX) {
        if resource == GPU
            && let Some(items) = items.as_array().filter(|items| !items.is_empty())
        {
            let name =
                |item: &'_ Value| item.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let healthy: Vec<Device> =
                items.iter().map(|item| Device { id: name(item), healthy: true }).collect();
            let healthy = serde_json::to_string(&healthy).unwrap_or_default();
            annotations.insert(GPU_STATUS.to_owned(), healthy.into());
        }
        annotations.insert(resource.clone(), items.to_string().into());
    }
    annotations
}

/// Older edges omit times, or send the time of the report. What has not changed keeps its time.
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
    // Both sides are written by the node and may have thousands of entries: use a map.
    let mut times = HashMap::new();
    for former in known.into_iter().flatten() {
        let time = former.get("lastTransitionTime").and_then(Value::as_str);
        times.entry(state_of(former)).or_insert(time);
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let former = times.get(&state_of(condition)).copied().flatten();
        let Some(condition) = condition.as_object_mut() else { continue };
        match former {
            Some(time) => drop(condition.insert("lastTransitionTime".to_owned(), time.into())),
            None if !condition.get("lastTransitionTime").is_some_and(Value::is_string) => {
                condition.insert("lastTransitionTime".to_owned(), now());
            }
            None => {}
        }
    }
}

/// Type and status of a condition, without its times.
fn state_of(condition: &Value) -> [Option<&str>; 2] {
    ["type", "status"].map(|member| condition.get(member).and_then(Value::as_str))
}

/// Whether the pod has ended, and none of its containers runs.
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
    fn fields_of_other_writers_are_kept() {
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

    /// The pod is read as cloudcore, whatever the node may see.
    #[test]
    fn report_reveals_nothing_about_pods_of_other_nodes() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let written = |on: &str| {
            let pod =
                format!(r#"{{"metadata":{{"name":"p","uid":"u"}},"spec":{{"x":{deep},"nodeName":"{on}"}}}}"#);
            let report: PodReport<'_> = serde_json::from_str(r#"{"Status":{}}"#).expect("a report");
            let node = NodeId::parse("n").expect("valid");
            write_of(&node, pod.as_bytes(), &report).map(|write| write.is_some())
        };
        assert_eq!(written("other"), Ok(false), "as if there were none");
        assert!(written("n").is_err_and(|why| why.contains("cannot be read")));
    }

    #[test]
    fn pod_has_ended_when_no_container_runs() {
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
