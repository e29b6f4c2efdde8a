//! One reconcile pass over one grid (docs/application-grid.md#what-belongs-to-whom).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use kube::api::{GetParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use thiserror::Error;
use tombolo_grid::name::ChildKind;
use tombolo_grid::reconcile::child::Child;
use tombolo_grid::reconcile::drift::is_applied;
use tombolo_grid::reconcile::plan::{Found, Plan, Reason, Removal, Wanted, plan};
use tombolo_grid::reconcile::status::{Outcome, UnitError, status};
use tombolo_grid::reconcile::{Grid, GridSpec};
use tombolo_grid::template::unused_templates;
use tombolo_proto::Resource;
use tombolo_proto::object::ContentHash;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::api::GridKind;
use super::cache::as_value;
use super::children::{Children, sharers, unit_error};
use super::live::Live;
use super::units::Units;
use super::{MANAGER, Metrics};
use crate::edgecontroller::trim::hash_of;
use crate::kube::RawObject;

/// Interval at which a grid in its desired state is reconciled again.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// Backoff for a grid of which something failed (docs/reference/superedge.md#defects-of-the-controllers).
const RETRIES: BackoffConfig =
    BackoffConfig { first: Duration::from_secs(1), max: Duration::from_secs(300), factor: 2.0 };

/// Maximum number of concurrent requests for one grid.
const REQUESTS_AT_A_TIME: usize = 8;

/// Maximum number of events that one pass writes; the condition counts the rest.
const EVENTS_MAX: usize = 10;

/// Delay after which a child that changed while it was being removed is examined again.
const CHANGED_AGAIN: Duration = Duration::from_secs(1);

/// Longest note of an event, in bytes (events.k8s.io convention: 1 kB).
const NOTE_LEN_MAX: usize = 1000;

/// State shared by all passes of one kind of grid.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) units: Units,
    pub(super) children: Children,
    pub(super) recorder: Recorder,
    /// How long the workload of a unit without nodes is kept.
    pub(super) unit_grace: Duration,
    pub(super) metrics: Metrics,
    pub(super) memory: Memories,
}

/// Remembered state of grids, by UID.
pub(super) type Memories = Arc<Mutex<HashMap<String, Memory>>>;

/// Remembered state of a grid between two passes.
#[derive(Default)]
pub(super) struct Memory {
    backoff: Option<Backoff>,
    /// Children that are not wanted, and since when.
    unwanted: HashMap<String, Instant>,
    /// Children that matched the grid, by UID: hashes of the grid and of the child at that time.
    settled: HashMap<String, (ContentHash, ContentHash)>,
}

/// Something failed; the grid is reconciled again.
#[derive(Debug, Error)]
pub(super) enum PassError {
    /// The API call failed.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Some units or other objects of the grid are not as desired; status and events name them.
    #[error("{0} units and children are not in the desired state; see the status of the grid")]
    Units(usize),
}

/// Brings one grid closer to its desired state.
pub(super) async fn reconcile<K: GridKind>(
    object: Arc<K>,
    context: Arc<Context>,
) -> Result<Action, PassError> {
    let started = Instant::now();
    let outcome = match whole(&*object, &context).await {
        Ok(Some(grid)) => pass(&grid, &context).await,
        // The grid is deleted, or too large to be read.
        Ok(None) => Ok(Action::await_change()),
        Err(error) => Err(error.into()),
    };
    context.metrics.passed(K::CHILD, started.elapsed(), outcome.is_ok());
    let uid = object.uid().unwrap_or_default();
    if outcome.is_ok() {
        let mut memory = context.memory.lock();
        if let Some(remembered) = memory.get_mut(&uid) {
            remembered.backoff = None;
            if remembered.unwanted.is_empty() && remembered.settled.is_empty() {
                memory.remove(&uid);
            }
        }
    }
    outcome
}

/// The grid as stored in the API now. `None` if it was deleted or replaced by another one, or cannot be read.
async fn whole<K: GridKind>(object: &K, context: &Context) -> Result<Option<K>, kube::Error> {
    let path = K::url_path(&(), object.namespace().as_deref());
    let request = kube::core::Request::new(path).get(&object.name_any(), &GetParams::default());
    let text = match context.client.request_text(request.map_err(kube::Error::BuildRequest)?).await {
        Ok(text) => text,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(error) => return Err(error),
    };
    let resource = Resource::new(&K::group(&()), &K::version(&()), &K::plural(&()));
    let grid = RawObject::of_kind(&resource, text.as_bytes()).map_err(kube::Error::SerdeError)?;
    // The watch reports an oversized grid as well.
    let grid = grid.into_typed::<K>().ok();
    Ok(grid.filter(|grid| grid.uid() == object.uid()))
}

