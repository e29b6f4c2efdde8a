//! Server-side apply: field ownership, and merging an applied configuration into the stored object.
//!
//! The rules are those of Kubernetes' structured merge. An applier owns exactly the fields of its last configuration;
//! other writers own what they changed last. An applied field that another manager owns with another value is a
//! conflict unless forced. A field that an applier no longer mentions is removed unless another manager owns it.

mod conflict;
mod entries;
mod path;
pub(crate) mod scale;
mod set;
#[cfg(test)]
mod tests;
mod walk;

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

pub use self::conflict::{ApplyError, Conflict, conflict_causes, conflict_message};
use self::entries::{Entry, ManagerIdentity, Managers, Operation};
use self::path::{Element, describe, group_version_kind};
use self::set::Set;
use crate::kinds::KindInfo;
use crate::kinds::rules::Fields;
use crate::schema::types::SchemaPosition;
use crate::value::object_at;

/// The writer of a request: manager, endpoint and time.
#[derive(Debug, Clone)]
pub struct Writer<'a> {
    /// Field manager: the query parameter, or its default from the user agent.
    pub manager: &'a str,
    /// Version of the request, for example `apps/v1`.
    pub api_version: String,
    /// Subresource; empty for the object itself.
    pub subresource: &'a str,
    /// Time of the write.
    pub now: Timestamp,
}

/// Annotation in which `kubectl apply` without server-side apply keeps its last configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Manager of fields that existed before ownership was tracked.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Records ownership for a create (`live` is absent), an update or a patch that is not an apply.
///
/// Call it with the defaulted object, before the server itself changes the object, so that the writer does not own
/// fields that the server set. An object without tracked fields stays untracked until it is applied.
pub fn update(kind: &KindInfo, live: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let own = !writer.subresource.is_empty();
    let live_managers = || live.map(|live| Managers::decode(managed_fields(live))).unwrap_or_default();
    let sent = remove_managed_fields(new);
    let mut managers = match &sent {
        // A client may reset tracking with an empty list or with one empty entry.
        Value::Array(list) if !own && (list.is_empty() || list.as_slice() == [Value::Object(Map::new())]) => {
            Managers::default()
        }
        sent if !own => {
            let decoded = Managers::decode(sent);
            if decoded.is_empty() { live_managers() } else { decoded }
        }
        _ => live_managers(),
    };
    drop(sent);
    managers.keep_group(&kind.api_version());
    if managers.is_empty() && live.is_some() {
        return;
    }
    let mut merge = Merge { position: kind.position(), owned: owned(kind, writer.subresource), managers };
    let before = live.map_or_else(|| Cow::Owned(empty(kind)), Cow::Borrowed);
    merge.update(&before, new, &identity(writer, Operation::Update), writer);
    merge.managers.cap(writer);
    settle(live, new, &merge.managers);
}

/// Merges an applied configuration into the stored object (`live`; absent when apply creates it).
///
/// The result contains the new ownership and must still be decoded, defaulted and validated like any new object.
///
/// # Errors
/// [`ApplyError::Conflict`] when fields of other managers would change and `force` is not set; other errors when the
/// configuration does not fit the type.
pub fn apply(
    kind: &KindInfo,
    live: Option<&Value>,
    applied: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    check_request(kind, applied)?;
    let position = kind.position();
    walk::validate(position, applied).map_err(|problem| {
        ApplyError::Invalid(format!("failed to create typed patch object ({}): {problem}", describe(applied)))
    })?;
    let mut managers = live.map(|live| Managers::decode(managed_fields(live))).unwrap_or_default();
    managers.keep_group(&kind.api_version());
    let bare = live.map(without_managed_fields);
    let owned = owned(kind, writer.subresource);
    if let Some(bare) = bare.as_ref().filter(|_| managers.is_empty()) {
        let before = Writer { manager: BEFORE_FIRST_APPLY, ..writer.clone() };
        let mut merge = Merge { position, owned, managers };
        merge.update(&empty(kind), bare, &identity(&before, Operation::Update), &before);
        managers = merge.managers;
    }
    let mut merge = Merge { position, owned, managers };
    let mut out = merge.apply_as_kubectl(bare.as_ref(), applied, writer, force)?;
    refresh_last_applied(&mut out, applied, writer);
    settle(live, &mut out, &merge.managers);
    Ok(out)
}

/// The object without any fields, as the Go type writes it: a create is compared with it.
fn empty(kind: &KindInfo) -> Value {
    let mut empty = Value::Object(Map::new());
    kind.canonical(&mut empty);
    empty
}

