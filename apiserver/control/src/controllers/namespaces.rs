//! Creates the objects that each namespace has from the start: its default account and the certificate authority.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tombolo_apicore::store::StoreError;
use tombolo_proto::object::ObjectKey;

use super::Context;
use super::feed::Feed;
use crate::objects::{Edit, Objects, core, text};

/// ConfigMap with the certificate authority, in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Pause before a namespace is retried after a failure.
const RETRY: Duration = Duration::from_millis(500);

/// Creates these objects until the server stops.
pub(super) async fn run(context: &Context) {
    let mut namespaces = Feed::new(&context.objects, core("namespaces"));
    let mut accounts = Feed::new(&context.objects, core("serviceaccounts"));
    let mut maps = Feed::new(&context.objects, core("configmaps"));
    let mut unfinished: BTreeSet<String> = BTreeSet::new();
    let mut retry = tokio::time::interval(RETRY);
    retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let changed = tokio::select! {
            key = namespaces.next() => key.map(|key| key.name().to_owned()),
            key = accounts.next() => key.and_then(|key| own(&key, "default")),
            key = maps.next() => key.and_then(|key| own(&key, ROOT_CA)),
            _ = retry.tick(), if !unfinished.is_empty() => {
                let mut left = BTreeSet::new();
                for name in std::mem::take(&mut unfinished) {
                    if step(context, &name).await {
                        left.insert(name);
                    }
                }
                unfinished = left;
                continue;
            }
        };
        if let Some(name) = changed
            && step(context, &name).await
        {
            unfinished.insert(name);
        }
    }
}

/// The namespace of the key if its object has this name.
fn own(key: &ObjectKey, name: &str) -> Option<String> {
    (key.name() == name).then(|| key.namespace().to_owned())
}

/// Creates the objects of one namespace. Returns whether it must be retried.
async fn step(context: &Context, name: &str) -> bool {
    let Some(namespace) = context.objects.get(core("namespaces"), "", name) else { return false };
    if namespace.is_terminating() {
        return false;
    }
    match furnish(&context.objects, name, context.pki.ca_certificate()).await {
        Ok(()) => false,
        Err(error) => {
            tracing::warn!(namespace = name, %error, "cannot create the default objects of a namespace; retrying");
            true
        }
    }
}

/// Creates the account and the ConfigMap that every namespace has.
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
