//! CustomResourceDefinitions: names are accepted or refused, accepted kinds are served at once, and the objects of a
//! deleted definition go before it.

use serde_json::{Value, json};
use tombolo_apiserve::kinds::Kinds;
use tombolo_apiserve::registry::Registry;
use tombolo_proto::object::Resource;

use super::deletion::Deletion;
use super::feed::Feed;
use super::garbage::without_finalizer;
use super::{Context, is_settled};
use crate::embedded::objects::{Edit, Object, items, list_member, member, text, timestamp, v1};

const GROUP: &str = "apiextensions.k8s.io";

/// Finalizer of a definition whose objects still exist.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Name under which it deletes.
const CONTROLLER: &str = "customresourcedefinition-controller";

/// How often the objects of a deleted definition are looked for again.
const RETRY: std::time::Duration = std::time::Duration::from_millis(200);

pub(in crate::embedded) fn resource() -> Resource {
    v1(GROUP, "customresourcedefinitions")
}

/// Serves the definitions that were established before a restart. Called before the first request.
pub(in crate::embedded) fn publish_stored(definitions: &[Object], registry: &Registry) {
    for definition in definitions.iter().filter(|definition| is_true(&definition.value, "Established")) {
        if let Err(errors) = registry.update(|kinds| kinds.with_crd(&definition.value)) {
            tracing::warn!(name = definition.key.name(), ?errors, "a stored definition is not served");
        }
    }
}

/// Follows definitions until the server stops.
pub(super) async fn run(context: &Context) {
    let mut feed = Feed::new(&context.objects, resource());
    let mut published: std::collections::HashMap<String, Vec<Resource>> = std::collections::HashMap::new();
    while let Some(key) = feed.next().await {
        match context.objects.get_key(&key) {
            Some(definition) if definition.is_terminating() => remove_instances(context, definition).await,
            Some(definition) => {
                if establish(context, &definition).await {
                    published.insert(key.name().to_owned(), storages(context, &definition.value));
                }
            }
            None => withdraw(context, key.name(), published.remove(key.name()).unwrap_or_default()),
        }
    }
}

fn withdraw(context: &Context, name: &str, storages: Vec<Resource>) {
    let Some((plural, group)) = name.split_once('.') else { return };
    let removed = context
        .registry
        .update(|kinds| Ok::<_, std::convert::Infallible>(kinds.without_group_resource(group, plural)));
    if let Err(never) = removed {
        match never {}
    }
    for storage in storages {
        context.objects.store().forget(&storage);
    }
}

/// Under which resources the objects of a definition are stored.
fn storages(context: &Context, definition: &Value) -> Vec<Resource> {
    let (group, plural) = (text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
    let catalog = context.registry.catalog();
    let own =
        catalog.kinds.iter().filter(|kind| *kind.resource.group == *group && *kind.resource.name == *plural);
    let mut storages: Vec<Resource> = own.map(|kind| kind.storage.clone()).collect();
    storages.dedup();
    storages
}

/// Publishes a definition and writes its status; whether it is served.
async fn establish(context: &Context, definition: &Object) -> bool {
    let conflict = name_conflict(&context.registry.catalog().kinds, &definition.value);
    let accepted = conflict.is_none();
    if accepted && let Err(errors) = context.registry.update(|kinds| kinds.with_crd(&definition.value)) {
        tracing::warn!(name = definition.key.name(), ?errors, "a definition cannot be served");
        return false;
    }
    let update = context.objects.update(&definition.key, |object| {
        let before = object.value.clone();
        write_status(&mut object.value, conflict.as_deref());
        add_finalizer(&mut object.value);
        if object.value == before { Edit::Keep } else { Edit::Put }
    });
    if let Err(error) = update.await {
        tracing::warn!(name = definition.key.name(), %error, "the status of a definition was not written");
    }
    accepted
}

/// Why the names cannot be accepted: another resource of the group has them.
fn name_conflict(kinds: &Kinds, definition: &Value) -> Option<String> {
    let group = text(definition, "/spec/group");
    let plural = text(definition, "/spec/names/plural");
    let name = |field: &str| text(definition, &format!("/spec/names/{field}"));
    let others =
        || kinds.iter().filter(|kind| *kind.resource.group == *group && *kind.resource.name != *plural);
    let singular = name("singular");
    if others().any(|kind| *kind.kind == *name("kind") || *kind.list_kind == *name("kind")) {
        return Some(format!("{:?} is already in use", name("kind")));
    }
    let short: Vec<&str> =
        items(definition, "/spec/names/shortNames").iter().filter_map(Value::as_str).collect();
    for wanted in short.into_iter().chain([plural, singular]).filter(|wanted| !wanted.is_empty()) {
        let taken = |kind: &std::sync::Arc<tombolo_apiserve::kinds::KindInfo>| {
            *kind.resource.name == *wanted
                || *kind.singular == *wanted
                || kind.short_names.iter().any(|own| **own == *wanted)
        };
        if others().any(taken) {
            return Some(format!("{wanted:?} is already in use"));
        }
    }
    None
}

fn write_status(definition: &mut Value, conflict: Option<&str>) {
    let mut names = definition.pointer("/spec/names").cloned().unwrap_or_default();
    let storage = items(definition, "/spec/versions")
        .iter()
        .find(|version| version.get("storage") == Some(&json!(true)));
    let storage = storage.map(|version| text(version, "/name").to_owned()).unwrap_or_default();
    let accepted = match conflict {
        None => ("True", "NoConflicts", "no conflicts found".to_owned()),
        Some(why) => ("False", "Conflict", why.to_owned()),
    };
    let established = match conflict {
        None => ("True", "InitialNamesAccepted", "the initial names have been accepted".to_owned()),
        Some(_) => ("False", "NotAccepted", "not all names are accepted".to_owned()),
    };
    let was_established = is_true(definition, "Established");
    set_condition(definition, "NamesAccepted", accepted);
    // An established definition stays established: its objects are there.
    if !was_established {
        set_condition(definition, "Established", established);
    }
    let status = member(definition, "status");
    if conflict.is_none() {
        if let Some(names) = names.as_object_mut()
            && names.get("shortNames").is_some_and(|short| short == &json!([]))
        {
            names.remove("shortNames");
        }
        status.insert("acceptedNames".into(), names);
    } else {
        status.entry("acceptedNames").or_insert_with(|| json!({"plural": "", "kind": ""}));
    }
    let stored = list_member(status, "storedVersions");
    if !storage.is_empty() && !stored.iter().any(|own| own == &storage) {
        stored.push(json!(storage));
    }
}

fn is_true(definition: &Value, kind: &str) -> bool {
    items(definition, "/status/conditions")
        .iter()
        .any(|condition| text(condition, "/type") == kind && text(condition, "/status") == "True")
}

fn set_condition(definition: &mut Value, kind: &str, (status, reason, message): (&str, &str, String)) {
    let conditions = list_member(member(definition, "status"), "conditions");
    let own = conditions.iter_mut().find(|condition| text(condition, "/type") == kind);
    let same = |own: &Value| {
        text(own, "/status") == status && text(own, "/reason") == reason && text(own, "/message") == message
    };
    if own.as_deref().is_some_and(same) {
        return;
    }
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": timestamp(jiff::Timestamp::now()),
    });
    match own {
        Some(own) => *own = condition,
        None => conditions.push(condition),
    }
}

