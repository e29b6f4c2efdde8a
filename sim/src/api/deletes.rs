//! Deletes objects: with grace, finalizers and preconditions.

use serde_json::{Value, json};

use super::convert;
use super::kinds::{KindKey, definitions, of_definition};
use super::object::{self, metadata, text};
use super::selectors::ObjectFilter;
use super::state::ModelState;
use super::status::{ApiStatus, success};
use super::writes::{WriteCall, store};
use super::{admission, kinds::KindInfo};

/// Deletes an object. Returns the code and body of the answer.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn delete(
    state: &mut ModelState,
    call: &WriteCall,
    options: &Value,
) -> Result<(u16, Value), ApiStatus> {
    let (kind, target) = (&call.kind, &call.target);
    let Some(live) = state.object(kind, &target.namespace, &target.name).cloned() else {
        return Err(ApiStatus::not_found(&kind.key, &target.name));
    };
    check_preconditions(kind, &live, options)?;
    admission::delete(&call.user, kind, &live)?;
    if kind.key == definitions() && !call.dry_run {
        delete_instances(state, call, &live);
    }
    let grace = grace_of(kind, &live, options);
    let mut next = (*live).clone();
    add_finalizer(&mut next, options);
    let waits = object::has_finalizers(&next) || grace > 0 || is_namespace_in_use(kind, &next);
    if !waits {
        return Ok((200, finish(state, call, &live)));
    }
    let mut changed = !object::is_being_deleted(&live);
    let before = live["metadata"]["deletionGracePeriodSeconds"].as_u64();
    if changed || before.is_some_and(|before| grace < before) {
        changed = true;
        mark(state, &mut next, grace);
    }
    if kind.key == KindKey::new("", "namespaces") {
        next["status"]["phase"] = "Terminating".into();
    }
    let stored = if changed || next != *live { store(state, call, next)? } else { next };
    Ok((200, convert::to_served(kind, stored)))
}

fn check_preconditions(kind: &KindInfo, live: &Value, options: &Value) -> Result<(), ApiStatus> {
    for (name, shown, done, own) in [
        ("uid", "UID", "deleted and then recreated", object::uid(live)),
        ("resourceVersion", "ResourceVersion", "modified", text(live, "/metadata/resourceVersion")),
    ] {
        let wanted = text(options, &format!("/preconditions/{name}"));
        if !wanted.is_empty() && wanted != own {
            let why = format!(
                "the {shown} in the precondition ({wanted}) does not match the {shown} in record ({own}). The object \
                 might have been {done}"
            );
            // Such refusals name the kind.
            let key = KindKey::new(&kind.key.group, &kind.kind);
            return Err(ApiStatus::conflict(&key, object::name(live), &why));
        }
    }
    Ok(())
}

/// The grace of a pod in seconds; other objects have none. A pod that is on no node, or has ended, needs none.
fn grace_of(kind: &KindInfo, live: &Value, options: &Value) -> u64 {
    if kind.key != KindKey::new("", "pods") {
        return 0;
    }
    let has_ended = matches!(text(live, "/status/phase"), "Failed" | "Succeeded");
    if text(live, "/spec/nodeName").is_empty() || has_ended {
        return 0;
    }
    let wanted = options["gracePeriodSeconds"].as_u64();
    let of_pod = live["spec"]["terminationGracePeriodSeconds"].as_u64();
    let grace = wanted.or(of_pod).unwrap_or(30);
    // A pod that is being deleted already is never given more time.
    let before = live["metadata"]["deletionGracePeriodSeconds"].as_u64();
    before.filter(|_| object::is_being_deleted(live)).map_or(grace, |before| match wanted {
        Some(wanted) => wanted.min(before),
        None => before,
    })
}

fn add_finalizer(next: &mut Value, options: &Value) {
    let added = match options["propagationPolicy"].as_str() {
        Some("Foreground") => "foregroundDeletion",
        Some("Orphan") => "orphan",
        _ => return,
    };
    let finalizers = metadata(next).entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut().filter(|list| !list.iter().any(|one| one == added)) {
        list.push(added.into());
    }
}

fn is_namespace_in_use(kind: &KindInfo, object: &Value) -> bool {
    kind.key == KindKey::new("", "namespaces")
        && object["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

/// Marks an object as being deleted.
fn mark(state: &ModelState, next: &mut Value, grace: u64) {
    let until = state.clock.timestamp(i64::try_from(grace).unwrap_or_default());
    let generation = next["metadata"]["generation"].as_u64().filter(|generation| *generation > 0);
    let metadata = metadata(next);
    metadata.insert("deletionTimestamp".to_owned(), until.into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
    if let Some(generation) = generation {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

/// Removes an object for good; returns the body of the answer.
fn finish(state: &mut ModelState, call: &WriteCall, live: &Value) -> Value {
    let (kind, name) = (&call.kind, object::name(live));
    if !call.dry_run {
        state.remove(kind, object::namespace(live), name, &call.user.name);
    }
    if kind.returns_deleted {
        return convert::to_served(kind, live.clone());
    }
    success(&kind.key, name, Some(object::uid(live)))
}

/// The objects of a definition go with it.
fn delete_instances(state: &mut ModelState, call: &WriteCall, definition: &Value) {
    for kind in of_definition(definition) {
        let all: Vec<Value> = state.storage.all(&kind.key).map(|(_, object)| (**object).clone()).collect();
        for object in all {
            state.remove(&kind, object::namespace(&object), object::name(&object), &call.user.name);
        }
    }
}

/// Deletes all objects of a collection that a filter selects. Returns those objects.
///
/// # Errors
/// As an API server refuses it.
pub(super) fn delete_all(
    state: &mut ModelState,
    call: &WriteCall,
    filter: &ObjectFilter,
    options: &Value,
) -> Result<Vec<Value>, ApiStatus> {
    let namespace = call.target.namespace.clone();
    let all = state.storage.all(&convert::stored_key(&call.kind)).map(|(_, object)| (**object).clone());
    let chosen: Vec<Value> = all
        .filter(|object| namespace.is_empty() || object::namespace(object) == namespace)
        .filter(|object| filter.matches(object))
        .collect();
    for object in &chosen {
        let mut one = call.clone();
        one.target.name = object::name(object).to_owned();
        one.target.namespace = object::namespace(object).to_owned();
        delete(state, &one, options)?;
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests;