/// When to reconcile a grid again after a failure.
pub(super) fn try_again<K: GridKind>(object: &K, error: &PassError, context: &Context) -> Action {
    let (kind, name) = (K::CHILD.grid_kind(), object.name_any());
    tracing::warn!(kind, namespace = object.namespace(), name, %error, "reconcile failed; retrying");
    let mut memory = context.memory.lock();
    let memory = memory.entry(object.uid().unwrap_or_default()).or_default();
    let backoff = memory.backoff.get_or_insert_with(|| Backoff::new(RETRIES));
    Action::requeue(backoff.next_delay(&mut rand::rng()))
}

async fn pass<K: GridKind>(object: &K, context: &Context) -> Result<Action, PassError> {
    let grid = object.grid();
    if grid.deleting {
        context.memory.lock().remove(&grid.uid);
        return Ok(Action::await_change());
    }
    let mut outcome = Outcome::default();
    if object.removes_unused()
        && let Err(error) = remove_unused(object, &grid, context).await
    {
        let error = because("cannot remove unused templates", &error);
        outcome.besides.insert("templatePool".to_owned(), error);
    }
    let nodes = context.units.of(&grid.spec.key).await;
    let units: Vec<&str> = nodes.units.iter().map(String::as_str).collect();
    outcome.units = units.len();
    let Settled { mut plan, found, unread } = match settled_plan(object, &grid, &units, context).await {
        Ok(settled) => settled,
        Err(refused) => {
            report(object, &refused, context).await;
            outcome.refused = Some(refused);
            write_status(object, &grid, &outcome, context).await?;
            return Ok(Action::requeue(LOOK_AGAIN));
        }
    };
    for (unit, problem) in &plan.problems {
        let error = UnitError { reason: problem.reason().to_owned(), message: problem.to_string() };
        outcome.errors.insert(unit.clone(), error);
    }
    outcome.errors.extend(unread);
    outcome.besides.extend(spare_unknown(&mut plan, nodes.unread.as_deref()));
    apply_all(&grid, plan.wanted, &found, &mut outcome, context).await;
    let due = remove_all(&grid, &plan.removals, &mut outcome, context).await;
    for (unit, child) in &outcome.children {
        let sharers = sharers(child);
        if !sharers.is_empty() {
            outcome.shared.insert(unit.clone(), sharers);
        }
    }
    // Before the events: the status is written whether or not those succeed.
    write_status(object, &grid, &outcome, context).await?;
    tell_all(object, &grid, &outcome, &plan.strangers, context).await;
    match outcome.errors.len() + outcome.besides.len() {
        0 => Ok(Action::requeue(due.unwrap_or(LOOK_AGAIN))),
        failed => Err(PassError::Units(failed)),
    }
}

/// A plan, and the children that it is based on.
#[derive(Default)]
struct Settled {
    plan: Plan,
    found: BTreeMap<String, Arc<Live>>,
    /// Units whose children could not be read.
    unread: BTreeMap<String, UnitError>,
}

