//! CustomResourceDefinitions: names are accepted or refused, accepted kinds are served at once, and the objects of a
//! deleted definition are deleted before it.

mod cleanup;
mod conditions;
mod names;

use std::collections::BTreeMap;

use serde_json::Value;
use tombolo_apicore::blocking::run_own_blocking;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::registry::Registry;
use tombolo_proto::object::{ObjectKey, Resource};

use self::conditions::is_true;
use self::names::{AcceptedNames, Holder};
use super::feed::Feed;
use super::{Context, NamedTasks};
use crate::objects::{Edit, StoredObject, member, set_condition, text, v1};

const GROUP: &str = "apiextensions.k8s.io";

pub(crate) fn resource() -> Resource {
    v1(GROUP, "customresourcedefinitions")
}

/// Serves the definitions that were established before a restart. Called before the first request.
pub(crate) fn publish_stored(
    definitions: impl Iterator<Item = StoredObject>,
    store: &MemoryStore,
    registry: &Registry,
) {
    for definition in definitions.filter(|definition| is_true(&definition.value, "Established")) {
        publish(&definition.value, store, registry);
    }
}

/// Follows definitions until the server stops.
pub(super) async fn run(context: &Context) {
    let mut feed = Feed::new(&context.objects, resource());
    let mut controller = Controller { context, holders: BTreeMap::new(), removals: NamedTasks::default() };
    loop {
        tokio::select! {
            key = feed.next() => {
                let Some(key) = key else { return };
                controller.look_at(&key).await;
            }
            // Another definition of the same name may exist by now, and may be deleted as well.
            name = controller.removals.ended() => {
                controller.look_at(&ObjectKey::new(resource(), "", &name)).await;
            }
        }
    }
}

struct Controller<'a> {
    context: &'a Context,
    /// Names that definitions hold, by the name of the definition.
    holders: BTreeMap<String, Holder>,
    /// Deletions of the objects of definitions. They may wait for finalizers, so they run beside the loop.
    removals: NamedTasks<'a>,
}

impl Controller<'_> {
    async fn look_at(&mut self, key: &ObjectKey) {
        let released = match self.context.objects.get_key(key) {
            Some(definition) if definition.is_terminating() => {
                // Finalizers of others do not concern this controller.
                if cleanup::is_left(&definition) {
                    self.removals.begin(key.name(), cleanup::run(self.context, definition));
                }
                None
            }
            Some(definition) => self.establish(&definition).await,
            None => {
                withdraw(self.context, key.name());
                self.holders.remove(key.name()).map(|holder| holder.group)
            }
        };
        let Some(group) = released else { return };
        for key in self.waiting(&group) {
            if let Some(definition) = self.context.objects.get_key(&key).filter(|own| !own.is_terminating()) {
                self.establish(&definition).await;
            }
        }
    }

    /// Definitions of a group that did not get all their names.
    fn waiting(&self, group: &str) -> Vec<ObjectKey> {
        let waiting = self.holders.iter().filter(|(_, holder)| holder.group == group && !holder.satisfied);
        waiting.map(|(name, _)| ObjectKey::new(resource(), "", name)).collect()
    }

    /// Publishes a definition and writes its status. Returns its group if its accepted names changed, so that others
    /// may get released names.
    async fn establish(&mut self, definition: &StoredObject) -> Option<String> {
        let name = definition.key.name();
        let others = self.holders.iter().filter(|(other, _)| *other != name).map(|(_, holder)| holder);
        let accepted_names = names::judge(&definition.value, others, &self.context.registry.catalog().kinds);
        let mut described = definition.value.clone();
        describe(&mut described, &accepted_names);
        if is_true(&described, "Established") {
            run_own_blocking(|| publish(&described, self.context.objects.store(), &self.context.registry))
                .await;
        }
        let update = self.context.objects.update(&definition.key, |object| {
            let before = object.value.clone();
            describe(&mut object.value, &accepted_names);
            if object.value == before { Edit::Keep } else { Edit::Put }
        });
        if let Err(error) = update.await {
            tracing::warn!(name, %error, "the status of a definition was not written");
        }
        let holder = Holder::of(&described);
        let before = self.holders.insert(name.to_owned(), holder.clone());
        before.filter(|before| before.accepted != holder.accepted).map(|before| before.group)
    }
}

/// Serves the kinds of a definition, under its accepted names.
fn publish(definition: &Value, store: &MemoryStore, registry: &Registry) {
    let mut served = definition.clone();
    if let Some(names) =
        definition.pointer("/status/acceptedNames").filter(|names| !text(names, "/kind").is_empty())
    {
        served["spec"]["names"] = names.clone();
    }
    let stored = resources_of(store, text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
    let stored = stored.first().map(|resource| &*resource.version);
    if let Err(errors) = registry.update(|kinds| kinds.with_crd_stored_as(&served, stored)) {
        let name = text(definition, "/metadata/name");
        tracing::warn!(name, ?errors, "a definition cannot be served");
    }
}

/// The resources under which objects of a definition are stored: only one, with the version in which the first object
/// was written.
fn resources_of(store: &MemoryStore, group: &str, plural: &str) -> Vec<Resource> {
    let mut resources = store.resources();
    resources.retain(|resource| *resource.group == *group && *resource.name == *plural);
    resources
}

fn withdraw(context: &Context, name: &str) {
    let Some((plural, group)) = name.split_once('.') else { return };
    let kinds = &context.registry.catalog().kinds;
    // A definition never gets the names of a built-in kind.
    if kinds
        .iter()
        .any(|kind| !kind.custom && *kind.resource.group == *group && *kind.resource.name == *plural)
    {
        return;
    }
    let removed = context
        .registry
        .update(|kinds| Ok::<_, std::convert::Infallible>(kinds.without_group_resource(group, plural)));
    if let Err(never) = removed {
        match never {}
    }
    for storage in resources_of(context.objects.store(), group, plural) {
        context.objects.store().forget(&storage);
    }
}

/// Writes the accepted names into the status.
fn describe(definition: &mut Value, accepted_names: &AcceptedNames) {
    let accepted = accepted_names.conflict.is_none();
    set_condition(definition, "NamesAccepted", accepted_names.condition());
    // An established definition stays established, because objects of it may exist.
    if !is_true(definition, "Established") {
        let established = match accepted {
            true => ("True", "InitialNamesAccepted", "the initial names have been accepted".to_owned()),
            false => ("False", "NotAccepted", "not all names are accepted".to_owned()),
        };
        set_condition(definition, "Established", established);
    }
    if let Some(condition) = conditions::approval(definition) {
        set_condition(definition, "KubernetesAPIApprovalPolicyConformant", condition);
    }
    let status = member(definition, "status");
    status.insert("acceptedNames".into(), accepted_names.accepted.clone());
}

#[cfg(test)]
mod tests;
