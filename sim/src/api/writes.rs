//! Creates and updates objects.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::convert;
use super::kinds::{KindInfo, KindKey, definitions};
use super::managers::{FieldManagers, ManagerId};
use super::object::{self, member, metadata, take_over, text, tidy};
use super::parse::PathTarget;
use super::rights::ApiUser;
use super::shapes::FieldShapes;
use super::state::ModelState;
use super::status::{ApiStatus, FieldProblem};
use super::{admission, defaults, validation};

/// Largest object that etcd stores, in bytes.
const STORED_LEN_MAX: usize = 1_572_864;

/// A write, before its body.
#[derive(Debug, Clone)]
pub(super) struct WriteCall {
    pub(super) user: ApiUser,
    pub(super) kind: KindInfo,
    pub(super) target: PathTarget,
    /// Field manager.
    pub(super) manager: String,
    pub(super) dry_run: bool,
}

impl WriteCall {
    pub(super) fn shapes(&self) -> FieldShapes {
        FieldShapes { built_in: self.kind.built_in }
    }

    pub(super) fn manager_id(&self, operation: &str) -> ManagerId {
        ManagerId {
            operation: operation.to_owned(),
            name: self.manager.clone(),
            api_version: self.kind.api_version(),
            subresource: self.target.subresource.clone(),
        }
    }

    fn name(&self) -> &str {
        &self.target.name
    }
}

/// Who the fields of an update belong to.
#[derive(Debug)]
pub(super) enum FieldOwners {
    /// What the update changes belongs to its manager.
    Updated,
    /// An apply has settled it.
    Applied(FieldManagers),
}

/// Checks that a body is an object of the kind and place that its path addresses, and completes these.
pub(super) fn check_type(call: &WriteCall, body: &mut Value) -> Result<(), ApiStatus> {
    if !body.is_object() {
        return Err(ApiStatus::bad_request("the object provided is unrecognized (must be of type object)"));
    }
    let (kind, version) = (&call.kind.kind, call.kind.api_version());
    let (given_kind, given_version) = (text(body, "/kind"), text(body, "/apiVersion"));
    let fits = |given: &str, wanted: &str| given.is_empty() || given == wanted;
    if !fits(given_kind, kind) || !fits(given_version, &version) {
        let message = format!(
            "the API version in the data ({given_version}, Kind={given_kind}) does not match the expected API version \
             ({version}, Kind={kind})"
        );
        return Err(ApiStatus::bad_request(&message));
    }
    if !call.kind.built_in && (given_kind.is_empty() || given_version.is_empty()) {
        return Err(ApiStatus::bad_request("Object 'Kind' is missing in the body"));
    }
    body["kind"] = kind.clone().into();
    body["apiVersion"] = version.into();
    let namespace = object::namespace(body).to_owned();
    if !namespace.is_empty() && namespace != call.target.namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiStatus::bad_request(message));
    }
    if call.kind.namespaced {
        metadata(body).insert("namespace".to_owned(), call.target.namespace.clone().into());
    }
    Ok(())
}

/// Creates an object. Returns it as it is stored.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn create(
    state: &mut ModelState,
    call: &WriteCall,
    body: Value,
    owners: FieldOwners,
) -> Result<Value, ApiStatus> {
    if object::version(&body) != 0 {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(ApiStatus::new(500, "", message));
    }
    let kind = &call.kind;
    let mut new = convert::to_stored(kind, body);
    begin(state, call, &mut new);
    defaults::set(&kind.key, &mut new);
    tidy(&mut new);
    let managers = match owners {
        FieldOwners::Applied(managers) => managers,
        FieldOwners::Updated => {
            let mut managers = FieldManagers::default();
            let now = state.clock.timestamp(0);
            // The status of a new object has no owner, even if the caller wrote one (rest.ResetFieldsStrategy).
            let mut owned = new.clone();
            if let Some(members) = owned.as_object_mut().filter(|_| kind.has_status) {
                members.remove("status");
            }
            managers.update(call.shapes(), (&json!({}), &owned), &call.manager_id("Update"), &now);
            managers
        }
    };
    managers.write(&mut new);
    admission::create(state, &call.user, kind, &mut new)?;
    if kind.key == KindKey::new("", "services") {
        defaults::allocate_address(&mut new, &addresses(state));
    }
    validation::new_object(kind, &new)?;
    let name = object::name(&new).to_owned();
    if state.object(kind, object::namespace(&new), &name).is_some() {
        return Err(ApiStatus::already_exists(&kind.key, &name));
    }
    let stored = store(state, call, new)?;
    if kind.key == definitions() && !call.dry_run {
        establish(state, kind, &name);
    }
    Ok(stored)
}

