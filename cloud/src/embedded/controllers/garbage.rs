//! Deletion by owner reference: in the background, in the foreground, or not at all (orphans).

use std::time::Duration;

use serde_json::Value;
use tombolo_apiserve::status::ApiError;
use tombolo_apiserve::store::StoreError;

use super::deletion::Deletion;
use super::ownership::{FOREGROUND, Item, ORPHAN, Presence};
use super::{Context, is_settled};
use crate::embedded::objects::{Edit, Object, items, member, text};

/// Name under which it deletes.
const CONTROLLER: &str = "generic-garbage-collector";

/// Pause after a failure, so that a store that refuses is not asked in a busy loop.
const PAUSE: Duration = Duration::from_millis(500);

/// Collects until the server stops.
pub(super) async fn run(context: &Context) {
    // What was begun when this controller stood aside may be half done.
    context.ownership.retry_all();
    loop {
        let item = context.ownership.next().await;
        if let Err(error) = collect(context, &item).await {
            tracing::warn!(key = %item.key, %error, "an object was not collected; trying again");
            tokio::time::sleep(PAUSE).await;
            context.ownership.retry(&item.uid);
        }
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
    use serde_json::json;
    use tombolo_apiserve::store::Revision;
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