/// The plan, based on what really exists. A child that seems to be missing may exist without the label, and an orphan
/// is adopted only by a grid that still exists. A unit that cannot be read does not block the others.
async fn settled_plan<K: GridKind>(
    object: &K,
    grid: &Grid,
    units: &[&str],
    context: &Context,
) -> Result<Settled, UnitError> {
    let mut found = context.children.of_grid(&grid.namespace, &grid.name, &grid.uid).await;
    let planned = |found: &BTreeMap<String, Arc<Live>>| {
        let children: Vec<Child<'_>> = found.values().map(|live| Child(&live.part)).collect();
        plan(grid, units, &children)
    };
    let first = planned(&found).map_err(|error| refusal(grid.kind, &grid.spec.key, &error.to_string()))?;
    let known = found.len();
    let mut unread = read_missing(grid, &first, &mut found, context).await;
    let mut plan = if found.len() > known { planned(&found).unwrap_or_default() } else { first };
    let is_orphan = |wanted: &&Wanted| wanted.found == Found::Orphan;
    if plan.wanted.iter().any(|wanted| is_orphan(&wanted)) {
        let api: Api<K> = Api::namespaced(context.client.clone(), &grid.namespace);
        match api.get_opt(&grid.name).await {
            Ok(Some(live)) if live.uid() == object.uid() && live.meta().deletion_timestamp.is_none() => {}
            Ok(_) => return Ok(Settled::default()),
            Err(error) => {
                let error = unit_error(&error);
                let orphans = plan.wanted.iter().filter(is_orphan);
                unread.extend(orphans.map(|wanted| (wanted.unit.clone(), error.clone())));
            }
        }
    }
    plan.wanted.retain(|wanted| !unread.contains_key(&wanted.unit));
    Ok(Settled { plan, found, unread })
}

/// Looks up children that seem to be missing by name, and adds those that exist to `found`. Returns the units for which
/// this failed.
async fn read_missing(
    grid: &Grid,
    first: &Plan,
    found: &mut BTreeMap<String, Arc<Live>>,
    context: &Context,
) -> BTreeMap<String, UnitError> {
    let missing = first.wanted.iter().filter(|wanted| wanted.found == Found::Nothing);
    let mut missing: BTreeMap<String, String> =
        missing.map(|wanted| (wanted.unit.clone(), wanted.name.clone())).collect();
    let reads = missing.clone().into_iter().map(|(unit, name)| async move {
        let read = context.children.read(&grid.namespace, &name).await;
        (unit, name, read)
    });
    let mut reads = stream::iter(reads).buffer_unordered(REQUESTS_AT_A_TIME);
    let mut unread = BTreeMap::new();
    while let Some((unit, name, read)) = reads.next().await {
        missing.remove(&unit);
        match read {
            Ok(None) => {}
            Ok(Some(child)) => drop(found.insert(name, Arc::new(Live::of(&child)))),
            Err(error) => {
                let reason = unit_error(&error);
                unread.insert(unit, reason.clone());
                if !matches!(error, kube::Error::Api(_)) {
                    // No answer: each of possibly thousands of reads would wait for its own timeout.
                    unread.extend(missing.into_keys().map(|unit| (unit, reason.clone())));
                    break;
                }
            }
        }
    }
    unread
}

/// Why nothing is done for a grid without a valid key, in the wording that users know
/// (docs/reference/superedge.md#a-grid-without-a-key).
fn refusal(kind: ChildKind, key: &str, problem: &str) -> UnitError {
    if !key.is_empty() {
        return UnitError { reason: "InvalidKey".to_owned(), message: problem.to_owned() };
    }
    let name = match kind {
        ChildKind::Deployment => "deployment-grid",
        ChildKind::StatefulSet => "statefulset-grid",
        ChildKind::Service => "service grid",
    };
    UnitError { reason: "Empty".to_owned(), message: format!("This {name} has an empty grid key") }
}

/// Applies the children that are not as desired. A unit that fails does not block the others.
async fn apply_all(
    grid: &Grid,
    wanted: Vec<Wanted>,
    found: &BTreeMap<String, Arc<Live>>,
    outcome: &mut Outcome,
    context: &Context,
) {
    let mut settled = std::mem::take(&mut context.memory.lock().entry(grid.uid.clone()).or_default().settled);
    let print = fingerprint(grid);
    let mut kept = HashMap::new();
    let mut open = Vec::new();
    for wanted in wanted {
        match found.get(&wanted.name) {
            Some(live) if settled.remove(live.uid()) == Some((print, live.hash)) => {
                kept.insert(live.uid().to_owned(), (print, live.hash));
                outcome.children.insert(wanted.unit, live.part.clone());
            }
            _ => open.push(wanted),
        }
    }
    let writes = open.into_iter().map(|wanted| async move {
        let applied = applied(grid, &wanted, found.get(&wanted.name), context).await;
        // Manifests are as large as the template: let other tasks run between two of them.
        tokio::task::yield_now().await;
        (wanted, applied)
    });
    let mut writes = stream::iter(writes).buffer_unordered(REQUESTS_AT_A_TIME);
    while let Some((wanted, applied)) = writes.next().await {
        match applied {
            Ok(live) => {
                kept.insert(live.uid().to_owned(), (print, live.hash));
                outcome.children.insert(wanted.unit, live.part);
            }
            Err(error) => {
                if let Some(live) = found.get(&wanted.name) {
                    outcome.children.insert(wanted.unit.clone(), live.part.clone());
                }
                outcome.errors.insert(wanted.unit, error);
            }
        }
    }
    context.memory.lock().entry(grid.uid.clone()).or_default().settled = kept;
}

