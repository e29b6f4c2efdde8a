//! Deletion by owner reference: in the background, in the foreground, or not at all (orphans).

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
use crate::objects::{Edit, Object, items, member, text};

/// Name under which it deletes.
const CONTROLLER: &str = "generic-garbage-collector";

/// Pause after a first failure with an object; twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(500);

/// The same where an object could not be read yet: a batch of changes is visible within milliseconds after its last one is known.
const EARLY_PAUSE: Duration = Duration::from_millis(10);

/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Objects that are collected at the same time. A webhook may let each wait.
const COLLECTING_MAX: usize = 256;

/// Those of one namespace: others do not wait for what it has.
const COLLECTING_OF_NAMESPACE_MAX: usize = 4;

/// Collects until the server stops.
pub(super) async fn run(context: &Context) {
    // What was begun when this controller stood aside may be half done.
    context.ownership.retry_all();
    follow(&context.ownership, async |item| {
        collect(context, &item).await.unwrap_or_else(|error| {
            tracing::warn!(key = %item.key, %error, "an object was not collected; trying again");
            Outcome::Failed
        })
    })
    .await;
}

/// What became of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nothing is left to do until something changes.
    Done,
    /// The index knows a version that cannot be read yet. It can when the store has come to its revision, so this ends.
    Early,
    /// It did not work.
    Failed,
}

/// Has everything done that the index says. What fails is tried again later, while all else goes on.
async fn follow<F: Future<Output = Outcome>>(ownership: &Ownership, work: impl Fn(Item) -> F) {
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

/// Whose turn it is. All of it is about stored objects.
#[derive(Debug, Default)]
struct Turns {
    /// What is being collected, by namespace.
    running: HashMap<String, HashSet<String>>,
    /// What waits for its namespace.
    waiting: HashMap<String, BTreeSet<String>>,
    /// How often each has failed.
    failures: HashMap<String, u32>,
    /// What is tried again after a pause.
    paused: HashSet<String>,
}

impl Turns {
    /// Whether an object is to be collected now; else it is told when others of its namespace end.
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

    /// What has waited for its namespace. What is being collected and was told again meanwhile waits for its own end.
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

    /// How long to wait before an object is tried again; none where all is done, or it waits already.
    fn pause(&mut self, uid: &str, outcome: Outcome) -> Option<Duration> {
        let first = match outcome {
            Outcome::Done => {
                self.failures.remove(uid);
                return None;
            }
            Outcome::Early => EARLY_PAUSE,
            Outcome::Failed => PAUSE,
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
enum Verdict {
    /// Some owner exists and no reference is stale.
    Keep,
    /// Some owner exists; these references lead nowhere.
    Unlink,
    /// No owner exists: delete it, by this policy.
    Delete(&'static str),
}

fn verdict(item: &Item, has_dependents: bool) -> Verdict {
    let count = |presence| item.owners.iter().filter(|(_, own)| *own == presence).count();
    let (solid, waiting) = (count(Presence::Solid), count(Presence::Waiting));
    let absent = item.owners.len() - solid - waiting;
    if solid > 0 {
        return if waiting + absent > 0 { Verdict::Unlink } else { Verdict::Keep };
    }
    if waiting > 0 && has_dependents {
        return Verdict::Delete("Foreground");
    }
    if waiting + absent > 0 { Verdict::Delete("Background") } else { Verdict::Keep }
}

async fn collect(context: &Context, item: &Item) -> Result<Outcome, ApiError> {
    if !is_visible(context, item) {
        return Ok(Outcome::Early);
    }
    match item.waits {
        Some(FOREGROUND) => return finish_foreground(context, item).await,
        Some(ORPHAN) => return finish_orphan(context, item).await,
        _ => {}
    }
    if item.owners.is_empty() || is_unresolvable(context, item) {
        return Ok(Outcome::Done);
    }
    let has_dependents = !context.ownership.dependents(&item.uid).is_empty();
    match verdict(item, has_dependents) {
        Verdict::Keep => Ok(Outcome::Done),
        Verdict::Unlink => {
            let stale = |presence: Presence| presence != Presence::Solid;
            let gone: Vec<&str> = item
                .owners
                .iter()
                .filter(|(_, own)| stale(*own))
                .map(|(owner, _)| owner.uid.as_str())
                .collect();
            unlink(context, item, &gone).await.map(|()| Outcome::Done)
        }
        Verdict::Delete(policy) => delete(context, item, policy).await,
    }
}

/// Whether what is read from the store is at least as new as what the index knew when it told of the object.
fn is_visible(context: &Context, item: &Item) -> bool {
    context.objects.store().revision() >= item.revision
}

async fn delete(context: &Context, item: &Item, policy: &str) -> Result<Outcome, ApiError> {
    let deletion = Deletion::by_controller(CONTROLLER, &item.uid, policy);
    let deleted = context.deletions.delete(&item.key, deletion).await;
    // Whatever the answer: a webhook chooses the code with which it refuses.
    let is_there =
        || context.objects.get_key(&item.key).is_some_and(|object| object.uid.as_str() == item.uid);
    match deleted {
        Err(error) if is_there() => Err(error),
        _ => Ok(Outcome::Done),
    }
}

/// Whether nobody can say that the owners do not exist: one that was never seen is of a kind that is not served here or not
/// in the index, or an object of the cluster names one in a namespace, which leads nowhere and is left alone (Kubernetes:
/// owners and dependents).
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

/// Lets an owner go when nothing blocks it any more; its dependents are deleted by their own turns.
async fn finish_foreground(context: &Context, owner: &Item) -> Result<Outcome, ApiError> {
    if context.ownership.dependents(&owner.uid).iter().any(|(_, blocks)| *blocks) {
        return Ok(Outcome::Done);
    }
    remove_finalizer(context, owner, FOREGROUND).await
}

async fn finish_orphan(context: &Context, owner: &Item) -> Result<Outcome, ApiError> {
    for (dependent, _) in context.ownership.dependents(&owner.uid) {
        if !is_visible(context, &dependent) {
            return Ok(Outcome::Early);
        }
        unlink(context, &dependent, &[&owner.uid]).await?;
    }
    remove_finalizer(context, owner, ORPHAN).await
}

/// Takes references to these owners out of a dependent.
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

async fn remove_finalizer(context: &Context, item: &Item, finalizer: &str) -> Result<Outcome, ApiError> {
    let update = context.objects.update(&item.key, |object| {
        if object.uid.as_str() == item.uid { without_finalizer(object, finalizer) } else { Edit::Keep }
    });
    settled(update.await.map(|_| ()))?;
    Ok(Outcome::Done)
}

fn settled(result: Result<(), StoreError>) -> Result<(), ApiError> {
    match result {
        Err(StoreError::NotFound { .. }) => Ok(()),
        other => other.map_err(ApiError::from),
    }
}

/// Takes a finalizer off; an object whose deletion waited for nothing else goes.
pub(super) fn without_finalizer(object: &mut Object, finalizer: &str) -> Edit {
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
