//! The events that trigger a reconcile of a grid, for one kind: changes of the grid itself, of its children, and of
//! node labels (docs/reference/superedge.md#what-causes-a-reconcile).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::ready;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{self, applier};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tombolo_grid::labels::GRID_SELECTOR;
use tombolo_proto::Resource;

use super::api::GridKind;
use super::cache::Cache;
use super::children::{Children, resource, slim};
use super::reconcile::{Context, Memories, reconcile, try_again};
use super::units::{SeenNode, Units};
use super::{GridSettings, MANAGER, Metrics};
use crate::kube::{RawObject, WatchError, WatchSpec, watch_events};

/// Maximum number of grids of one kind that are reconciled concurrently.
const CONCURRENCY: u16 = 8;

/// Events within this time after a first one are handled in the same pass: nodes are often labelled many at a time.
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
            tracing::debug!(%error, kind = K::CHILD.grid_kind(), "watch failed; restarting it");
        }
        ready(())
    })
    .await;
}

/// Every change of a grid. The controller writes the status itself; that change comes back as an event, which finds
/// nothing to do. A deleted grid is also removed from the memory.
fn own<K: GridKind>(
    client: &Client,
    writer: Writer<K>,
    memory: Memories,
) -> impl Stream<Item = Result<ObjectRef<K>, watcher::Error>> + use<K> {
    let resource = ApiResource::erase::<K>(&K::DynamicType::default());
    // A grid that cannot be read is skipped, and its children stay as they are.
    let all =
        read_alone(client, &resource, "", |raw| slim_grid(whole::<K>(raw)), |raw| slim_grid(gone::<K>(raw)));
    let grids = writer.as_reader();
    let seen = all.reflect(writer);
    let seen = seen.inspect_ok(move |event| match event {
        Event::Delete(grid) => drop(memory.lock().remove(&grid.uid().unwrap_or_default())),
        // Some may have been deleted while no watch ran.
        Event::InitDone => {
            let uids: BTreeSet<String> = grids.state().iter().filter_map(|grid| grid.uid()).collect();
            memory.lock().retain(|uid, _| uids.contains(uid));
        }
        Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
    });
    seen.touched_objects().map_ok(|grid| ObjectRef::from_obj(&grid))
}

/// The grids to which a changed child belongs, or may belong.
fn of_children<K: GridKind>(
    client: &Client,
    resource: &ApiResource,
    cache: Cache,
    grids: Store<K>,
) -> impl Stream<Item = Result<ObjectRef<K>, watcher::Error>> + use<K> {
    let seen = read_alone(client, resource, GRID_SELECTOR, in_part, in_part)
        .modify(slim)
        .inspect_ok(move |event| cache.take(event));
    let affected = move |event: Event<DynamicObject>| match event {
        Event::Apply(child) | Event::Delete(child) => owners(&child),
        Event::Init | Event::InitApply(_) => Vec::new(),
        // Some may have been deleted while no watch ran.
        Event::InitDone => all(&grids),
    };
    seen.map_ok(move |event| stream::iter(affected(event).into_iter().map(Ok))).try_flatten()
}

/// The grid that owns a child, and the grid that its label names.
fn owners<K: GridKind>(child: &DynamicObject) -> Vec<ObjectRef<K>> {
    let namespace = child.namespace().unwrap_or_default();
    let owner = child.owner_references().iter().filter(|owner| owner.kind == K::CHILD.grid_kind());
    let names: BTreeSet<&str> = owner
        .map(|owner| owner.name.as_str())
        .chain(child.labels().get(GRID_SELECTOR).map(String::as_str))
        .collect();
    names.into_iter().map(|name| ObjectRef::new(name).within(&namespace)).collect()
}

/// The grids whose units a change of node labels may affect.
fn of_nodes<K: GridKind>(
    client: &Client,
    units: Units,
    grids: Store<K>,
) -> impl Stream<Item = Result<ObjectRef<K>, watcher::Error>> + use<K> {
    let seen = |node: RawObject| Some(SeenNode::of(&node));
    let seen = read_alone(client, &ApiResource::erase::<Node>(&()), "", seen, seen);
    let affected = move |event| {
        let keys = units.take(event);
        let concerned = grids.state_filter(|grid| keys.contains(&grid.grid_spec().key));
        concerned.into_iter().map(|grid| ObjectRef::from_obj(&*grid)).collect::<Vec<_>>()
    };
    seen.map_ok(move |event| stream::iter(affected(event).into_iter().map(Ok))).try_flatten()
}

/// A watch that reads each object separately: an unreadable object is skipped, and the others are reported. `labels` is
/// a selector; empty selects all. `read` converts an existing object, `gone` a deleted one.
fn read_alone<T>(
    client: &Client,
    resource: &ApiResource,
    labels: &str,
    read: fn(RawObject) -> Option<T>,
    gone: fn(RawObject) -> Option<T>,
) -> impl Stream<Item = Result<Event<T>, watcher::Error>> + use<T> {
    let kind = resource.kind.clone();
    let resource = Resource::new(&resource.group, &resource.version, &resource.plural);
    let spec = WatchSpec { label_selector: labels.to_owned(), ..WatchSpec::all(resource) };
    let failed = move |error: &WatchError| {
        tracing::debug!(%error, kind, "watch failed; restarting it");
    };
    let events = watch_events(client.clone().into(), spec, failed);
    events.filter_map(move |event| ready(typed(event, read, gone).map(Ok)))
}

