//! Namespaces: what each has from its first moment, and emptying those that are deleted.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use tombolo_apiserve::store::StoreError;
use tombolo_proto::object::{ObjectKey, Resource};

use super::deletion::Deletion;
use super::feed::Feed;
use super::{Context, is_settled};
use crate::embedded::objects::{Edit, Object, Objects, core, items, member, text};

/// Name under which it deletes.
const CONTROLLER: &str = "namespace-controller";

/// Finalizer in `spec` that stands for the content.
const CONTENT: &str = "kubernetes";

/// ConfigMap with the certificate authority, in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// How often a namespace that is not empty yet is looked at: pods take their grace period.
const RETRY: Duration = Duration::from_millis(500);

/// Keeps namespaces until the server stops.
pub(super) async fn run(context: &Context) {
    let mut namespaces = Feed::new(&context.objects, core("namespaces"));
    let mut accounts = Feed::new(&context.objects, core("serviceaccounts"));
    let mut maps = Feed::new(&context.objects, core("configmaps"));
    let mut terminating: BTreeSet<String> = BTreeSet::new();
    let mut retry = tokio::time::interval(RETRY);
    retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let changed = tokio::select! {
            key = namespaces.next() => key.map(|key| key.name().to_owned()),
            key = accounts.next() => key.and_then(|key| own(&key, "default")),
            key = maps.next() => key.and_then(|key| own(&key, ROOT_CA)),
            _ = retry.tick(), if !terminating.is_empty() => {
                let mut left = BTreeSet::new();
                for name in std::mem::take(&mut terminating) {
                    if step(context, &name).await {
                        left.insert(name);
                    }
                }
                terminating = left;
                continue;
            }
        };
        if let Some(name) = changed
            && step(context, &name).await
        {
            terminating.insert(name);
        }
    }
}

/// The namespace of an object that every namespace has.
fn own(key: &ObjectKey, name: &str) -> Option<String> {
    (key.name() == name).then(|| key.namespace().to_owned())
}

/// Brings one namespace further; whether it must be looked at again.
async fn step(context: &Context, name: &str) -> bool {
    let Some(namespace) = context.objects.get(core("namespaces"), "", name) else { return false };
    let result = if namespace.is_terminating() {
        empty(context, &namespace).await
    } else {
        furnish(&context.objects, name, context.pki.ca_certificate()).await.map(|()| true)
    };
    match result {
        Ok(done) => !done,
        Err(error) => {
            tracing::warn!(namespace = name, %error, "a namespace was not brought up to date; trying again");
            true
        }
    }
}

/// The account and the ConfigMap that every namespace has.
async fn furnish(objects: &Objects, name: &str, ca_certificate: &str) -> Result<(), StoreError> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": name, "name": "default"}});
    objects.ensure(core("serviceaccounts"), account).await?;
    let description = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
         endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
         distributions of Kubernetes clusters.";
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": name, "name": ROOT_CA, "annotations": {"kubernetes.io/description": description}},
        "data": {"ca.crt": ca_certificate},
    });
    objects.ensure(core("configmaps"), map).await?;
    let key = ObjectKey::new(core("configmaps"), name, ROOT_CA);
    let restore = objects.update(&key, |map| {
        if text(&map.value, "/data/ca.crt") == ca_certificate {
            return Edit::Keep;
        }
        map.value["data"] = json!({"ca.crt": ca_certificate});
        Edit::Put
    });
    restore.await.map(|_| ())
}

/// Deletes what is left in a namespace, then the namespace; whether it is gone.
async fn empty(context: &Context, namespace: &Object) -> Result<bool, StoreError> {
    let name = namespace.key.name();
    if text(&namespace.value, "/status/phase") != "Terminating" {
        let mark = context.objects.update(&namespace.key, |namespace| {
            member(&mut namespace.value, "status").insert("phase".into(), json!("Terminating"));
            Edit::Put
        });
        mark.await?;
    }
    let mut left = 0_usize;
    for resource in namespaced_resources(context) {
        for object in context.objects.list_raw(&resource, Some(name)) {
            left += 1;
            let deletion = Deletion::by_controller(CONTROLLER, object.uid.as_str(), "Background");
            let already = serde_json::from_slice::<Value>(&object.body)
                .is_ok_and(|body| body.pointer("/metadata/deletionTimestamp").is_some());
            if already {
                continue;
            }
            if let Err(error) = context.deletions.delete(&object.key, deletion).await
                && !is_settled(&error)
            {
                tracing::warn!(key = %object.key, %error, "an object of a deleted namespace was not deleted");
            }
        }
    }
    if left > 0 {
        return Ok(false);
    }
    let finish = context.objects.update(&namespace.key, |namespace| {
        let finalizers = namespace.value.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut);
        if let Some(finalizers) = finalizers {
            finalizers.retain(|own| own != CONTENT);
        }
        let waits = ["/spec/finalizers", "/metadata/finalizers"];
        if waits.iter().any(|list| !items(&namespace.value, list).is_empty()) {
            Edit::Put
        } else {
            Edit::Remove
        }
    });
    finish.await?;
    Ok(!context.objects.exists(core("namespaces"), "", name))
}

/// Every resource under which objects of a namespace can be stored, each once. Events come last: deleting other
/// objects may make some.
fn namespaced_resources(context: &Context) -> Vec<Resource> {
    let catalog = context.registry.catalog();
    let mut seen = HashSet::new();
    let storages = catalog.kinds.iter().filter(|kind| kind.namespaced).map(|kind| kind.storage.clone());
    let mut resources: Vec<Resource> = storages.filter(|storage| seen.insert(storage.clone())).collect();
    resources.sort_by_key(|resource| &*resource.name == "events");
    resources
}