/// Ensures that a child is as desired. If its manifest was applied before, the child is read whole, and applied only if
/// it differs.
async fn applied(
    grid: &Grid,
    wanted: &Wanted,
    seen: Option<&Arc<Live>>,
    context: &Context,
) -> Result<Live, UnitError> {
    let manifest = wanted.manifest(grid);
    if let Some(seen) = seen.filter(|seen| seen.is_of(&manifest))
        && let Some(child) =
            context.children.read(&grid.namespace, &wanted.name).await.map_err(|error| unit_error(&error))?
    {
        let live = Live::of(&child);
        if live.uid() == seen.uid() && is_applied(&as_value(&child), &manifest) {
            return Ok(live);
        }
    }
    context.metrics.writes.inc();
    context.children.apply(&grid.namespace, &wanted.name, &manifest).await
}

/// Hash of everything that the manifests of a grid's children are made of.
fn fingerprint(grid: &Grid) -> ContentHash {
    let GridSpec { key, template, pool, templates, default_name } = &grid.spec;
    hash_of(&(key, template, pool, templates, default_name, &grid.labels, &grid.annotations))
}

/// Removes unwanted children; returns the time until the next removal, if some wait for the end of their grace period.
/// A failed removal does not block the others and is recorded in the outcome.
async fn remove_all(
    grid: &Grid,
    removals: &[Removal],
    outcome: &mut Outcome,
    context: &Context,
) -> Option<Duration> {
    let waits = grace_left(grid, removals, context);
    let mut due = waits.iter().copied().filter(|left| !left.is_zero()).min();
    let due_now: Vec<Removal> = removals
        .iter()
        .zip(&waits)
        .filter(|(_, left)| left.is_zero())
        .map(|(removal, _)| removal.clone())
        .collect();
    let removals = due_now.into_iter().map(|removal| async move {
        context.metrics.writes.inc();
        let removed = context.children.remove(&grid.namespace, &removal).await;
        (removal, removed)
    });
    let mut removals = stream::iter(removals).buffer_unordered(REQUESTS_AT_A_TIME);
    while let Some((removal, removed)) = removals.next().await {
        match removed {
            Ok(()) => {}
            // It has changed, or was replaced: examine it first.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                due = Some(due.map_or(CHANGED_AGAIN, |due| due.min(CHANGED_AGAIN)));
            }
            Err(error) => {
                let is_refusal = matches!(error, kube::Error::Api(_));
                let what = format!("cannot remove {} {}", grid.kind.kind(), removal.name);
                outcome.besides.insert(removal.name, because(&what, &error));
                if !is_refusal {
                    // No answer: the rest is removed in the next pass.
                    break;
                }
            }
        }
    }
    due
}

/// Keeps children that may belong to a unit of a node whose labels could not be read.
fn spare_unknown(plan: &mut Plan, unread: Option<&str>) -> Option<(String, UnitError)> {
    let node = unread?;
    let before = plan.removals.len();
    plan.removals.retain(|removal| removal.reason != Reason::Unwanted);
    let spared = before - plan.removals.len();
    let message = format!(
        "{spared} children of units without nodes are kept: Node {node} has too many labels to be read and may belong \
         to any unit; remove labels from it"
    );
    (spared > 0).then(|| ("nodes".to_owned(), UnitError { reason: "NodeUnread".to_owned(), message }))
}

/// An error with what could not be done in front of its message.
fn because(what: &str, error: &kube::Error) -> UnitError {
    let UnitError { reason, message } = unit_error(error);
    UnitError { reason, message: format!("{what}: {message}") }
}