fn check_request(kind: &KindInfo, applied: &Value) -> Result<(), ApplyError> {
    let text = |key: &str| applied[key].as_str().unwrap_or_default();
    if text("apiVersion") != kind.api_version() || text("kind") != &*kind.kind {
        let found = group_version_kind(text("apiVersion"), text("kind"));
        return Err(ApplyError::BadRequest(format!("invalid object type: {found}")));
    }
    if !managed_fields(applied).is_null() {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    Ok(())
}

fn identity(writer: &Writer<'_>, operation: Operation) -> ManagerIdentity {
    ManagerIdentity {
        manager: if writer.manager.is_empty() { "unknown" } else { writer.manager }.to_owned(),
        operation,
        subresource: writer.subresource.to_owned(),
        // An applier has the same identity in every version, other writers do not.
        api_version: match operation {
            Operation::Update => writer.api_version.clone(),
            Operation::Apply => String::new(),
        },
    }
}

fn managed_fields(object: &Value) -> &Value {
    &object["metadata"]["managedFields"]
}

fn remove_managed_fields(object: &mut Value) -> Value {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.and_then(|metadata| metadata.remove("managedFields")).unwrap_or_default()
}

fn without_managed_fields(object: &Value) -> Value {
    let mut copy = object.clone();
    remove_managed_fields(&mut copy);
    copy
}

/// Whether two objects are equal except for their managed fields.
fn same_but_owners(one: &Value, other: &Value) -> bool {
    type Members = Map<String, Value>;
    let but = |one: &Members, other: &Members, key: &str| {
        let keys = |members: &Members| members.keys().filter(|own| *own != key).count();
        keys(one) == keys(other) && one.iter().all(|(own, value)| own == key || other.get(own) == Some(value))
    };
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return one == other };
    let same = match (one.get("metadata"), other.get("metadata")) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => but(one, other, "managedFields"),
        (one, other) => one == other,
    };
    same && but(one, other, "metadata")
}

/// Writes the ownership into the object. When it would differ from what is stored only in times, the stored times stay,
/// so that writing the same object again changes nothing.
fn settle(live: Option<&Value>, new: &mut Value, managers: &Managers) {
    let unchanged = live.filter(|live| {
        same_but_owners(live, new) && Managers::decode(managed_fields(live)).same_but_times(managers)
    });
    let value = unchanged.map_or_else(|| managers.encode(), |live| managed_fields(live).clone());
    if let (Value::Object(map), Value::Array(list)) = (new, value)
        && !list.is_empty()
    {
        object_at(map, "metadata").insert("managedFields".into(), Value::Array(list));
    }
}

/// The fields that a manager can own through an endpoint: those that the endpoint writes.
fn owned<'a>(kind: &'a KindInfo, subresource: &str) -> &'a Fields {
    static EVERYTHING: Fields = Fields::All;
    kind.rules().endpoint(subresource).map_or(&EVERYTHING, |endpoint| &endpoint.owned)
}

/// Fields that identify an object and have no owner.
const NOBODYS: [&str; 2] = ["apiVersion", "kind"];
const NOBODYS_METADATA: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

fn stripped(set: Set) -> Set {
    let mut nobodys = Set::default();
    for name in NOBODYS {
        nobodys.insert(&[Element::field(name)]);
    }
    let metadata = Element::field("metadata");
    nobodys.insert(std::slice::from_ref(&metadata));
    for name in NOBODYS_METADATA {
        nobodys.insert(&[metadata.clone(), Element::field(name)]);
    }
    set.difference(&nobodys)
}

/// The ownership of an object during one write.
struct Merge<'a> {
    position: SchemaPosition<'a>,
    /// The fields that can be owned through the endpoint.
    owned: &'a Fields,
    managers: Managers,
}