/// The same event, with the object converted.
fn typed<T>(
    event: Event<RawObject>,
    read: fn(RawObject) -> Option<T>,
    gone: fn(RawObject) -> Option<T>,
) -> Option<Event<T>> {
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(raw) => Event::InitApply(read(raw)?),
        Event::Apply(raw) => Event::Apply(read(raw)?),
        Event::Delete(raw) => Event::Delete(gone(raw)?),
    })
}

/// An object that was read whole.
fn whole<T: DeserializeOwned>(raw: RawObject) -> Option<T> {
    let object = raw.into_typed();
    object.inspect_err(|error| tracing::warn!(%error, "ignoring an invalid object")).ok()
}

fn slim_grid<K: GridKind>(grid: Option<K>) -> Option<K> {
    let mut grid = grid?;
    grid.slim();
    Some(grid)
}

/// The readable parts of an object: its identity, and its labels and owners unless these are the parts that are too
/// large. An object that cannot be read still exists.
fn in_part<T: DeserializeOwned>(raw: RawObject) -> Option<T> {
    if let Err(error) = raw.whole() {
        tracing::warn!(%error, "cannot read an object completely; using the readable part");
    }
    let object = serde_json::from_value(raw.into_value());
    object.inspect_err(|error| tracing::warn!(%error, "ignoring an invalid object")).ok()
}

/// A deleted object, of which only the identity matters.
fn gone<T: DeserializeOwned>(raw: RawObject) -> Option<T> {
    let unread = raw.is_unread();
    let mut object = raw.into_value();
    if unread {
        object["spec"] = Value::Object(Default::default());
    }
    serde_json::from_value(object).ok()
}

fn all<K: GridKind>(grids: &Store<K>) -> Vec<ObjectRef<K>> {
    grids.state().iter().map(|grid| ObjectRef::from_obj(&**grid)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::api::DeploymentGrid;
    use super::*;

    const DEEP: usize = 200;

    fn raw(text: &str) -> RawObject {
        serde_json::from_str(text).expect("an object")
    }

    fn object(name: &str, labels: &str, status: &str) -> RawObject {
        let metadata = format!(
            r#"{{"name":"{name}","namespace":"shop","uid":"u","resourceVersion":"4","labels":{labels},"ownerReferences":[{{"uid":"g"}}]}}"#
        );
        raw(&format!(r#"{{"metadata":{metadata},"spec":{{"gridUniqKey":"zone"}},"status":{status}}}"#))
    }

    fn deep() -> String {
        "[".repeat(DEEP) + &"]".repeat(DEEP)
    }

    /// More than is read of any kind.
    fn large() -> String {
        format!("[{}0]", r#""","#.repeat(300_000))
    }

    fn name<K: ResourceExt>(event: Option<Event<K>>) -> Option<String> {
        match event {
            Some(Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) => {
                Some(object.name_any())
            }
            Some(Event::Init | Event::InitDone) | None => None,
        }
    }

    #[test]
    fn unreadable_object_is_skipped_and_the_rest_is_processed() {
        let typed = |event| typed(event, whole::<DeploymentGrid>, gone::<DeploymentGrid>);
        for status in [deep(), large()] {
            for event in [Event::InitApply, Event::Apply] {
                assert_eq!(name(typed(event(object("a", "{}", &status)))), None);
            }
            assert_eq!(
                name(typed(Event::Delete(object("a", "{}", &status)))).as_deref(),
                Some("a"),
                "it is gone"
            );
        }
        let metadata = r#"{"name":"s","namespace":"shop","uid":"u","resourceVersion":"4"}"#;
        let spec = format!(r#"{{"gridUniqKey":"zone","template":{}}}"#, deep());
        let of_spec = raw(&format!(r#"{{"metadata":{metadata},"spec":{spec}}}"#));
        assert!(of_spec.is_unread());
        assert_eq!(name(typed(Event::Delete(of_spec))).as_deref(), Some("s"), "no part of it is needed");
        assert_eq!(name(typed(Event::Apply(object("b", r#"{"k":7}"#, "{}")))), None);
        for event in [Event::InitApply, Event::Apply, Event::Delete] {
            assert_eq!(name(typed(event(object("c", r#"{"k":"v"}"#, "{}")))).as_deref(), Some("c"));
        }
        assert!(matches!(typed(Event::InitDone), Some(Event::InitDone)));
    }

    #[test]
    fn owner_of_an_unreadable_child_is_known() {
        for status in [deep(), large()] {
            let raw = object("web-a", &format!(r#"{{"{GRID_SELECTOR}":"web"}}"#), &status);
            assert!(raw.is_unread());
            let child: DynamicObject = in_part(raw.clone()).expect("a child");
            assert_eq!(owners::<DeploymentGrid>(&child), [ObjectRef::new("web").within("shop")]);
            assert_eq!(child.owner_references()[0].uid, "g");
            assert_eq!((child.uid().as_deref(), child.resource_version().as_deref()), (Some("u"), Some("4")));
            let units = Units::new();
            for event in [Event::Init, Event::InitApply(SeenNode::of(&raw)), Event::InitDone] {
                units.take(event);
            }
            let found = units.take(Event::Delete(SeenNode::of(&raw)));
            assert_eq!(found, BTreeSet::from([GRID_SELECTOR.to_owned()]), "its labels were known");
        }
    }
}
