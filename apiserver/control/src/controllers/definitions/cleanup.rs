//! Deletes the objects of a definition that is being deleted, then removes its finalizer.

use std::time::Duration;

use tombolo_apicore::store::StoreError;
use tombolo_apicore::write::CLEANUP;
use tombolo_runtime::doubled;

use super::conditions::is_true;
use super::{publish, resources_of};
use crate::controllers::deletion::Deletion;
use crate::controllers::garbage::without_finalizer;
use crate::controllers::{Context, is_settled};
use crate::objects::{Edit, StoredObject, items, set_condition, text};

/// Name of the controller, as the deleting user.
const CONTROLLER: &str = "customresourcedefinition-controller";

/// Pause before the remaining objects of a deleted definition are checked again.
const RETRY: Duration = Duration::from_millis(200);

/// Longest pause after the store refused the removal of a finalizer.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Whether a definition still has the finalizer of this cleanup.
pub(super) fn is_left(definition: &StoredObject) -> bool {
    items(&definition.value, "/metadata/finalizers").iter().any(|finalizer| finalizer == CLEANUP)
}

/// Cleans up a definition. Waits for the finalizers of its objects, or until this definition (by UID) is gone: if its
/// finalizer was removed and another definition of its name was created, the new one keeps its objects.
pub(super) async fn run(context: &Context, definition: StoredObject) {
    if is_true(&definition.value, "Established") {
        mark(context, &definition).await;
        remove_objects(context, &definition).await;
    }
    let mut failures = 0_u32;
    while let Err(error) = finish(context, &definition).await {
        tracing::warn!(name = definition.key.name(), %error, "cannot remove a deleted definition; retrying");
        failures += 1;
        tokio::time::sleep(doubled(RETRY, failures, RETRY_MAX)).await;
    }
}

async fn finish(context: &Context, definition: &StoredObject) -> Result<(), StoreError> {
    let update = context.objects.update(&definition.key, |object| match object.uid == definition.uid {
        true => without_finalizer(object, CLEANUP),
        false => Edit::Keep,
    });
    update.await.map(|_| ())
}

/// Whether this definition, by UID, still exists.
fn is_there(context: &Context, definition: &StoredObject) -> bool {
    context.objects.get_key(&definition.key).is_some_and(|object| object.uid == definition.uid)
}

/// Sets the condition `Terminating`. From then on no objects are created.
async fn mark(context: &Context, definition: &StoredObject) {
    if !is_there(context, definition) {
        return;
    }
    let mut described = definition.value.clone();
    let condition =
        || ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned());
    set_condition(&mut described, "Terminating", condition());
    publish(&described, context.objects.store(), &context.registry);
    let marked = context.objects.update(&definition.key, |object| {
        let is_new =
            object.uid == definition.uid && set_condition(&mut object.value, "Terminating", condition());
        if is_new { Edit::Put } else { Edit::Keep }
    });
    if let Err(error) = marked.await {
        tracing::warn!(name = definition.key.name(), %error, "the status of a definition was not written");
    }
}

async fn remove_objects(context: &Context, definition: &StoredObject) {
    let (group, plural) =
        (text(&definition.value, "/spec/group"), text(&definition.value, "/spec/names/plural"));
    for storage in resources_of(context.objects.store(), group, plural) {
        while is_there(context, definition) {
            for object in context.objects.list_raw(&storage, None) {
                let deletion = Deletion::by_controller(CONTROLLER, object.uid.as_str(), "Background");
                if let Err(error) = context.deletions.delete(&object.key, deletion).await
                    && !is_settled(&error)
                {
                    tracing::warn!(key = %object.key, %error, "an object of a deleted definition was not deleted");
                }
            }
            if context.objects.list_raw(&storage, None).is_empty() {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}