impl Merge<'_> {
    /// A write that is not an apply: the writer owns what it changed.
    fn update(&mut self, live: &Value, new: &Value, identity: &ManagerIdentity, writer: &Writer<'_>) {
        let compared = walk::compare(self.position, Some(live), Some(new));
        let changed = compared.modified.union(compared.added).within(self.owned);
        let removed = compared.removed.within(self.owned);
        // Removed and newly owned fields are also taken out of the writer's earlier entry.
        for entry in self.managers.iter_mut() {
            entry.set = std::mem::take(&mut entry.set).difference(&changed).difference(&removed);
        }
        self.managers.drop_empty();
        let own = stripped(changed);
        if own.is_empty() {
            return;
        }
        let set = match self.managers.remove(identity) {
            Some(previous) => previous.set.union(own),
            None => own,
        };
        self.managers.put(
            identity.clone(),
            Entry { set, time: Some(writer.now), api_version: writer.api_version.clone() },
        );
    }

    /// Lets `kubectl apply --server-side` take over the fields that `kubectl apply` without it has set.
    fn apply_as_kubectl(
        &mut self,
        live: Option<&Value>,
        applied: &Value,
        writer: &Writer<'_>,
        force: bool,
    ) -> Result<Value, ApplyError> {
        let before = self.managers.clone();
        let result = self.apply(live, applied, writer, force);
        let Err(Clash::Fields(fields)) = result else { return result.map_err(Clash::into_error) };
        let allowed =
            live.filter(|_| writer.manager == "kubectl").and_then(|live| self.last_applied(live, writer));
        let Some(allowed) = allowed else { return Err(ApplyError::Conflict(conflict::list(&fields))) };
        let rest: BTreeMap<ManagerIdentity, Set> = fields
            .into_iter()
            .map(|(identity, set)| (identity, set.difference(&allowed)))
            .filter(|(_, set)| !set.is_empty())
            .collect();
        if !rest.is_empty() {
            return Err(ApplyError::Conflict(conflict::list(&rest)));
        }
        self.managers = before;
        self.apply(live, applied, writer, true).map_err(Clash::into_error)
    }

    /// The fields of the last-applied annotation that still have their values from it.
    fn last_applied(&self, live: &Value, writer: &Writer<'_>) -> Option<Set> {
        let text = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
        let last: Value = serde_json::from_str(text).ok()?;
        if last["apiVersion"].as_str() != Some(&writer.api_version) {
            return None;
        }
        let compared = walk::compare(self.position, Some(&last), Some(live));
        let set = walk::to_set(self.position, &last);
        Some(set.difference(&compared.modified).difference(&compared.added).difference(&compared.removed))
    }

    fn apply(
        &mut self,
        live: Option<&Value>,
        applied: &Value,
        writer: &Writer<'_>,
        force: bool,
    ) -> Result<Value, Clash> {
        let identity = identity(writer, Operation::Apply);
        let merged = walk::merge(self.position, live, applied).map_err(Clash::Invalid)?;
        let last = self.managers.get(&identity).map(|entry| entry.set.clone());
        let time = self.managers.get(&identity).and_then(|entry| entry.time);
        let set = walk::to_set(self.position, applied).within(self.owned);
        let entry = Entry { set, time, api_version: writer.api_version.clone() };
        self.managers.put(identity.clone(), entry);
        let pruned = self.prune(merged, last.as_ref());
        let clashes = self.take_over(live, &pruned, &identity);
        if !force && !clashes.is_empty() {
            return Err(Clash::Fields(clashes));
        }
        for (other, set) in clashes {
            self.managers.take(&other, &set);
        }
        self.managers.drop_empty();
        let changed = live != Some(&pruned);
        if let Some(mut entry) = self.managers.remove(&identity) {
            entry.set = stripped(entry.set);
            // A manager that only becomes a co-owner of unchanged fields has no time, as in kube-apiserver.
            if changed {
                entry.time = Some(writer.now);
            }
            if !entry.set.is_empty() {
                self.managers.put(identity, entry);
            }
        }
        Ok(pruned)
    }

    /// The fields that the write changes and others own. Removed fields are taken from their owners at once.
    fn take_over(
        &mut self,
        live: Option<&Value>,
        new: &Value,
        own: &ManagerIdentity,
    ) -> BTreeMap<ManagerIdentity, Set> {
        let compared = walk::compare(self.position, live, Some(new));
        let changed = compared.modified.union(compared.added).within(self.owned);
        let removed = compared.removed.within(self.owned);
        let mut clashes = BTreeMap::new();
        let others: Vec<ManagerIdentity> =
            self.managers.identities().filter(|other| *other != own).cloned().collect();
        for other in others {
            let Some(entry) = self.managers.get(&other) else { continue };
            let clash = entry.set.intersection(&changed);
            if !clash.is_empty() {
                clashes.insert(other.clone(), clash);
            }
            self.managers.take(&other, &removed);
        }
        clashes
    }

    /// Removes fields that this applier owned and no longer mentions, unless another manager owns them.
    fn prune(&self, merged: Value, last: Option<&Set>) -> Value {
        let Some(last) = last.filter(|last| !last.is_empty()) else { return merged };
        let last = last.with_named_fields(self.position);
        let pruned = walk::remove(self.position, &merged, &last);
        let owned = self.managers.union().with_named_fields(self.position);
        let everything = walk::to_set(self.position, &merged).with_named_fields(self.position);
        let kept = walk::to_set(self.position, &pruned).with_named_fields(self.position);
        let pruned = walk::remove(self.position, &merged, &everything.clone().difference(&kept.union(owned)));
        let kept = walk::to_set(self.position, &pruned).with_named_fields(self.position);
        walk::remove(self.position, &merged, &everything.difference(&kept).intersection(&last))
    }
}

/// Why an apply failed.
enum Clash {
    Fields(BTreeMap<ManagerIdentity, Set>),
    Invalid(String),
}

impl Clash {
    fn into_error(self) -> ApplyError {
        match self {
            Self::Fields(fields) => ApplyError::Conflict(conflict::list(&fields)),
            Self::Invalid(message) => ApplyError::Invalid(format!("failed to merge config: {message}")),
        }
    }
}

/// Updates the annotation of client-side apply, so that a user can return to it.
fn refresh_last_applied(object: &mut Value, applied: &Value, writer: &Writer<'_>) {
    let present =
        object["metadata"]["annotations"][LAST_APPLIED].as_str().is_some_and(|text| !text.is_empty());
    if writer.manager != "kubectl" || !present {
        return;
    }
    let mut config = without_managed_fields(applied);
    if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    }
    object["metadata"]["annotations"][LAST_APPLIED] = format!("{config}\n").into();
}