fn add_finalizer(definition: &mut Value) {
    let finalizers = list_member(member(definition, "metadata"), "finalizers");
    if !finalizers.iter().any(|own| own == CLEANUP) {
        finalizers.push(json!(CLEANUP));
    }
}

/// Deletes the objects of a definition that is being deleted, then lets it go. Objects with finalizers of their
/// own are waited for by another task, so that other definitions go on.
async fn remove_instances(context: &Context, definition: Object) {
    let mark = context.objects.update(&definition.key, |object| {
        let before = object.value.clone();
        let condition =
            ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress".to_owned());
        set_condition(&mut object.value, "Terminating", condition);
        if object.value == before { Edit::Keep } else { Edit::Put }
    });
    if let Err(error) = mark.await {
        tracing::warn!(name = definition.key.name(), %error, "the status of a definition was not written");
    }
    for storage in storages(context, &definition.value) {
        loop {
            let left = context.objects.list_raw(&storage, None);
            if left.is_empty() {
                break;
            }
            for object in left {
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
    let finish = context.objects.update(&definition.key, |object| without_finalizer(object, CLEANUP));
    if let Err(error) = finish.await {
        tracing::warn!(name = definition.key.name(), %error, "a deleted definition was not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(kind: &str, plural: &str, short: &[&str]) -> Value {
        json!({"metadata": {"name": format!("{plural}.apps")}, "spec": {
            "group": "apps", "names": {"kind": kind, "plural": plural, "shortNames": short},
            "versions": [{"name": "v2", "served": true, "storage": true}],
        }})
    }

    #[test]
    fn taken_names_are_refused() {
        let kinds = Kinds::builtin();
        assert_eq!(name_conflict(&kinds, &definition("Till", "tills", &["ti"])), None);
        let taken = name_conflict(&kinds, &definition("Deployment", "tills", &[]));
        assert_eq!(taken.as_deref(), Some("\"Deployment\" is already in use"));
        let short = name_conflict(&kinds, &definition("Till", "tills", &["deploy"]));
        assert_eq!(short.as_deref(), Some("\"deploy\" is already in use"));
    }

    #[test]
    fn status_says_what_happened_and_settles() {
        let mut crd = definition("Till", "tills", &[]);
        write_status(&mut crd, None);
        assert!(is_true(&crd, "Established") && is_true(&crd, "NamesAccepted"));
        assert_eq!(crd["status"]["storedVersions"], json!(["v2"]));
        assert_eq!(crd["status"]["acceptedNames"]["kind"], "Till");
        let settled = crd.clone();
        write_status(&mut crd, None);
        assert_eq!(crd, settled);
        let mut refused = definition("Deployment", "tills", &[]);
        write_status(&mut refused, Some("taken"));
        assert!(!is_true(&refused, "Established") && !is_true(&refused, "NamesAccepted"));
    }
}
