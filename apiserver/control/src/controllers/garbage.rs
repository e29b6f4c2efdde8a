//! Garbage collection by owner reference: background deletion, foreground deletion, or orphaning.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::{Store as _, StoreError};
use tombolo_proto::object::ObjectKey;
use tombolo_runtime::doubled;

use super::Context;
use super::deletion::Deletion;
use super::ownership::{FOREGROUND, Item, ORPHAN, Ownership, Presence, is_untracked};
use crate::objects::{Edit, StoredObject, items, member, text};

/// Name of the controller, as the deleting user.
const CONTROLLER: &str = "generic-garbage-collector";

/// Pause after the first failure with an object. It doubles with each further failure.
const PAUSE: Duration = Duration::from_millis(500);

/// The same when an object cannot be read yet: a batch of changes becomes visible within milliseconds after the index
/// has its last change.
const EARLY_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of objects that are collected concurrently. A webhook may delay each.
const COLLECTING_MAX: usize = 256;

/// The same for one namespace, so that its objects do not delay other namespaces.
const COLLECTING_OF_NAMESPACE_MAX: usize = 4;

/// Collects until the server stops.
pub(super) async fn run(context: &Context) {
    // Work may have been interrupted when this controller was paused.
    context.ownership.retry_all();
    follow(&context.ownership, async |item| {
        collect(context, &item).await.unwrap_or_else(|error| {
            tracing::warn!(key = %item.key, %error, "garbage collection of an object failed; retrying");
            CollectionOutcome::Failed
        })
    })
    .await;
}

/// The outcome of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CollectionOutcome {
    /// Nothing is left to do until something changes.
    Done,
    /// The index has a version that cannot be read yet. It can be read when the store reaches its revision.
    Early,
    /// The try failed.
    Failed,
}

/// Collects all objects that the index lists. Failed objects are retried later, while the others continue.
async fn follow<F: Future<Output = CollectionOutcome>>(ownership: &Ownership, work: impl Fn(Item) -> F) {
    let (mut turns, mut running, mut pauses) =
        (Turns::default(), FuturesUnordered::new(), FuturesUnordered::new());
    let begin = |item: Item| {
        let outcome = work(item.clone());
        async { (item, outcome.await) }
    };
    loop {
        tokio::select! {
            item = ownership.next(), if running.len() < COLLECTING_MAX => {
                if turns.begin(&item) {
                    running.push(begin(item));
                }
            }
            Some((item, outcome)) = running.next() => {
                turns.end(&item);
                while let Some(uid) = turns.next(item.key.namespace()) {
                    if let Some(next) = ownership.take(&uid).filter(|next| turns.begin(next)) {
                        running.push(begin(next));
                        break;
                    }
                }
                if let Some(pause) = turns.pause(&item.uid, outcome) {
                    pauses.push(async move {
                        tokio::time::sleep(pause).await;
                        item.uid
                    });
                }
            }
            Some(uid) = pauses.next() => {
                turns.paused.remove(&uid);
                if !ownership.retry(&uid) {
                    turns.failures.remove(&uid);
                }
            }
        }
    }
}

/// Schedules the work on objects, which are listed by UID. Contains only stored objects.
#[derive(Debug, Default)]
struct Turns {
    /// Objects being collected, by namespace.
    running: HashMap<String, HashSet<String>>,
    /// Objects that wait for others of their namespace.
    waiting: HashMap<String, BTreeSet<String>>,
    /// Number of failures of each object.
    failures: HashMap<String, u32>,
    /// Objects that are retried after a pause.
    paused: HashSet<String>,
}

impl Turns {
    /// Whether an object is collected now. Otherwise it waits until others of its namespace end.
    fn begin(&mut self, item: &Item) -> bool {
        let namespace = item.key.namespace();
        let running = self.running.entry(namespace.to_owned()).or_default();
        if running.len() < COLLECTING_OF_NAMESPACE_MAX && running.insert(item.uid.clone()) {
            return true;
        }
        self.waiting.entry(namespace.to_owned()).or_default().insert(item.uid.clone());
        false
    }

    fn end(&mut self, item: &Item) {
        let namespace = item.key.namespace();
        if let Some(running) = self.running.get_mut(namespace) {
            running.remove(&item.uid);
            if running.is_empty() {
                self.running.remove(namespace);
            }
        }
    }

