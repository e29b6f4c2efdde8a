//! `pods/binding` and `bindings`: a scheduler puts a pod on a node.

use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};
use tombolo_apiserve::backend::{Endpoint, EndpointRequest};
use tombolo_apiserve::status::{ApiError, Cause};
use tombolo_proto::object::ObjectKey;

use super::{Answer, boxed, success};
use crate::embedded::objects::{Edit, Object, Objects, core, list_member, member, text, timestamp};

/// Binds pods.
pub(in crate::embedded) struct Bindings(pub(in crate::embedded) Objects);

impl Endpoint for Bindings {
    fn call(&self, request: EndpointRequest) -> BoxFuture<'_, Answer> {
        boxed(self.bind(request))
    }
}

impl Bindings {
    async fn bind(&self, request: EndpointRequest) -> Answer {
        let (asked, binding) = (&request.attributes, &request.body);
        let name = if asked.name.is_empty() { text(binding, "/metadata/name") } else { asked.name.as_str() };
        let target = Target::read(name, binding)?;
        let key = ObjectKey::new(core("pods"), &asked.namespace, name);
        let mut refusal = None;
        let dry_run = request.options.dry_run;
        let bound = self.0.update(&key, |pod| {
            refusal = target.check(pod).err();
            if refusal.is_some() || dry_run {
                return Edit::Keep;
            }
            target.bind(pod, binding);
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

struct Target {
    node: String,
    uid: String,
    version: String,
}

impl Target {
    fn read(pod: &str, binding: &Value) -> Result<Self, ApiError> {
        let invalid = |field: &str, why: &str| {
            ApiError::invalid("", "Binding", pod, vec![Cause::new("FieldValueInvalid", field, why)])
        };
        let kind = text(binding, "/target/kind");
        if !kind.is_empty() && kind != "Node" {
            let why = format!("Unsupported value: {kind:?}: supported values: \"Node\", \"<empty>\"");
            return Err(invalid("target.kind", &why));
        }
        let node = text(binding, "/target/name");
        if node.is_empty() {
            return Err(ApiError::invalid(
                "",
                "Binding",
                pod,
                vec![Cause::new("FieldValueRequired", "target.name", "Required value")],
            ));
        }
        Ok(Self {
            node: node.to_owned(),
            uid: text(binding, "/metadata/uid").to_owned(),
            version: text(binding, "/metadata/resourceVersion").to_owned(),
        })
    }

    fn check(&self, pod: &Object) -> Result<(), ApiError> {
        let name = pod.key.name();
        let conflict = |why: String| Err(ApiError::conflict("", "pods/binding", name, &why));
        if !self.uid.is_empty() && self.uid != pod.uid.as_str() {
            return conflict(format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                self.uid, pod.uid
            ));
        }
        if !self.version.is_empty() && self.version != pod.revision.to_string() {
            return conflict(format!(
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

    fn bind(&self, pod: &mut Object, binding: &Value) {
        member(&mut pod.value, "spec").insert("nodeName".into(), json!(self.node));
        let annotations = binding.pointer("/metadata/annotations").and_then(Value::as_object);
        if let Some(annotations) = annotations.filter(|annotations| !annotations.is_empty()) {
            member(&mut pod.value, "metadata");
            let own = member(&mut pod.value["metadata"], "annotations");
            own.extend(annotations.clone());
        }
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
    use tombolo_apiserve::history::LogLimits;
    use tombolo_apiserve::memory::MemoryStore;

    use super::*;

    async fn pod() -> (Objects, Object) {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let pod = json!({"metadata": {"namespace": "shop", "name": "p"}, "status": {"phase": "Pending"}});
        objects.create(core("pods"), pod).await.unwrap();
        let object = objects.get(core("pods"), "shop", "p").unwrap();
        (objects, object)
    }

    #[tokio::test]
    async fn a_pod_is_bound_once_and_only_its_own_incarnation() {
        let (_, mut pod) = pod().await;
        let binding =
            json!({"metadata": {"annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "n"}});
        let other = json!({"metadata": {"uid": "other"}, "target": {"name": "n"}});
        let refused = Target::read("p", &other).unwrap().check(&pod).unwrap_err();
        assert!(refused.message.contains("UID in precondition"), "{}", refused.message);
        let target = Target::read("p", &binding).unwrap();
        target.check(&pod).unwrap();
        target.bind(&mut pod, &binding);
        assert_eq!(pod.text("/spec/nodeName"), "n");
        assert_eq!(pod.text("/metadata/annotations/a"), "b");
        assert_eq!(pod.text("/status/conditions/0/type"), "PodScheduled");
        let refused = target.check(&pod).unwrap_err();
        assert_eq!(refused.code, StatusCode::CONFLICT);
        let expected =
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n\"";
        assert_eq!(refused.message, expected);
    }

    #[test]
    fn a_binding_needs_a_node() {
        for bad in
            [json!({"target": {"name": ""}}), json!({"target": {"kind": "Pod", "name": "x"}}), json!(null)]
        {
            assert!(Target::read("p", &bad).is_err(), "{bad}");
        }
    }
}
