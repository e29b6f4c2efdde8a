//! Deletion by owner reference: in the background, in the foreground, or not at all (orphans).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use tombolo_apiserve::status::ApiError;
use tombolo_apiserve::store::StoreError;

use super::deletion::Deletion;
use super::ownership::{FOREGROUND, Item, ORPHAN, Ownership, Presence};
use super::{Context, is_settled};
use crate::embedded::objects::{Edit, Object, items, member, text};

/// Name under which it deletes.
const CONTROLLER: &str = "generic-garbage-collector";

/// Pause after a first failure with an object; twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(500);

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
        let outcome = collect(context, &item).await;
        if let Err(error) = &outcome {
            tracing::warn!(key = %item.key, %error, "an object was not collected; trying again");
        }
        outcome.is_ok()
    })
    .await;
}

/// Has everything done that the index says. What fails is tried again later, while all else goes on.
async fn follow<F: Future<Output = bool>>(ownership: &Ownership, work: impl Fn(Item) -> F) {
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
            Some((item, is_done)) = running.next() => {
                turns.end(&item);
                while let Some(uid) = turns.next(item.key.namespace()) {
                    if let Some(next) = ownership.take(&uid).filter(|next| turns.begin(next)) {
                        running.push(begin(next));
                        break;
                    }
                }
                if let Some(pause) = turns.pause(&item.uid, is_done) {
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

    /// How long to wait before an object is tried again; none where nothing failed, or it waits already.
    fn pause(&mut self, uid: &str, is_done: bool) -> Option<Duration> {
        if is_done {
            self.failures.remove(uid);
            return None;
        }
        if !self.paused.insert(uid.to_owned()) {
            return None;
        }
        let failures = self.failures.entry(uid.to_owned()).or_default();
        let pause = PAUSE.saturating_mul(1 << (*failures).min(16)).min(PAUSE_MAX);
        *failures += 1;
        Some(pause)
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

async fn collect(context: &Context, item: &Item) -> Result<(), ApiError> {
    match item.waits {
        Some(FOREGROUND) => return finish_foreground(context, item).await,
        Some(ORPHAN) => return finish_orphan(context, item).await,
        _ => {}
    }
    if item.owners.is_empty() {
        return Ok(());
    }
    if names_unknown_kind(context, item) {
        return Ok(());
    }
    let has_dependents = !context.ownership.dependents(&item.uid).is_empty();
    match verdict(item, has_dependents) {
        Verdict::Keep => Ok(()),
        Verdict::Unlink => {
            let stale = |presence: Presence| presence != Presence::Solid;
            let gone: Vec<&str> = item
                .owners
                .iter()
                .filter(|(_, own)| stale(*own))
                .map(|(owner, _)| owner.uid.as_str())
                .collect();
            unlink(context, item, &gone).await
        }
        Verdict::Delete(policy) => {
            let deletion = Deletion::by_controller(CONTROLLER, &item.uid, policy);
            match context.deletions.delete(&item.key, deletion).await {
                Err(error) if !is_settled(&error) => Err(error),
                _ => Ok(()),
            }
        }
    }
}

/// Whether an owner that was never seen is of a kind that is not served here: nobody can say that it does not exist.
fn names_unknown_kind(context: &Context, item: &Item) -> bool {
    let unseen: Vec<&str> = item
        .owners
        .iter()
        .filter(|(_, own)| *own == Presence::Unseen)
        .map(|(owner, _)| owner.uid.as_str())
        .collect();
    if unseen.is_empty() {
        return false;
    }
    let Some(object) = context.objects.get_key(&item.key) else { return false };
    let catalog = context.registry.catalog();
    items(&object.value, "/metadata/ownerReferences").iter().any(|reference| {
        let api_version = text(reference, "/apiVersion");
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        unseen.contains(&text(reference, "/uid"))
            && catalog.kinds.by_kind(group, version, text(reference, "/kind")).is_none()
    })
}

/// Lets an owner go when nothing blocks it any more; its dependents are deleted by their own turns.
async fn finish_foreground(context: &Context, owner: &Item) -> Result<(), ApiError> {
    if context.ownership.dependents(&owner.uid).iter().any(|(_, blocks)| *blocks) {
        return Ok(());
    }
    remove_finalizer(context, owner, FOREGROUND).await
}

async fn finish_orphan(context: &Context, owner: &Item) -> Result<(), ApiError> {
    for (dependent, _) in context.ownership.dependents(&owner.uid) {
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

async fn remove_finalizer(context: &Context, item: &Item, finalizer: &str) -> Result<(), ApiError> {
    let update = context.objects.update(&item.key, |object| {
        if object.uid.as_str() == item.uid { without_finalizer(object, finalizer) } else { Edit::Keep }
    });
    settled(update.await.map(|_| ()))
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
    let namespace_content = !crate::embedded::objects::items(&object.value, "/spec/finalizers").is_empty();
    let is_namespace = &*object.key.resource().name == "namespaces";
    let waits = grace > 0 || (is_namespace && namespace_content);
    if terminating && !waits { Edit::Remove } else { Edit::Put }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use serde_json::json;
    use tombolo_apiserve::store::{Revision, Stored};
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::ObjectKey;

    use super::super::ownership::Owner;
    use super::*;
    use crate::embedded::objects::core;

    #[test]
    fn verdicts() {
        use Presence::{Absent, Solid, Waiting};
        let item = |owners: &[Presence]| Item {
            uid: "u".into(),
            key: ObjectKey::new(core("pods"), "shop", "p"),
            owners: owners
                .iter()
                .map(|own| (Owner { uid: "o".into(), block_owner_deletion: None }, *own))
                .collect(),
            waits: None,
        };
        for (owners, has_dependents, expected) in [
            (&[Solid][..], false, Verdict::Keep),
            (&[Solid, Absent], false, Verdict::Unlink),
            (&[Solid, Waiting], true, Verdict::Unlink),
            (&[Absent], false, Verdict::Delete("Background")),
            (&[Absent], true, Verdict::Delete("Background")),
            (&[Waiting], false, Verdict::Delete("Background")),
            (&[Waiting, Absent], true, Verdict::Delete("Foreground")),
        ] {
            assert_eq!(verdict(&item(owners), has_dependents), expected, "{owners:?} {has_dependents}");
        }
    }

    #[test]
    fn what_is_told_again_while_it_is_collected_waits_for_its_own_end() {
        let item = |uid: &str| Item {
            uid: uid.into(),
            key: ObjectKey::new(core("pods"), "shop", uid),
            owners: Vec::new(),
            waits: None,
        };
        let (mut turns, again, other) = (Turns::default(), item("a"), item("b"));
        assert!(turns.begin(&again) && turns.begin(&other));
        assert!(!turns.begin(&again), "it is being collected");
        turns.end(&other);
        assert_eq!(turns.next("shop"), None, "not on account of another one's end");
        turns.end(&again);
        assert_eq!(turns.next("shop").as_deref(), Some("a"));
        assert_eq!(turns.next("shop"), None);
    }

    /// Objects of a namespace whose webhook refuses, and of one whose webhook never answers, hold up no other namespace, and
    /// are tried ever less often.
    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_collected_holds_up_nobody() {
        let ownership = Ownership::default();
        for (namespace, count) in [("hangs", 100), ("refuses", 100), ("well", 100)] {
            for number in 0..count {
                let (key, uid) = (core("configmaps"), format!("{namespace}-{number}"));
                let key = ObjectKey::new(key, namespace, &uid);
                let metadata = json!({"metadata": {"ownerReferences": [{"uid": "gone"}]}});
                let body = bytes::Bytes::from(metadata.to_string());
                ownership.apply(&Stored::new(key, Uid::parse(&uid).unwrap(), Revision(1), body), false);
            }
        }
        let tried = Mutex::new(HashMap::<String, usize>::new());
        let work = async |item: Item| {
            *tried.lock().entry(item.key.namespace().to_owned()).or_default() += 1;
            match item.key.namespace() {
                "hangs" => std::future::pending().await,
                namespace => namespace == "well",
            }
        };
        let following = follow(&ownership, work);
        tokio::time::timeout(PAUSE / 2, following).await.expect_err("it goes on");
        let count = |namespace: &str| tried.lock().get(namespace).copied();
        assert_eq!(count("well"), Some(100), "without a pause");
        assert_eq!(count("hangs"), Some(COLLECTING_OF_NAMESPACE_MAX));
        assert_eq!(count("refuses"), Some(100), "each once");

        let mut turns = Turns::default();
        let pauses: Vec<_> = (0..12)
            .map(|_| {
                let pause = turns.pause("u", false).expect("a pause");
                assert_eq!(turns.pause("u", false), None, "one at a time");
                turns.paused.remove("u");
                pause
            })
            .collect();
        assert_eq!((pauses[0], pauses[1], pauses[11]), (PAUSE, 2 * PAUSE, PAUSE_MAX));
        turns.pause("u", true);
        assert!(turns.failures.is_empty(), "what was done is forgotten");
    }

    #[test]
    fn the_last_finalizer_lets_an_object_go() {
        let object = |metadata: Value| Object {
            key: ObjectKey::new(core("configmaps"), "shop", "m"),
            uid: Uid::parse("u").unwrap(),
            revision: Revision(1),
            value: json!({"metadata": metadata}),
        };
        let deleted = "2026-01-01T00:00:00Z";
        let mut waiting = object(json!({"finalizers": [ORPHAN, "mine"], "deletionTimestamp": deleted}));
        assert_eq!(without_finalizer(&mut waiting, ORPHAN), Edit::Put);
        assert_eq!(without_finalizer(&mut waiting, ORPHAN), Edit::Keep);
        assert_eq!(without_finalizer(&mut waiting, "mine"), Edit::Remove);
        let mut graceful = object(
            json!({"finalizers": [ORPHAN], "deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}),
        );
        assert_eq!(without_finalizer(&mut graceful, ORPHAN), Edit::Put);
        assert_eq!(without_finalizer(&mut object(json!({"finalizers": [ORPHAN]})), ORPHAN), Edit::Put);
    }
}
