//! What kube-controller-manager does, one step at a time: a plan decides when.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds::{KindKey, definitions};
use super::object::{self, text};
use super::{ApiActor, ApiStatus, ModelApi};

/// Finalizers that the garbage collector removes.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The controllers.
#[derive(Debug, Clone)]
pub struct ModelControllers {
    api: ModelApi,
    actor: ApiActor,
}

impl ModelControllers {
    pub(super) fn new(api: ModelApi) -> Self {
        let actor = api.actor("system:kube-controller-manager");
        Self { api, actor }
    }

    /// Creates a namespace with what the controllers put into it: the ServiceAccount `default` and the cluster's CA.
    ///
    /// # Errors
    /// The refusal. What exists is no error.
    pub fn create_namespace(&self, name: &str) -> Result<(), ApiStatus> {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name},
        });
        let bundle = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt", "namespace": name},
            "data": {"ca.crt": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"},
        });
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        for object in [namespace, account, bundle] {
            match self.actor.create(&object) {
                Err(refused) if refused.reason != "AlreadyExists" => return Err(refused),
                _ => {}
            }
        }
        Ok(())
    }

    /// Empties namespaces that are being deleted, and removes those that are empty. Returns whether there was anything
    /// to do. Pods that a node still has to stop stay, and so do objects with finalizers.
    pub fn finish_namespaces(&self) -> bool {
        let mut did = false;
        for namespace in self.api.objects(&KindKey::new("", "namespaces")) {
            if !object::is_being_deleted(&namespace) {
                continue;
            }
            let name = object::name(&namespace);
            let inside = |object: &Value| object::namespace(object) == name;
            let content: Vec<_> =
                self.api.everything().into_iter().filter(|(_, object)| inside(object)).collect();
            for (kind, object) in &content {
                did |= !object::is_being_deleted(object) && self.delete(kind, object, &Value::Null);
            }
            let left = self.api.everything().into_iter().any(|(_, object)| inside(&object));
            if !left {
                let path = format!("/api/v1/namespaces/{name}/finalize");
                let empty = json!({
                    "metadata": {"name": name}, "spec": {"finalizers": []},
                });
                let sent = self.actor.send(&http::Method::PUT, &path, ("application/json", &empty));
                did |= sent.is_ok();
            }
        }
        did
    }

    /// Deletes objects whose owners are all gone, and completes deletions that wait for dependents. Returns whether
    /// there was anything to do.
    pub fn collect_garbage(&self) -> bool {
        let all = self.api.everything();
        let uids: BTreeSet<String> = all.iter().map(|(_, object)| object::uid(object).to_owned()).collect();
        let mut did = false;
        for (kind, object) in &all {
            let owners = object["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
            let is_orphaned =
                !owners.is_empty() && owners.iter().all(|owner| !uids.contains(text(owner, "/uid")));
            if is_orphaned && !object::is_being_deleted(object) {
                let options = json!({"preconditions": {"uid": object::uid(object)}});
                did |= self.delete(kind, object, &options);
            }
            did |= self.complete(kind, object, &all);
        }
        did
    }

    /// Completes a deletion in the foreground, or one that leaves the dependents.
    fn complete(&self, kind: &KindKey, object: &Value, all: &[(KindKey, Arc<Value>)]) -> bool {
        let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let waits_for = finalizers.iter().find(|one| **one == FOREGROUND || **one == ORPHAN);
        let Some(waits_for) = waits_for.filter(|_| object::is_being_deleted(object)) else { return false };
        let uid = object::uid(object);
        let owners = |dependent: &Value| {
            dependent["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default()
        };
        let (mut dependents, mut deleted) = (0, false);
        for (of, dependent) in
            all.iter().filter(|(_, one)| owners(one).iter().any(|owner| owner["uid"] == uid))
        {
            if *waits_for == ORPHAN {
                let rest: Vec<Value> =
                    owners(dependent).into_iter().filter(|owner| owner["uid"] != uid).collect();
                self.change(of, dependent, &json!({"metadata": {"ownerReferences": rest}}));
            } else {
                dependents += 1;
                deleted |= !object::is_being_deleted(dependent) && self.delete(of, dependent, &Value::Null);
            }
        }
        if dependents > 0 {
            return deleted;
        }
        let rest: Vec<&Value> = finalizers.iter().filter(|one| *one != waits_for).collect();
        self.change(kind, object, &json!({"metadata": {"finalizers": rest}}))
    }

    fn path(&self, kind: &KindKey, object: &Value) -> Option<String> {
        let version = text(object, "/apiVersion");
        let root = if kind.group.is_empty() { "/api" } else { "/apis" };
        let namespace = object::namespace(object);
        let within = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
        (!version.is_empty() && *kind != definitions())
            .then(|| format!("{root}/{version}{within}/{}/{}", kind.resource, object::name(object)))
    }

    fn delete(&self, kind: &KindKey, object: &Value, options: &Value) -> bool {
        self.path(kind, object).is_some_and(|path| self.actor.delete(&path, options).is_ok())
    }

    fn change(&self, kind: &KindKey, object: &Value, patch: &Value) -> bool {
        self.path(kind, object).is_some_and(|path| self.actor.patch(&path, patch).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ModelConfig;
    use super::*;

    fn map(name: &str, owner: &str) -> Value {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner});
        let metadata = json!({"name": name, "namespace": "d", "ownerReferences": [owner]});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    }

    fn names(api: &ModelApi) -> Vec<String> {
        let all = api.objects(&KindKey::new("", "configmaps"));
        let of_test = all.iter().filter(|map| object::namespace(map) == "d");
        of_test.map(|map| object::name(map).to_owned()).filter(|name| name != "kube-root-ca.crt").collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_owns_any_more_is_collected() {
        let api = ModelApi::new(ModelConfig::default());
        let (controllers, admin) = (api.controllers(), api.actor("admin"));
        controllers.create_namespace("d").expect("a namespace");
        let owner =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": "d"}});
        let path = "/api/v1/namespaces/d/configmaps/owner";
        for (policy, left) in [("Background", vec![]), ("Foreground", vec![]), ("Orphan", vec!["child"])] {
            let created = admin.create(&owner).expect("created");
            admin.create(&map("child", object::uid(&created))).expect("created");
            while controllers.collect_garbage() {}
            assert_eq!(names(&api), ["child", "owner"], "{policy}: all is in use");
            admin.delete(path, &json!({"propagationPolicy": policy})).expect("deleted");
            while controllers.collect_garbage() {}
            assert_eq!(names(&api), left, "{policy}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_namespace_goes_with_its_content_once_its_pods_have_stopped() {
        let api = ModelApi::new(ModelConfig::default());
        let (controllers, admin) = (api.controllers(), api.actor("admin"));
        controllers.create_namespace("d").expect("a namespace");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]}});
        admin.create(&pod).expect("created");
        admin.delete("/api/v1/namespaces/d", &Value::Null).expect("deleted");
        while controllers.finish_namespaces() {}
        let namespaces = KindKey::new("", "namespaces");
        assert!(api.object(&namespaces, "", "d").is_some(), "the pod is still there");
        assert!(names(&api).is_empty());
        let refused = controllers.create_namespace("d").expect_err("being deleted");
        assert_eq!(refused.code, 403);
        let node = api.actor("system:node:n");
        node.delete("/api/v1/namespaces/d/pods/p", &json!({"gracePeriodSeconds": 0})).expect("deleted");
        while controllers.finish_namespaces() {}
        assert!(api.object(&namespaces, "", "d").is_none());
    }
}
