//! Empties deleted namespaces: pods first, then everything else, then the namespace itself. The namespace's conditions
//! say what is left, and why.

mod conditions;

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_apicore::store::StoreError;
use tombolo_proto::object::Resource;

use self::conditions::Findings;
use super::deletion::Deletion;
use super::feed::Feed;
use super::{Context, NamedTasks, age_of, is_settled};
use crate::objects::{Edit, StoredObject, core, items, member, text};

/// Name of the controller, as the deleting user.
const CONTROLLER: &str = "namespace-controller";

/// Finalizer in `spec` that is removed when the namespace is empty.
const CONTENT: &str = "kubernetes";

/// How often a namespace that is not empty yet is checked: pods use their grace period.
const RETRY: Duration = Duration::from_millis(500);

/// Empties namespaces until the server stops.
pub(super) async fn run(context: &Context) {
    let mut namespaces = Feed::new(&context.objects, core("namespaces"));
    let mut emptying = NamedTasks::default();
    loop {
        let name = tokio::select! {
            key = namespaces.next() => match key {
                Some(key) => key.name().to_owned(),
                None => return,
            },
            // Another namespace of the same name may exist by now.
            name = emptying.ended() => name,
        };
        if to_be_emptied(context, &name).is_some() {
            emptying.begin(&name, until_empty(context, name.clone()));
        }
    }
}

/// Empties a namespace. Waits for its pods, finalizers and webhooks.
async fn until_empty(context: &Context, name: String) {
    while step(context, &name).await {
        tokio::time::sleep(RETRY).await;
    }
}

/// The namespace, if it is being deleted and still has finalizers in `spec`.
fn to_be_emptied(context: &Context, name: &str) -> Option<StoredObject> {
    let namespace = context.objects.get(core("namespaces"), "", name)?;
    let is_left = namespace.is_terminating() && !items(&namespace.value, "/spec/finalizers").is_empty();
    is_left.then_some(namespace)
}

/// Does one round for a namespace. Returns whether another one is needed.
async fn step(context: &Context, name: &str) -> bool {
    let Some(namespace) = to_be_emptied(context, name) else { return false };
    match empty(context, &namespace).await {
        Ok(done) => !done,
        Err(error) => {
            tracing::warn!(namespace = name, %error, "cannot empty a deleted namespace; retrying");
            true
        }
    }
}

/// Deletes the objects in a namespace, then the namespace. Returns whether nothing is left to do.
async fn empty(context: &Context, namespace: &StoredObject) -> Result<bool, StoreError> {
    let mut findings = Findings::default();
    let (pods, others): (Vec<_>, Vec<_>) =
        namespaced_resources(context).into_iter().partition(|resource| *resource == core("pods"));
    for resources in [pods, others] {
        for resource in resources {
            clear(context, namespace, &resource, &mut findings).await;
        }
        if !findings.is_empty() {
            // Objects that pods need stay as long as the pods.
            report(context, namespace, &findings).await?;
            return Ok(false);
        }
    }
    report(context, namespace, &findings).await?;
    finish(context, namespace).await?;
    Ok(true)
}

/// The metadata that shows what an object waits for.
#[derive(Debug, Default, Deserialize)]
struct Body {
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Vec<String>,
}

/// Deletes the objects of one resource, and records those that remain.
async fn clear(context: &Context, namespace: &StoredObject, resource: &Resource, findings: &mut Findings) {
    let name = namespace.key.name();
    for object in context.objects.list_raw(resource, Some(name)) {
        let metadata = serde_json::from_slice::<Body>(&object.body()).unwrap_or_default().metadata;
        if metadata.deletion_timestamp.is_some() {
            continue;
        }
        let deletion = Deletion::by_controller(CONTROLLER, object.uid.as_str(), "Background");
        if let Err(error) = context.deletions.delete(&object.key, deletion).await
            && !is_settled(&error)
        {
            findings.failed(error.message);
        }
    }
    let mut overdue = false;
    for object in context.objects.list_raw(resource, Some(name)) {
        let metadata = serde_json::from_slice::<Body>(&object.body()).unwrap_or_default().metadata;
        findings.remains(resource, &metadata.finalizers);
        overdue |= metadata.finalizers.is_empty() && is_overdue(&metadata);
    }
    if overdue {
        let (group, version, plural) = (&resource.group, &resource.version, &resource.name);
        findings.failed(format!(
            "unexpected items still remain in namespace: {name} for gvr: {group}/{version}, Resource={plural}"
        ));
    }
}

/// Whether an object should be gone already: its grace period is over.
fn is_overdue(metadata: &Metadata) -> bool {
    let Some(until) = metadata.deletion_timestamp.as_deref() else { return false };
    metadata.deletion_grace_period_seconds.is_some() && age_of(until).is_some_and(|age| age > Duration::ZERO)
}

/// Writes the findings into the namespace's conditions, if they changed.
async fn report(context: &Context, namespace: &StoredObject, findings: &Findings) -> Result<(), StoreError> {
    let update = context.objects.update(&namespace.key, |current| {
        if current.uid != namespace.uid {
            return Edit::Keep;
        }
        let phase_is_known = text(&current.value, "/status/phase") == "Terminating";
        let status = member(&mut current.value, "status");
        status.insert("phase".into(), json!("Terminating"));
        let changed = findings.write(status, Timestamp::now());
        if changed || !phase_is_known { Edit::Put } else { Edit::Keep }
    });
    update.await.map(|_| ())
}

/// Removes the finalizer in `spec`.
async fn finish(context: &Context, namespace: &StoredObject) -> Result<(), StoreError> {
    let finish = context.objects.update(&namespace.key, |current| {
        if current.uid != namespace.uid {
            return Edit::Keep;
        }
        let finalizers = current.value.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut);
        if let Some(finalizers) = finalizers {
            finalizers.retain(|own| own != CONTENT);
        }
        let waits = ["/spec/finalizers", "/metadata/finalizers"];
        if waits.iter().any(|list| !items(&current.value, list).is_empty()) {
            Edit::Put
        } else {
            Edit::Remove
        }
    });
    finish.await.map(|_| ())
}

/// Every storage resource of namespaced kinds, each once. Events are last: deleting other objects may create some.
fn namespaced_resources(context: &Context) -> Vec<Resource> {
    let catalog = context.registry.catalog();
    let mut seen = HashSet::new();
    let storages = catalog.kinds.iter().filter(|kind| kind.namespaced).map(|kind| kind.storage.clone());
    let mut resources: Vec<Resource> = storages.filter(|storage| seen.insert(storage.clone())).collect();
    resources.sort_by_key(|resource| &*resource.name == "events");
    resources
}