    /// The next waiting object of a namespace. An object that was listed again while it is being collected waits for
    /// its own end.
    fn next(&mut self, namespace: &str) -> Option<String> {
        let waiting = self.waiting.get_mut(namespace)?;
        let running = self.running.get(namespace);
        let is_free = |uid: &&String| running.is_none_or(|running| !running.contains(*uid));
        let next = waiting.iter().find(is_free).cloned();
        if let Some(uid) = &next {
            waiting.remove(uid);
        }
        if waiting.is_empty() {
            self.waiting.remove(namespace);
        }
        next
    }

    /// The pause before an object is retried; `None` when nothing is left to do, or when it is already paused.
    fn pause(&mut self, uid: &str, outcome: CollectionOutcome) -> Option<Duration> {
        let first = match outcome {
            CollectionOutcome::Done => {
                self.failures.remove(uid);
                return None;
            }
            CollectionOutcome::Early => EARLY_PAUSE,
            CollectionOutcome::Failed => PAUSE,
        };
        if !self.paused.insert(uid.to_owned()) {
            return None;
        }
        let failures = self.failures.entry(uid.to_owned()).or_default();
        *failures = failures.saturating_add(1);
        Some(doubled(first, *failures, PAUSE_MAX))
    }
}

/// What to do with a dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DependentAction {
    /// Some owner exists and no reference is stale.
    Keep,
    /// Some owner exists: remove the references to absent owners and to those in foreground deletion.
    Unlink,
    /// All owners are absent or in foreground deletion: delete it with this propagation policy.
    Delete(&'static str),
}

fn action(item: &Item, has_dependents: bool) -> DependentAction {
    let count = |presence| item.owners.iter().filter(|(_, own)| *own == presence).count();
    let (solid, waiting) = (count(Presence::Solid), count(Presence::Waiting));
    let absent = item.owners.len() - solid - waiting;
    if solid > 0 {
        return if waiting + absent > 0 { DependentAction::Unlink } else { DependentAction::Keep };
    }
    if waiting > 0 && has_dependents {
        return DependentAction::Delete("Foreground");
    }
    if waiting + absent > 0 { DependentAction::Delete("Background") } else { DependentAction::Keep }
}

async fn collect(context: &Context, item: &Item) -> Result<CollectionOutcome, ApiError> {
    if !is_visible(context, item) {
        return Ok(CollectionOutcome::Early);
    }
    match item.waits {
        Some(FOREGROUND) => return finish_foreground(context, item).await,
        Some(ORPHAN) => return finish_orphan(context, item).await,
        _ => {}
    }
    if item.owners.is_empty() || is_unresolvable(context, item) {
        return Ok(CollectionOutcome::Done);
    }
    let has_dependents = !context.ownership.dependents(&item.uid).is_empty();
    match action(item, has_dependents) {
        DependentAction::Keep => Ok(CollectionOutcome::Done),
        DependentAction::Unlink => {
            let stale = |presence: Presence| presence != Presence::Solid;
            let gone: Vec<&str> = item
                .owners
                .iter()
                .filter(|(_, own)| stale(*own))
                .map(|(owner, _)| owner.uid.as_str())
                .collect();
            unlink(context, item, &gone).await.map(|()| CollectionOutcome::Done)
        }
        DependentAction::Delete(policy) => delete(context, item, policy).await,
    }
}

/// Whether the store is at least as new as the index was when it returned the item.
fn is_visible(context: &Context, item: &Item) -> bool {
    context.objects.store().revision() >= item.revision
}

async fn delete(context: &Context, item: &Item, policy: &str) -> Result<CollectionOutcome, ApiError> {
    let deletion = Deletion::by_controller(CONTROLLER, &item.uid, policy);
    let deleted = context.deletions.delete(&item.key, deletion).await;
    // The code of the error does not matter: a webhook chooses the code of its refusal.
    let is_there =
        || context.objects.get_key(&item.key).is_some_and(|object| object.uid.as_str() == item.uid);
    match deleted {
        Err(error) if is_there() => Err(error),
        _ => Ok(CollectionOutcome::Done),
    }
}