/// How long each child is still kept. Edge nodes are often registered again: a unit may lack nodes only for a moment.
fn grace_left(grid: &Grid, removals: &[Removal], context: &Context) -> Vec<Duration> {
    let mut memory = context.memory.lock();
    let unwanted = &mut memory.entry(grid.uid.clone()).or_default().unwanted;
    let uids: HashSet<&str> = removals.iter().map(|one| one.uid.as_str()).collect();
    unwanted.retain(|uid, _| uids.contains(uid.as_str()));
    let left = |one: &Removal| match one.reason {
        Reason::Released => Duration::ZERO,
        Reason::Unwanted => {
            let since = *unwanted.entry(one.uid.clone()).or_insert_with(Instant::now);
            context.unit_grace.saturating_sub(since.elapsed())
        }
    };
    removals.iter().map(left).collect()
}

/// Removes pool members that nothing refers to. This is the only write to a grid's spec, and the grid's author
/// requested it.
async fn remove_unused<K: GridKind>(object: &K, grid: &Grid, context: &Context) -> Result<(), kube::Error> {
    let spec = &grid.spec;
    let unused = unused_templates(&spec.templates, &spec.default_name, &spec.pool);
    if unused.is_empty() {
        return Ok(());
    }
    let pool: serde_json::Map<String, Value> =
        unused.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    let patch = json!({
        "metadata": {"uid": grid.uid, "resourceVersion": object.resource_version()},
        "spec": {"templatePool": pool},
    });
    let api: Api<K> = Api::namespaced(context.client.clone(), &grid.namespace);
    context.metrics.writes.inc();
    api.patch(&grid.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn write_status<K: GridKind>(
    object: &K,
    grid: &Grid,
    outcome: &Outcome,
    context: &Context,
) -> Result<(), PassError> {
    let before = object.stored_status();
    let now = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let after = status(grid, &before, outcome, &now);
    if after == before {
        return Ok(());
    }
    // A merge patch, not an apply: removing the last key of an applied map leaves `null`, which no schema accepts.
    let patch = json!({"metadata": {"uid": grid.uid}, "status": merge(&before, &after)});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api: Api<K> = Api::namespaced(context.client.clone(), &grid.namespace);
    context.metrics.writes.inc();
    match api.patch_status(&grid.name, &params, &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        // The grid is deleted, or another one has its name: that grid's own pass writes its status.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The merge patch (RFC 7396) that turns `before` into `after`.
fn merge(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return after.clone() };
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let kept = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), merge(old.get(key).unwrap_or(&Value::Null), value)));
    gone.chain(kept).collect::<serde_json::Map<_, _>>().into()
}

/// Reports in events what is wrong with a grid, up to [`EVENTS_MAX`] of each sort.
async fn tell_all<K: GridKind>(
    object: &K,
    grid: &Grid,
    outcome: &Outcome,
    strangers: &[String],
    context: &Context,
) {
    for error in outcome.besides.values().chain(outcome.errors.values()).take(EVENTS_MAX) {
        report(object, error, context).await;
    }
    for name in strangers.iter().take(EVENTS_MAX) {
        let message = format!(
            "{} {name} has this grid's label but no owner, and belongs to no unit: it is left unchanged",
            grid.kind.kind()
        );
        report(object, &UnitError { reason: "UnownedChild".to_owned(), message }, context).await;
    }
}

/// Reports a problem in an event. A failure to write the event does not cause another pass.
async fn report<K: GridKind>(object: &K, error: &UnitError, context: &Context) {
    let mut note = error.message.clone();
    let mut end = note.len().min(NOTE_LEN_MAX);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    note.truncate(end);
    let event = Event {
        type_: EventType::Warning,
        reason: error.reason.clone(),
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = context.recorder.publish(&event, &object.object_ref(&())).await {
        let error = unit_error(&error);
        tracing::debug!(reason = error.reason, message = error.message, "cannot write an event");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_patch_removes_missing_members() {
        let (before, after) = (
            json!({"states": {"a": {"n": 1, "error": {}}, "b": {}}, "ready": "1/2", "conditions": [1]}),
            json!({"states": {"a": {"n": 2}}, "ready": "1/2", "conditions": []}),
        );
        let patch = merge(&before, &after);
        assert_eq!(patch, json!({"states": {"a": {"n": 2, "error": null}, "b": null}, "conditions": []}));
        let mut patched = before.clone();
        json_patch::merge(&mut patched, &patch);
        assert_eq!(patched, after);
        assert_eq!(merge(&Value::Null, &after), after);
    }
}
