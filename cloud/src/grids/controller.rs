//! What makes the controller of one kind of grid look at a grid: the grid itself, its children, and the labels of nodes
//! (docs/reference/superedge.md#what-causes-a-reconcile).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::ready;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{self, applier};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tombolo_grid::labels::GRID_SELECTOR;
use tombolo_proto::Resource;

use super::api::GridKind;
use super::cache::Cache;
use super::children::{Children, resource, slim};
use super::reconcile::{Context, Memories, reconcile, try_again};
use super::units::Units;
use super::{GridSettings, MANAGER, Metrics};
use crate::kube::{RawObject, WatchError, WatchSpec, watch_events};

/// Grids of one kind that are looked at at a time.
const CONCURRENCY: u16 = 8;

/// What comes within this time after a first event makes one pass with it: nodes are often labelled many at a time.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Runs the controller of one kind for as long as it is polled.
pub(super) async fn run<K: GridKind>(
    client: &Client,
    settings: GridSettings,
    identity: &str,
    metrics: &Metrics,
) {
    let (grids, grids_writer) = reflector::store();
    let resource = resource(K::CHILD);
    let labelled = Cache::new();
    let units = Units::new();
    let memory = Arc::new(Mutex::new(HashMap::new()));
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(identity.to_owned()) };
    let context = Context {
        client: client.clone(),
        units: units.clone(),
        children: Children::new(client.clone(), K::CHILD, labelled.clone()),
        recorder: Recorder::new(client.clone(), reporter),
        unit_grace: settings.unit_grace,
        metrics: metrics.clone(),
        memory: Arc::clone(&memory),
    };
    let queue = stream::select_all([
        own::<K>(client, grids_writer, memory).boxed(),
        of_children::<K>(client, &resource, labelled, grids.clone()).boxed(),
        of_nodes::<K>(client, units, grids.clone()).boxed(),
    ]);
    let config = controller::Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE);
    applier(
        |object, context| Box::pin(reconcile::<K>(object, context)),
        |object, error, context| try_again::<K>(&object, error, &context),
        Arc::new(context),
        grids,
        queue,
        config,
    )
    .for_each(|done| {
        if let Err(controller::Error::QueueError(error)) = done {
            tracing::debug!(%error, kind = K::CHILD.grid_kind(), "a watch is begun anew");
        }
        ready(())
    })
    .await;
}

/// Every change of a grid. The status is the controller's own; its changes come back as an event, which finds nothing to do.
/// What is remembered of a grid goes with it.
fn own<K: GridKind>(
    client: &Client,
    writer: Writer<K>,
    memory: Memories,
) -> impl Stream<Item = Result<ObjectRef<K>, watcher::Error>> + use<K> {
    let resource = ApiResource::erase::<K>(&K::DynamicType::default());
    let all = read_alone::<K>(client, &resource, "");
    let grids = writer.as_reader();
    let seen = all.reflect(writer);
    let seen = seen.inspect_ok(move |event| match event {
        Event::Delete(grid) => drop(memory.lock().remove(&grid.uid().unwrap_or_default())),
        // Some may have gone while nobody looked.
        Event::InitDone => {
            let uids: BTreeSet<String> = grids.state().iter().filter_map(|grid| grid.uid()).collect();
            memory.lock().retain(|uid, _| uids.contains(uid));
        }
        Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
    });
    seen.touched_objects().map_ok(|grid| ObjectRef::from_obj(&grid))
}

/// The grids to which a child that changed belongs, or may belong.
fn of_children<K: GridKind>(
    client: &Client,
    resource: &ApiResource,
    cache: Cache,
    grids: Store<K>,
) -> impl Stream<Item = Result<ObjectRef<K>, watcher::Error>> + use<K> {
    let seen =
        read_alone(client, resource, GRID_SELECTOR).modify(slim).inspect_ok(move |event| cache.take(event));
    let affected = move |event: Event<DynamicObject>| match event {
        Event::Apply(child) | Event::Delete(child) => owners(&child),
        Event::Init | Event::InitApply(_) => Vec::new(),
        // Some may have gone while nobody looked.
        Event::InitDone => all(&grids),
    };
    seen.map_ok(move |event| stream::iter(affected(event).into_iter().map(Ok))).try_flatten()
}

