//! `pods/binding` and `bindings`: a scheduler binds a pod to a node.

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::backend::{Endpoint, EndpointRequest};
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::field_error::aggregate;
use tombolo_apicore::status::ApiError;
use tombolo_proto::object::ObjectKey;

use super::{ActionResult, boxed, success};
use crate::admission::topology;
use crate::objects::{Edit, Objects, StoredObject, core, list_member, member, text, timestamp};

/// Binds pods.
pub(crate) struct Bindings(pub(crate) Objects);

impl Endpoint for Bindings {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, ActionResult> {
        boxed(self.bind(request))
    }
}

impl Bindings {
    async fn bind(&self, request: EndpointRequest) -> ActionResult {
        let (asked, binding) = (&request.attributes, &request.body);
        let name = pod_name(asked, binding)?;
        let target = BindingTarget::read(asked, binding)?;
        if name.is_empty() {
            return Err(ApiError::bad_request("Name parameter required."));
        }
        let labels = bound_labels(&self.0, asked, binding);
        let key = ObjectKey::new(core("pods"), &asked.namespace, name);
        let mut refusal = None;
        let dry_run = request.options.dry_run;
        let bound = self.0.update(&key, |pod| {
            refusal = target.check(pod).err();
            if refusal.is_some() || dry_run {
                return Edit::Keep;
            }
            target.bind(pod, binding, &labels);
            Edit::Put
        });
        let bound = bound.await?;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        bound.ok_or_else(|| ApiError::not_found("", "pods", name))?;
        Ok(success(StatusCode::CREATED))
    }
}

/// The name of the pod of a binding, from the body. For `pods/binding`, the path must have the same name.
///
/// # Errors
/// 400 when the names or the namespaces differ.
fn pod_name<'a>(asked: &'a Attributes, binding: &'a Value) -> Result<&'a str, ApiError> {
    let namespace = text(binding, "/metadata/namespace");
    if !namespace.is_empty() && namespace != asked.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let name = text(binding, "/metadata/name");
    if !asked.subresource.is_empty() && name != asked.name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    Ok(name)
}

/// Labels that the pod gets: those of the binding, overridden by the topology labels of the node.
fn bound_labels(objects: &Objects, asked: &Attributes, binding: &Value) -> Map<String, Value> {
    let mut labels =
        binding.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    if !asked.subresource.is_empty() && text(binding, "/target/kind") == "Node" {
        labels.extend(topology::labels(objects, text(binding, "/target/name")));
    }
    labels
}

struct BindingTarget {
    node: String,
    uid: String,
    version: String,
}

impl BindingTarget {
    /// The target of a binding. Errors in it become a 500, as in kube-apiserver.
    fn read(asked: &Attributes, binding: &Value) -> Result<Self, ApiError> {
        let mut wrong = Vec::new();
        let kind = text(binding, "/target/kind");
        if !matches!(kind, "" | "Node") {
            wrong.push(FieldError::not_supported("target.kind", kind, &["Node", "<empty>"]));
        }
        let node = text(binding, "/target/name");
        if node.is_empty() {
            wrong.push(FieldError::required("target.name", ""));
        }
        if !wrong.is_empty() {
            let message = aggregate(wrong.iter().map(ToString::to_string));
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message));
        }
        // With the older path, the UID in the body is ignored.
        let uid = if asked.subresource.is_empty() { "" } else { text(binding, "/metadata/uid") };
        let version = text(binding, "/metadata/resourceVersion").to_owned();
        Ok(Self { node: node.to_owned(), uid: uid.to_owned(), version })
    }

    fn check(&self, pod: &StoredObject) -> Result<(), ApiError> {
        let name = pod.key.name();
        let conflict = |why: String| Err(ApiError::conflict("", "pods/binding", name, &why));
        // kube-apiserver's messages for the next two errors also contain the etcd key.
        let overtaken = |why: String| Err(ApiError::conflict("", "pods", name, &why));
        if !self.uid.is_empty() && self.uid != pod.uid.as_str() {
            return overtaken(format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                self.uid, pod.uid
            ));
        }
        if !self.version.is_empty() && self.version != pod.revision.to_string() {
            return overtaken(format!(
                "Precondition failed: ResourceVersion in precondition: {}, ResourceVersion in object meta: {}",
                self.version, pod.revision
            ));
        }
        if pod.is_terminating() {
            return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        let node = pod.text("/spec/nodeName");
        if !node.is_empty() {
            return conflict(format!("pod {name} is already assigned to node {node:?}"));
        }
        if pod
            .value
            .pointer("/spec/schedulingGates")
            .and_then(Value::as_array)
            .is_some_and(|gates| !gates.is_empty())
        {
            return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        Ok(())
    }

    fn bind(&self, pod: &mut StoredObject, binding: &Value, labels: &Map<String, Value>) {
        member(&mut pod.value, "spec").insert("nodeName".into(), json!(self.node));
        let annotations = binding.pointer("/metadata/annotations").and_then(Value::as_object);
        for (part, added) in [("annotations", annotations), ("labels", Some(labels))] {
            if let Some(added) = added.filter(|added| !added.is_empty()) {
                member(&mut pod.value, "metadata");
                member(&mut pod.value["metadata"], part).extend(added.clone());
            }
        }
        // The nominated node has no meaning once the pod is bound.
        member(&mut pod.value, "status").remove("nominatedNodeName");
        scheduled(&mut pod.value);
    }
}

