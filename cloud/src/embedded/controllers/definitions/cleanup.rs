//! Deletes the objects of a definition that is being deleted, then lets it go.

use std::time::Duration;

use tombolo_apiserve::write::CLEANUP;

use super::conditions::is_true;
use super::{publish, resources_of};
use crate::embedded::controllers::deletion::Deletion;
use crate::embedded::controllers::garbage::without_finalizer;
use crate::embedded::controllers::{Context, is_settled};
use crate::embedded::objects::{Edit, Object, set_condition, text};

/// Name under which it deletes.
const CONTROLLER: &str = "customresourcedefinition-controller";

/// How often the objects of a deleted definition are looked for again.
const RETRY: Duration = Duration::from_millis(200);

/// Takes as long as finalizers of the objects take.
pub(super) async fn run(context: &Context, definition: Object) {
    if is_true(&definition.value, "Established") {
        mark(context, &definition).await;
        remove_objects(context, &definition).await;
    }
    let finish = context.objects.update(&definition.key, |object| without_finalizer(object, CLEANUP));
    if let Err(error) = finish.await {
        tracing::warn!(name = definition.key.name(), %error, "a deleted definition was not removed");
    }
}

/// Says that deletion is in progress; from then on no objects are created.
async fn mark(context: &Context, definition: &Object) {
    let mut described = definition.value.clone();
    let condition =
        || ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned());
    set_condition(&mut described, "Terminating", condition());
    publish(&described, context.objects.store(), &context.registry);
    let marked = context.objects.update(&definition.key, |object| {
        let before = object.value.clone();
        set_condition(&mut object.value, "Terminating", condition());
        if object.value == before { Edit::Keep } else { Edit::Put }
    });
    if let Err(error) = marked.await {
        tracing::warn!(name = definition.key.name(), %error, "the status of a definition was not written");
    }
}

async fn remove_objects(context: &Context, definition: &Object) {
    let (group, plural) =
        (text(&definition.value, "/spec/group"), text(&definition.value, "/spec/names/plural"));
    for storage in resources_of(context.objects.store(), group, plural) {
        loop {
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