/// The grid that owns a child, and the one that its label names.
fn owners<K: GridKind>(child: &DynamicObject) -> Vec<ObjectRef<K>> {
    let namespace = child.namespace().unwrap_or_default();
    let owner = child.owner_references().iter().filter(|owner| owner.kind == K::CHILD.grid_kind());
    let names: BTreeSet<&str> = owner
        .map(|owner| owner.name.as_str())
        .chain(child.labels().get(GRID_SELECTOR).map(String::as_str))
        .collect();
    names.into_iter().map(|name| ObjectRef::new(name).within(&namespace)).collect()
}

/// The grids whose units a change of a node's labels may have changed.
fn of_nodes<K: GridKind>(
    client: &Client,
    units: Units,
    grids: Store<K>,
) -> impl Stream<Item = Result<ObjectRef<K>, watcher::Error>> + use<K> {
    let seen = read_alone::<PartialObjectMeta<Node>>(client, &ApiResource::erase::<Node>(&()), "");
    let affected = move |event| {
        let keys = units.take(event);
        let concerned = grids.state_filter(|grid| keys.contains(&grid.grid_spec().key));
        concerned.into_iter().map(|grid| ObjectRef::from_obj(&*grid)).collect::<Vec<_>>()
    };
    seen.map_ok(move |event| stream::iter(affected(event).into_iter().map(Ok))).try_flatten()
}

/// A watch of objects of which each is read alone: one that cannot be read is passed over, and the others are told. `labels` is a
/// selector; empty for all.
fn read_alone<K: DeserializeOwned>(
    client: &Client,
    resource: &ApiResource,
    labels: &str,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + use<K> {
    let kind = resource.kind.clone();
    let resource = Resource::new(&resource.group, &resource.version, &resource.plural);
    let spec = WatchSpec { label_selector: labels.to_owned(), ..WatchSpec::all(resource) };
    let failed = move |error: &WatchError| {
        tracing::debug!(%error, kind, "a watch is begun anew");
    };
    watch_events(client.clone().into(), spec, failed).filter_map(|event| ready(typed(event).map(Ok)))
}

/// The same event of an object of this type.
fn typed<K: DeserializeOwned>(event: Event<RawObject>) -> Option<Event<K>> {
    let read = |raw: RawObject| {
        raw.into_typed().inspect_err(|error| tracing::warn!(%error, "an object that cannot be used")).ok()
    };
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(raw) => Event::InitApply(read(raw)?),
        Event::Apply(raw) => Event::Apply(read(raw)?),
        Event::Delete(raw) => Event::Delete(read(raw)?),
    })
}

fn all<K: GridKind>(grids: &Store<K>) -> Vec<ObjectRef<K>> {
    grids.state().iter().map(|grid| ObjectRef::from_obj(&**grid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_passed_over_and_the_rest_is_told() {
        let object = |name: &str, labels: &str, spec: &str| {
            let metadata =
                format!(r#"{{"name":"{name}","uid":"u","resourceVersion":"4","labels":{labels}}}"#);
            let text = format!(r#"{{"kind":"Node","metadata":{metadata},"spec":{spec}}}"#);
            serde_json::from_str::<RawObject>(&text).expect("an object")
        };
        let name = |event| match typed::<PartialObjectMeta<Node>>(event) {
            Some(Event::Apply(node) | Event::InitApply(node) | Event::Delete(node)) => Some(node.name_any()),
            Some(Event::Init | Event::InitDone) | None => None,
        };
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert_eq!(name(Event::InitApply(object("a", "{}", &deep))), None);
        assert_eq!(name(Event::Apply(object("b", r#"{"k":7}"#, "{}"))), None);
        for event in [Event::InitApply, Event::Apply, Event::Delete] {
            assert_eq!(name(event(object("c", r#"{"k":"v"}"#, "{}"))).as_deref(), Some("c"));
        }
        assert!(matches!(typed::<PartialObjectMeta<Node>>(Event::InitDone), Some(Event::InitDone)));
    }
}