/// Gives a new object its identity, and takes what only the server writes.
fn begin(state: &mut ModelState, call: &WriteCall, new: &mut Value) {
    let (uid, now) = (state.dice.uid(), state.clock.timestamp(0));
    let prefix = text(new, "/metadata/generateName").to_owned();
    if object::name(new).is_empty() && !prefix.is_empty() {
        let name = state.dice.name(&prefix);
        metadata(new).insert("name".to_owned(), name.into());
    }
    let metadata = metadata(new);
    for name in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "selfLink"]
    {
        metadata.remove(name);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), now.into());
    if call.kind.has_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
    let keeps_status = matches!(call.kind.key.resource.as_str(), "nodes" | "persistentvolumes");
    if let Some(members) = new.as_object_mut().filter(|_| call.kind.has_status && !keeps_status) {
        members.remove("status");
    }
    if call.kind.key.resource == "certificatesigningrequests" {
        let spec = member(new, "spec");
        spec.insert("username".to_owned(), call.user.name.clone().into());
        spec.insert("groups".to_owned(), call.user.groups.iter().cloned().collect());
        new["status"] = json!({});
    }
}

fn addresses(state: &ModelState) -> BTreeSet<String> {
    let services = state.storage.all(&KindKey::new("", "services"));
    services.map(|(_, service)| text(service, "/spec/clusterIP").to_owned()).collect()
}

/// Replaces an object.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn replace(
    state: &mut ModelState,
    call: &WriteCall,
    mut body: Value,
) -> Result<(bool, Value), ApiStatus> {
    check_type(call, &mut body)?;
    let given = object::name(&body).to_owned();
    if given.is_empty() {
        let metadata = metadata(&mut body);
        metadata.insert("name".to_owned(), call.name().into());
    } else if given != call.name() {
        let message =
            format!("the name of the object ({given}) does not match the name on the URL ({})", call.name());
        return Err(ApiStatus::bad_request(&message));
    }
    let Some(live) = state.object(&call.kind, &call.target.namespace, call.name()).cloned() else {
        if call.kind.created_by_update && call.target.subresource.is_empty() {
            metadata(&mut body).remove("resourceVersion");
            return create(state, call, body, FieldOwners::Updated).map(|created| (true, created));
        }
        return Err(ApiStatus::not_found(&call.kind.key, call.name()));
    };
    if call.kind.needs_version && object::version(&body) == 0 {
        let detail = "must be specified for an update";
        let problem = FieldProblem::invalid("metadata.resourceVersion", &0.into(), detail);
        return Err(ApiStatus::invalid_update(&call.kind.key, call.name(), &problem));
    }
    let new = convert::to_stored(&call.kind, body);
    change(state, call, (&live, new), FieldOwners::Updated).map(|changed| (false, changed))
}

/// Writes a new state of an object that exists.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn change(
    state: &mut ModelState,
    call: &WriteCall,
    (live, mut new): (&Value, Value),
    owners: FieldOwners,
) -> Result<Value, ApiStatus> {
    let (kind, name) = (&call.kind, object::name(live).to_owned());
    let named = object::uid(&new);
    if !named.is_empty() && named != object::uid(live) {
        let why = format!(
            "Precondition failed: UID in precondition: {named}, UID in object meta: {}",
            object::uid(live)
        );
        return Err(ApiStatus::conflict(&kind.key, &name, &why));
    }
    if object::version(&new) != 0 && object::version(&new) != object::version(live) {
        return Err(ApiStatus::modified(&kind.key, &name));
    }
    // Without the member the managers stay; an empty list begins them anew.
    let given = new["metadata"].get("managedFields").cloned();
    keep_system_fields(live, &mut new);
    confine(call, live, &mut new);
    if kind.key == KindKey::new("", "services") {
        keep_address(live, &mut new);
    }
    defaults::set(&kind.key, &mut new);
    tidy(&mut new);
    let managers = match owners {
        FieldOwners::Applied(managers) => managers,
        FieldOwners::Updated => {
            let mut managers = if given.is_some_and(|given| !given.is_null()) {
                FieldManagers::of(&new)
            } else {
                FieldManagers::of(live)
            };
            let now = state.clock.timestamp(0);
            managers.update(call.shapes(), (live, &new), &call.manager_id("Update"), &now);
            managers
        }
    };
    managers.write(&mut new);
    if kind.has_generation && is_other_spec(live, &new) {
        let generation = live["metadata"]["generation"].as_u64().unwrap_or_default();
        metadata(&mut new).insert("generation".to_owned(), (generation + 1).into());
    }
    admission::update(&call.user, kind, (live, &new), &call.target.subresource)?;
    validation::change(kind, live, &new)?;
    if new == *live {
        return Ok(new);
    }
    if is_finished(kind, &new) && !call.dry_run {
        // The write itself is not stored: watchers see the object as it was before.
        state.remove(kind, object::namespace(live), &name, &call.user.name);
        return Ok(new);
    }
    let stored = store(state, call, new)?;
    if kind.key == definitions() && !call.dry_run && call.target.subresource.is_empty() {
        establish(state, kind, &name);
    }
    Ok(stored)
}

