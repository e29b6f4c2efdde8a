//! The status of ResourceQuotas: the limits in the spec, and the use by the objects of the namespace.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde_json::{Value, json};
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::schema::Quantity;
use tombolo_apicore::store::{Revision, Store as _};
use tombolo_proto::object::ObjectKey;

use super::Context;
use super::feed::Feed;
use crate::objects::{Edit, StoredObject, member};
use crate::quota::{Amounts, Item, is_counted_only, is_ignored, quotas, tracks};

/// How often all objects are counted again if anything was written since. This corrects charges of admission after
/// deletions and after requests that were refused later.
const ROUND: Duration = Duration::from_secs(1);

/// Counts until the server stops.
pub(super) async fn run(context: &Context) {
    let mut changed = Feed::new(&context.objects, quotas());
    let mut round = tokio::time::interval(ROUND);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut rounds = Rounds::default();
    loop {
        tokio::select! {
            key = changed.next() => match key {
                Some(key) => limit(context, &key).await,
                None => return,
            },
            _ = round.tick() => rounds.count(context).await,
        }
    }
}

/// The results of the last round.
#[derive(Default)]
struct Rounds {
    /// The store's revision, if the round left nothing to do.
    done: Option<Revision>,
    /// The revisions of all quotas.
    quotas: HashMap<ObjectKey, Revision>,
}

impl Rounds {
    /// Counts the use of all quotas. If a quota was charged since the last round, its use is not lowered, because the
    /// charged object may not be stored yet. A quota that is charged all the time is eventually used up. Then it is no
    /// longer charged, and is counted.
    async fn count(&mut self, context: &Context) {
        let newest = context.objects.store().revision();
        if self.done == Some(newest) {
            return;
        }
        let mut counted = HashMap::new();
        let mut settled = true;
        for quota in context.objects.list(&quotas(), None) {
            let rests = self.quotas.get(&quota.key) == Some(&quota.revision);
            settled &= rests;
            let revision = write(context, &quota, !rests).await.unwrap_or(quota.revision);
            counted.insert(quota.key, revision);
        }
        self.quotas = counted;
        self.done = settled.then_some(newest);
    }
}

/// Copies changed limits from the spec to the status.
async fn limit(context: &Context, key: &ObjectKey) {
    let Some(quota) = context.objects.get_key(key) else { return };
    let limits = |list: &str| Amounts::read(quota.value.pointer(list));
    if quota.value.pointer("/status/hard").is_none() || limits("/status/hard") != limits("/spec/hard") {
        write(context, &quota, false).await;
    }
}

/// Writes a quota's status. Returns the new revision of the quota, if it is known.
async fn write(context: &Context, quota: &StoredObject, keep: bool) -> Option<Revision> {
    let limits = quota.value.pointer("/spec/hard").cloned().unwrap_or_else(|| json!({}));
    let mut used = measure(context, quota.key.namespace(), &quota.value, &Amounts::read(Some(&limits)));
    let status = |list: &str| Amounts::read(quota.value.pointer(list));
    if keep {
        let before = status("/status/used").only(|name| used.get(name).is_some());
        used.raise(&before);
    }
    if status("/status/hard") == Amounts::read(Some(&limits)) && status("/status/used") == used {
        return Some(quota.revision);
    }
    let write = context.objects.update(&quota.key, |current| {
        // The quota was charged during the count: the next round counts again.
        if current.revision != quota.revision {
            return Edit::Keep;
        }
        let status = member(&mut current.value, "status");
        status.insert("hard".into(), limits.clone());
        status.insert("used".into(), used.to_value());
        Edit::Put
    });
    match write.await {
        Ok(stored) => stored.map(|stored| stored.revision),
        Err(error) => {
            let key = &quota.key;
            tracing::warn!(%key, %error, "cannot write the use of a quota; it will be counted again");
            None
        }
    }
}

/// Counts what the objects of a namespace use of the limited resources of a quota.
fn measure(context: &Context, namespace: &str, quota: &Value, limits: &Amounts) -> Amounts {
    let catalog = context.registry.catalog();
    let mut seen = HashSet::new();
    let mut used = Amounts::default();
    let tracked = |kind: &KindInfo, name: &str| tracks(&kind.resource.group, &kind.resource.name, name);
    for kind in catalog.kinds.iter().filter(|kind| kind.namespaced) {
        let (group, resource) = (&*kind.resource.group, &*kind.resource.name);
        let own = limits.only(|name| tracked(kind, name));
        if own.is_empty() || is_ignored(group, resource) || !seen.insert(kind.storage.clone()) {
            continue;
        }
        for name in own.names() {
            used.set(name, used.get(name).unwrap_or(Quantity::ZERO));
        }
        let stored = context.objects.list_raw(&kind.storage, Some(namespace));
        if is_counted_only(group, resource) {
            let nothing = Value::Null;
            let one = Item { group, resource, object: &nothing };
            if one.in_scopes(quota) {
                stored.iter().for_each(|_| used.add(&one.usage().only(|name| own.get(name).is_some())));
            }
            continue;
        }
        for object in stored.iter().filter_map(|stored| serde_json::from_slice::<Value>(&stored.body()).ok())
        {
            let item = Item { group, resource, object: &object };
            if item.in_scopes(quota) {
                used.add(&item.usage().only(|name| own.get(name).is_some()));
            }
        }
    }
    used
}