/// Whether an object is left alone although an owner is not in the index. This holds when the owner was never seen and
/// its kind is not served here, when its kind is not in the index and the store has it, and when a cluster-scoped
/// object refers to a namespaced owner, which is invalid (Kubernetes: owners and dependents).
fn is_unresolvable(context: &Context, item: &Item) -> bool {
    let missing = |presence: Presence| matches!(presence, Presence::Unseen | Presence::Absent);
    if !item.owners.iter().any(|(_, own)| missing(*own)) {
        return false;
    }
    let Some(object) = context.objects.get_key(&item.key) else { return false };
    let catalog = context.registry.catalog();
    items(&object.value, "/metadata/ownerReferences").iter().any(|reference| {
        let uid = text(reference, "/uid");
        let own = item.owners.iter().find(|(owner, own)| owner.uid == uid && missing(*own));
        let Some((_, presence)) = own else { return false };
        let api_version = text(reference, "/apiVersion");
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        match catalog.kinds.by_kind(group, version, text(reference, "/kind")) {
            None => *presence == Presence::Unseen,
            Some(kind) if kind.namespaced && item.key.namespace().is_empty() => true,
            Some(kind) => {
                let name = text(reference, "/name");
                let key = ObjectKey::new(kind.storage.clone(), item.key.namespace(), name);
                let is_stored =
                    || context.objects.get_key(&key).is_some_and(|owner| owner.uid.as_str() == uid);
                is_untracked(&kind.storage) && is_stored()
            }
        }
    })
}

/// Removes the finalizer of an owner when no dependent blocks its deletion any more. The dependents are collected as
/// items of their own.
async fn finish_foreground(context: &Context, owner: &Item) -> Result<CollectionOutcome, ApiError> {
    if context.ownership.dependents(&owner.uid).iter().any(|(_, blocks)| *blocks) {
        return Ok(CollectionOutcome::Done);
    }
    remove_finalizer(context, owner, FOREGROUND).await
}

async fn finish_orphan(context: &Context, owner: &Item) -> Result<CollectionOutcome, ApiError> {
    for (dependent, _) in context.ownership.dependents(&owner.uid) {
        if !is_visible(context, &dependent) {
            return Ok(CollectionOutcome::Early);
        }
        unlink(context, &dependent, &[&owner.uid]).await?;
    }
    remove_finalizer(context, owner, ORPHAN).await
}

/// Removes references to these owners from a dependent.
async fn unlink(context: &Context, item: &Item, owners: &[&str]) -> Result<(), ApiError> {
    let update = context.objects.update(&item.key, |object| {
        if object.uid.as_str() != item.uid {
            return Edit::Keep;
        }
        let metadata = member(&mut object.value, "metadata");
        let Some(references) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) else {
            return Edit::Keep;
        };
        references
            .retain(|own| !own.get("uid").and_then(Value::as_str).is_some_and(|uid| owners.contains(&uid)));
        if references.is_empty() {
            metadata.remove("ownerReferences");
        }
        Edit::Put
    });
    settled(update.await.map(|_| ()))
}

async fn remove_finalizer(
    context: &Context,
    item: &Item,
    finalizer: &str,
) -> Result<CollectionOutcome, ApiError> {
    let update = context.objects.update(&item.key, |object| {
        if object.uid.as_str() == item.uid { without_finalizer(object, finalizer) } else { Edit::Keep }
    });
    settled(update.await.map(|_| ()))?;
    Ok(CollectionOutcome::Done)
}

fn settled(result: Result<(), StoreError>) -> Result<(), ApiError> {
    match result {
        Err(StoreError::NotFound { .. }) => Ok(()),
        other => other.map_err(ApiError::from),
    }
}

/// Removes a finalizer. An object whose deletion waits for nothing else is removed.
pub(super) fn without_finalizer(object: &mut StoredObject, finalizer: &str) -> Edit {
    let terminating = object.is_terminating();
    let metadata = member(&mut object.value, "metadata");
    let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) else {
        return Edit::Keep;
    };
    let before = finalizers.len();
    finalizers.retain(|own| own != finalizer);
    if finalizers.len() == before {
        return Edit::Keep;
    }
    if !finalizers.is_empty() {
        return Edit::Put;
    }
    metadata.remove("finalizers");
    let grace = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
    let namespace_content = !crate::objects::items(&object.value, "/spec/finalizers").is_empty();
    let is_namespace = &*object.key.resource().name == "namespaces";
    let waits = grace > 0 || (is_namespace && namespace_content);
    if terminating && !waits { Edit::Remove } else { Edit::Put }
}

#[cfg(test)]
mod tests;
