//! APIServices: one for every served group and version, and a condition on those for other servers.
//!
//! Requests are not forwarded to other API servers. An APIService for another server is stored, as clients expect, and
//! its condition says why it is not available.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tombolo_apicore::kinds::order::{self, Priorities};
use tombolo_apicore::registry::Registry;
use tombolo_proto::object::{ObjectKey, Resource};

use super::Context;
use super::feed::Feed;
use crate::objects::{Edit, StoredObject, set_condition, v1};

const GROUP: &str = "apiregistration.k8s.io";

/// Label of APIServices that the server creates itself.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Its value for built-in groups. These are created when the server starts and not changed afterwards.
const ON_START: &str = "onstart";

/// Its value for groups of custom resources, which follow their definitions.
const ALWAYS: &str = "true";

fn resource() -> Resource {
    v1(GROUP, "apiservices")
}

/// An APIService that should exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DesiredApiService {
    priorities: Priorities,
    managed: &'static str,
}

/// Follows the served kinds and the APIServices until the server stops.
pub(super) async fn run(context: &Context) {
    let mut served = context.registry.subscribe();
    let mut feed = Feed::new(&context.objects, resource());
    let mut known = BTreeMap::new();
    register(context, &mut known).await;
    loop {
        tokio::select! {
            changed = served.changed() => {
                if changed.is_err() {
                    return;
                }
                register(context, &mut known).await;
            }
            key = feed.next() => {
                let Some(key) = key else { return };
                settle(context, &key, &known).await;
            }
        }
    }
}

/// Creates the APIServices for newly served versions, and removes those for versions that are no longer served.
async fn register(context: &Context, known: &mut BTreeMap<String, DesiredApiService>) {
    let wanted = wanted(&context.registry);
    for (name, one) in wanted.iter().filter(|(name, one)| known.get(*name) != Some(*one)) {
        ensure(context, name, *one).await;
    }
    let gone: Vec<ObjectKey> = context
        .objects
        .list(&resource(), None)
        .filter(|own| managed(own) == ALWAYS && !wanted.contains_key(own.key.name()))
        .map(|own| own.key)
        .collect();
    for key in gone {
        remove(context, &key).await;
    }
    *known = wanted;
}

/// The APIServices for all served versions, by name.
fn wanted(registry: &Registry) -> BTreeMap<String, DesiredApiService> {
    let catalog = registry.catalog();
    let mut wanted = BTreeMap::new();
    for kind in catalog.kinds.iter().filter(|kind| *kind.resource.group != *GROUP) {
        let (group, version) = (&kind.resource.group, &kind.resource.version);
        let one = match order::builtin(group, version) {
            Some(priorities) => DesiredApiService { priorities, managed: ON_START },
            None => DesiredApiService { priorities: order::CUSTOM, managed: ALWAYS },
        };
        wanted.insert(format!("{version}.{group}"), one);
    }
    wanted
}

async fn ensure(context: &Context, name: &str, wanted: DesiredApiService) {
    let key = ObjectKey::new(resource(), "", name);
    let done = match context.objects.get_key(&key) {
        Some(_) => context.objects.update(&key, |object| restore(object, wanted)).await.map(|_| ()),
        None => context.objects.ensure(resource(), api_service(name, wanted)).await,
    };
    if let Err(error) = done {
        tracing::warn!(name, %error, "an APIService was not registered");
    }
}

async fn remove(context: &Context, key: &ObjectKey) {
    if let Err(error) = context.objects.update(key, |_| Edit::Remove).await {
        tracing::warn!(name = key.name(), %error, "an APIService was not removed");
    }
}

/// Handles a change of one APIService.
async fn settle(context: &Context, key: &ObjectKey, known: &BTreeMap<String, DesiredApiService>) {
    let Some(object) = context.objects.get_key(key) else {
        // The APIService of a definition must exist as long as the definition.
        if let Some(wanted) = known.get(key.name()).filter(|wanted| wanted.managed == ALWAYS) {
            ensure(context, key.name(), *wanted).await;
        }
        return;
    };
    if managed(&object) == ALWAYS {
        match known.get(key.name()) {
            Some(wanted) => ensure(context, key.name(), *wanted).await,
            None => remove(context, key).await,
        }
    } else if object.value.pointer("/spec/service").is_some()
        && let Err(error) = context.objects.update(key, unavailable).await
    {
        tracing::warn!(name = key.name(), %error, "the status of an APIService was not written");
    }
}

fn managed(object: &StoredObject) -> &str {
    let labels = object.value.pointer("/metadata/labels");
    labels.and_then(|labels| labels.get(MANAGED)).and_then(Value::as_str).unwrap_or_default()
}

fn api_service(name: &str, wanted: DesiredApiService) -> Value {
    let mut value = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "APIService",
        "metadata": {"name": name, "labels": {MANAGED: wanted.managed}},
        "spec": spec(name, wanted),
    });
    set_available(&mut value, "True", ("Local", "Local APIServices are always available"));
    value
}

fn spec(name: &str, wanted: DesiredApiService) -> Value {
    let (version, group) = name.split_once('.').unwrap_or((name, ""));
    let mut spec = json!({
        "version": version,
        "groupPriorityMinimum": wanted.priorities.group,
        "versionPriority": wanted.priorities.version,
    });
    if !group.is_empty() {
        spec["group"] = group.into();
    }
    spec
}

/// Restores an APIService that the server created. Others are left alone.
fn restore(object: &mut StoredObject, wanted: DesiredApiService) -> Edit {
    let spec = spec(object.key.name(), wanted);
    if managed(object).is_empty() || object.value.get("spec") == Some(&spec) {
        return Edit::Keep;
    }
    object.value["spec"] = spec;
    set_available(&mut object.value, "True", ("Local", "Local APIServices are always available"));
    Edit::Put
}

fn unavailable(object: &mut StoredObject) -> Edit {
    let message = "this API server relays no requests to other API servers";
    if set_available(&mut object.value, "False", ("NotProxied", message)) { Edit::Put } else { Edit::Keep }
}

/// Sets the condition `Available`. Returns whether it changed.
fn set_available(value: &mut Value, status: &str, (reason, message): (&str, &str)) -> bool {
    set_condition(value, "Available", (status, reason, message.to_owned()))
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::objects::text;

    #[test]
    fn every_served_version_has_an_api_service() {
        let wanted = wanted(&Registry::new(tombolo_catalog::kinds()));
        assert_eq!(wanted["v1."].priorities.group, 18_000);
        assert_eq!(wanted["v2.autoscaling"].priorities.version, 30);
        assert!(wanted.values().all(|one| one.managed == ON_START), "{wanted:?}");
        assert!(!wanted.contains_key("v1.apiregistration.k8s.io"));
        assert_eq!(spec("v1.", wanted["v1."]).get("group"), None);
    }

    #[test]
    fn conditions_settle() {
        let one = DesiredApiService { priorities: order::CUSTOM, managed: ALWAYS };
        let mut value = api_service("v1.a.example", one);
        let before = value.clone();
        assert!(!set_available(&mut value, "True", ("Local", "Local APIServices are always available")));
        assert_eq!(value, before);
        set_available(&mut value, "False", ("ServiceNotFound", "gone"));
        assert_eq!(value["status"]["conditions"].as_array().map(Vec::len), Some(1));
        assert_eq!(text(&value, "/status/conditions/0/status"), "False");
    }
}