/// What only the server changes.
fn keep_system_fields(live: &Value, new: &mut Value) {
    for name in ["apiVersion", "kind"] {
        take_over(live, new, name);
    }
    metadata(new);
    for name in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "selfLink",
        "resourceVersion",
    ] {
        take_over(&live["metadata"], &mut new["metadata"], name);
    }
}

/// Leaves only the part of an update that its path may change.
fn confine(call: &WriteCall, live: &Value, new: &mut Value) {
    let kind = &call.kind;
    match call.target.subresource.as_str() {
        "" if kind.has_status => take_over(live, new, "status"),
        "" => {}
        "finalize" => {
            let wanted = new["spec"]["finalizers"].clone();
            *new = live.clone();
            member(new, "spec").insert("finalizers".to_owned(), wanted);
        }
        _ if !kind.built_in => {
            let (status, managed) =
                (new.get("status").cloned(), new["metadata"].get("managedFields").cloned());
            *new = live.clone();
            take_over(&json!({ "status": status }), new, "status");
            take_over(&json!({ "managedFields": managed }), &mut new["metadata"], "managedFields");
        }
        _ => {
            take_over(live, new, "spec");
            match kind.key.resource.as_str() {
                // Old kubelets would damage them.
                "pods" => take_over(&live["metadata"], &mut new["metadata"], "ownerReferences"),
                "deployments" | "statefulsets" | "daemonsets" | "replicasets" => {
                    take_over(&live["metadata"], &mut new["metadata"], "labels");
                }
                _ => {}
            }
        }
    }
}

/// An update that leaves out the address of a Service keeps it.
fn keep_address(live: &Value, new: &mut Value) {
    let spec = member(new, "spec");
    for name in ["clusterIP", "clusterIPs"] {
        let is_missing = spec.get(name).is_none_or(|value| value.is_null() || value == "");
        if let Some(value) = live["spec"].get(name).filter(|_| is_missing) {
            spec.insert(name.to_owned(), value.clone());
        }
    }
}

/// Whether anything but metadata and status differs.
fn is_other_spec(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut members = object.as_object().cloned().unwrap_or_default();
        for name in ["metadata", "status", "apiVersion", "kind"] {
            members.remove(name);
        }
        members
    };
    rest(old) != rest(new)
}

/// Whether nothing keeps an object that is being deleted.
fn is_finished(kind: &KindInfo, object: &Value) -> bool {
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or_default();
    let of_namespace = kind.key == KindKey::new("", "namespaces")
        && object["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    object::is_being_deleted(object) && !object::has_finalizers(object) && grace == 0 && !of_namespace
}

pub(super) fn store(state: &mut ModelState, call: &WriteCall, object: Value) -> Result<Value, ApiStatus> {
    if object.to_string().len() > STORED_LEN_MAX {
        return Err(ApiStatus::new(500, "", "etcdserver: request is too large"));
    }
    if call.dry_run {
        return Ok(object);
    }
    Ok((*state.put(&call.kind, object, &call.user.name)).clone())
}

/// A definition that is stored is served soon after: the server itself writes this into its status.
fn establish(state: &mut ModelState, kind: &KindInfo, name: &str) {
    let Some(stored) = state.object(kind, "", name).cloned() else { return };
    let now = state.clock.timestamp(0);
    let condition = |name: &str, reason: &str, message: &str| {
        json!({
            "type": name, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message,
        })
    };
    let mut definition = (*stored).clone();
    let names = definition["spec"]["names"].clone();
    let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let versions: Vec<Value> = versions
        .iter()
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    let status = member(&mut definition, "status");
    status.insert("acceptedNames".to_owned(), names);
    status.insert("storedVersions".to_owned(), versions.into());
    status.entry("conditions").or_insert_with(|| {
        json!([
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ])
    });
    if definition != *stored {
        state.put(kind, definition, "system:apiserver");
    }
}

#[cfg(test)]
mod tests;