/// Sets the condition `PodScheduled` to true.
fn scheduled(pod: &mut Value) {
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": timestamp(jiff::Timestamp::now()),
    });
    let conditions = list_member(member(pod, "status"), "conditions");
    match conditions.iter_mut().find(|condition| text(condition, "/type") == "PodScheduled") {
        Some(own) => *own = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    async fn pod() -> (Objects, StoredObject) {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let pod = json!({"metadata": {"namespace": "shop", "name": "p"}, "status": {"phase": "Pending"}});
        objects.create(core("pods"), pod).await.unwrap();
        let object = objects.get(core("pods"), "shop", "p").unwrap();
        (objects, object)
    }

    fn asked(subresource: &str) -> Attributes {
        let (namespace, name) = ("shop".to_owned(), "p".to_owned());
        Attributes { namespace, name, subresource: subresource.to_owned(), ..Attributes::default() }
    }

    #[tokio::test]
    async fn pod_is_bound_once_and_only_by_its_uid() {
        let (_, mut pod) = pod().await;
        let binding =
            json!({"metadata": {"annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "n"}});
        let other = json!({"metadata": {"uid": "other"}, "target": {"name": "n"}});
        let refused = BindingTarget::read(&asked("binding"), &other).unwrap().check(&pod).unwrap_err();
        assert!(refused.message.contains("UID in precondition"), "{}", refused.message);
        BindingTarget::read(&asked(""), &other).unwrap().check(&pod).unwrap();
        let target = BindingTarget::read(&asked("binding"), &binding).unwrap();
        target.check(&pod).unwrap();
        pod.value["status"]["nominatedNodeName"] = json!("m");
        target.bind(&mut pod, &binding, &Map::from_iter([("zone".to_owned(), json!("z"))]));
        assert_eq!(pod.text("/spec/nodeName"), "n");
        assert_eq!(pod.value["metadata"]["annotations"], json!({"a": "b"}));
        assert_eq!(pod.value["metadata"]["labels"], json!({"zone": "z"}));
        assert_eq!(pod.text("/status/conditions/0/type"), "PodScheduled");
        assert_eq!(pod.text("/status/nominatedNodeName"), "");
        let refused = target.check(&pod).unwrap_err();
        assert_eq!(refused.code, StatusCode::CONFLICT);
        let expected =
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n\"";
        assert_eq!(refused.message, expected);
    }

    #[test]
    fn a_binding_needs_a_node() {
        let cases = [
            (json!({"target": {"name": ""}}), "target.name: Required value"),
            (
                json!({"target": {"kind": "Pod"}}),
                "[target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\", \
                 target.name: Required value]",
            ),
            (json!(null), "target.name: Required value"),
        ];
        for (bad, why) in cases {
            let refused = BindingTarget::read(&asked("binding"), &bad).err().unwrap();
            assert_eq!((refused.code.as_u16(), refused.message.as_str()), (500, why), "{bad}");
        }
    }

    #[test]
    fn binding_must_name_the_pod_of_its_path() {
        let binding = json!({"metadata": {"name": "q"}, "target": {"name": "n"}});
        assert_eq!(pod_name(&asked(""), &binding).unwrap(), "q");
        let refused = pod_name(&asked("binding"), &binding).unwrap_err();
        assert_eq!(refused.message, "name in URL does not match name in Binding object");
        let elsewhere = json!({"metadata": {"name": "p", "namespace": "other"}});
        assert_eq!(pod_name(&asked("binding"), &elsewhere).unwrap_err().code, StatusCode::BAD_REQUEST);
    }
}
