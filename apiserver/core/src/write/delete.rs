//! DELETE of one object and of collections: grace period, finalizers, propagation, preconditions.

use std::sync::Arc;

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::admission::Operation;
use crate::backend::{WriteReply, WriteRequest};
use crate::kinds::KindInfo;
use crate::list::{self, ListRequest};
use crate::query::params::ListParams;
use crate::raw;
use crate::selector::RequestSelection;
use crate::status::{self, ApiError, Details};
use crate::store::{Expect, StoreError, Stored};

use super::options::{DeleteOptions, Propagation};
use super::{ATTEMPTS_MAX, Context, LocalWrites, Written, meta};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");

/// Finalizer that keeps a definition until its objects are deleted; the controller that deletes them removes it.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Jobs are the one kind whose dependents most clients orphan without knowing it (batch/job/strategy.go).
const JOB_ORPHANS: &str = "child pods are preserved by default when jobs are deleted; set \
    propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// The metadata fields that mark an object for deletion.
const MARKS: [&str; 4] = ["finalizers", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"];

/// Everything that marking an object for deletion may change.
#[derive(PartialEq)]
struct Marks {
    metadata: [Value; MARKS.len()],
    /// Of a namespace.
    phase: Value,
}

impl Marks {
    fn of(object: &Value) -> Self {
        let metadata = MARKS.map(|field| meta::get(object, field).cloned().unwrap_or_default());
        Self { metadata, phase: object.pointer("/status/phase").cloned().unwrap_or_default() }
    }

    /// Restores the marks, except the finalizers.
    fn put_back(self, object: &mut Value) {
        for (field, value) in MARKS.into_iter().zip(self.metadata).skip(1) {
            meta::set(object, field, value);
        }
    }
}

/// The outcome of a deletion.
enum DeleteOutcome {
    /// The object is deleted; its last state.
    Gone(Value),
    /// The object is marked and will be deleted when its grace period is over or its finalizers are removed.
    Marked(Value),
}

impl LocalWrites {
    pub(super) async fn delete(&self, context: &mut Context<'_>) -> Result<WriteReply, ApiError> {
        if !context.subresource().is_empty() {
            return Err(ApiError::method_not_allowed());
        }
        let options = DeleteOptions::of(context.request)?;
        let outcome = self.delete_one(context, &options, None).await?;
        Ok(reply(context, outcome, &options))
    }

    pub(super) async fn delete_collection(&self, request: &WriteRequest) -> Result<WriteReply, ApiError> {
        let options = DeleteOptions::of(request)?;
        let kind = &request.kind;
        let namespace = kind.namespaced.then_some(request.attributes.namespace.as_str());
        let selection = RequestSelection::parse(
            kind,
            namespace,
            &request.options.label_selector,
            &request.options.field_selector,
        )?;
        let params = ListParams::parse(&request.query, false)?;
        let page = list::page(self.store.as_ref(), &ListRequest { kind, selection, params })?;
        let mut items = Vec::new();
        let mut warnings = Vec::new();
        for item in &page.items {
            let mut context = Context::new(request);
            item.key.name().clone_into(&mut context.name);
            match self.delete_one(&mut context, &options, Some(item.uid.as_str())).await {
                // The old state: the list contains the selected objects.
                Ok(_) => items.push(list_item(kind, item)?),
                // Another request deleted it first.
                Err(error) if error.code == StatusCode::NOT_FOUND => {}
                Err(error) => return Err(error),
            }
            warnings.append(&mut context.warnings);
        }
        let mut list = json!({
            "kind": &*kind.list_kind,
            "apiVersion": kind.api_version(),
            "metadata": page.meta,
            "items": items,
        });
        if kind.custom && page.meta.continue_token.is_none() {
            // Lists of custom resources always have this field.
            list["metadata"]["continue"] = "".into();
        }
        Ok(WriteReply { status: StatusCode::OK, body: raw::object_text(&list), is_object: false, warnings })
    }

    /// Deletes one incarnation of an object: the `chosen` one, or otherwise the first one that is found. An object that
    /// replaced it in the meantime is neither requested nor checked, so it stays.
    async fn delete_one(
        &self,
        context: &mut Context<'_>,
        options: &DeleteOptions,
        chosen: Option<&str>,
    ) -> Result<DeleteOutcome, ApiError> {
        if is(context.kind, ("batch", "jobs")) && options.propagation.is_none() {
            context.warnings.push(JOB_ORPHANS.to_owned());
        }
        context.dry_run = options.dry_run;
        let mut judged = chosen.map(str::to_owned);
        let mut marked: Option<Arc<Stored>> = None;
        for _ in 0..ATTEMPTS_MAX {
            let found = self.read(context)?;
            if let Some(marked) = &marked
                && found.as_ref().is_none_or(|(live, _)| live.uid != marked.uid)
            {
                // A concurrent write to the marked pod completed this deletion.
                return super::served(context.kind, &marked.body()).map(DeleteOutcome::Gone);
            }
            let (stored, live) = found.ok_or_else(|| context.not_found())?;
            check_preconditions(context, &live, options)?;
            let uid = meta::text(&live, "uid");
            if judged.get_or_insert_with(|| uid.to_owned()) != uid {
                return Err(if chosen.is_some() {
                    context.not_found()
                } else {
                    replaced(context, &judged, uid)
                });
            }
            let warnings = context.warnings.len();
            // At each attempt: the object that the hooks check may have changed since the last one.
            self.mutate(context, Operation::Delete, None, Some(&live)).await?;
            self.validate(context, Operation::Delete, None, Some(&live)).await?;
            match self.attempt_delete(context, options, (&stored, live), &mut marked).await {
                Err(StoreError::Conflict { .. }) => context.warnings.truncate(warnings),
                Err(StoreError::NotFound { .. }) if marked.is_some() => {}
                outcome => return outcome.map_err(|error| context.refused(error)),
            }
        }
        Err(context.modified())
    }

    async fn attempt_delete(
        &self,
        context: &Context<'_>,
        options: &DeleteOptions,
        (stored, mut object): (&Arc<Stored>, Value),
        marked: &mut Option<Arc<Stored>>,
    ) -> Result<DeleteOutcome, StoreError> {
        let before = Marks::of(&object);
        let grace = mark(context, options, &mut object);
        let dry_run = options.dry_run;
        if grace == 0 && !is_held(context.kind, &object) {
            if !dry_run {
                let mut revision = stored.revision;
                // Watchers see pods marked before they are deleted, even without a grace period.
                if is(context.kind, ("", "pods")) {
                    let pod = self.put(context, &mut object, Expect::Revision(revision)).await?;
                    revision = pod.revision;
                    *marked = Some(pod);
                }
                let last = self.remove(context, stored, revision).await?;
                meta::set(&mut object, "resourceVersion", last.revision.to_string().into());
            }
            if !is(context.kind, ("", "pods")) {
                // Only objects with graceful deletion are marked before they are deleted.
                before.put_back(&mut object);
            }
            return Ok(DeleteOutcome::Gone(object));
        }
        if !dry_run && Marks::of(&object) != before {
            self.put(context, &mut object, Expect::Revision(stored.revision)).await?;
        }
        Ok(DeleteOutcome::Marked(object))
    }
}

/// A stored object as in lists: without its type if the kind has a Go type.
fn list_item(kind: &KindInfo, stored: &Stored) -> Result<Value, ApiError> {
    let mut item = super::served(kind, &stored.body())?;
    if let Some(members) = item.as_object_mut().filter(|_| !kind.custom) {
        members.remove("kind");
        members.remove("apiVersion");
    }
    Ok(item)
}

/// Whether an update completes a deletion: the object was marked, its grace period is over, nothing holds it.
pub(super) fn is_finished(context: &Context<'_>, object: &Value) -> bool {
    let grace = meta::get(object, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    meta::is_deleting(object) && grace == 0 && !is_held(context.kind, object)
}

/// Whether finalizers hold an object; namespaces have additional ones.
fn is_held(kind: &KindInfo, object: &Value) -> bool {
    let namespace = is(kind, ("", "namespaces"))
        && object.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    namespace || !meta::finalizers(object).is_empty()
}

fn is(kind: &KindInfo, resource: (&str, &str)) -> bool {
    (&*kind.resource.group, &*kind.resource.name) == resource
}

/// 409 when another object has replaced the one that was checked.
fn replaced(context: &Context<'_>, judged: &Option<String>, uid: &str) -> ApiError {
    let kind = context.kind;
    let judged = judged.as_deref().unwrap_or_default();
    let why = format!(
        "the object with UID {judged} was deleted meanwhile, and another one with UID {uid} has its name: ask again to \
         delete that"
    );
    ApiError::conflict(&kind.resource.group, &kind.kind, &context.name, &why)
}

fn check_preconditions(context: &Context<'_>, live: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let kind = context.kind;
    let refuse = |why: String| Err(ApiError::conflict(&kind.resource.group, &kind.kind, &context.name, &why));
    let (uid, revision) = (meta::text(live, "uid"), meta::text(live, "resourceVersion"));
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return refuse(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have \
             been deleted and then recreated"
        ));
    }
    if let Some(wanted) = options.revision.as_deref().filter(|wanted| *wanted != revision) {
        return refuse(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
             ({revision}). The object might have been modified"
        ));
    }
    Ok(())
}

/// Marks an object for deletion. Returns the remaining seconds.
fn mark(context: &Context<'_>, options: &DeleteOptions, object: &mut Value) -> i64 {
    let finalizers = finalizers_for(context.kind, object, options);
    let list = if finalizers.is_empty() { Value::Null } else { json!(finalizers) };
    meta::set(object, "finalizers", list);
    let wanted = grace(context.kind, object, options);
    if meta::is_deleting(object) {
        return shorten(object, options, wanted);
    }
    let until = context.now.saturating_add(SignedDuration::from_secs(wanted)).unwrap_or(context.now);
    meta::set(object, "deletionTimestamp", meta::time(until).into());
    // Namespaces and definitions have their own deletion in kube-apiserver: it records only the time.
    let namespace = is(context.kind, ("", "namespaces"));
    if namespace {
        object["status"]["phase"] = "Terminating".into();
    }
    if namespace || is(context.kind, DEFINITIONS) {
        return wanted;
    }
    meta::set(object, "deletionGracePeriodSeconds", wanted.into());
    if let Some(generation) = meta::get(object, "generation").and_then(Value::as_i64) {
        meta::set(object, "generation", generation.saturating_add(1).into());
    }
    wanted
}

/// A second deletion can only shorten the grace period.
fn shorten(object: &mut Value, options: &DeleteOptions, wanted: i64) -> i64 {
    let current = meta::get(object, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    if options.grace.is_none() || wanted >= current {
        return current;
    }
    let until: Option<Timestamp> = meta::text(object, "deletionTimestamp").parse().ok();
    let earlier = until.and_then(|until| {
        until.saturating_sub(SignedDuration::from_secs(current.saturating_sub(wanted))).ok()
    });
    if let Some(earlier) = earlier {
        meta::set(object, "deletionTimestamp", meta::time(earlier).into());
    }
    meta::set(object, "deletionGracePeriodSeconds", wanted.into());
    wanted
}

/// Only pods that are bound and not finished are deleted gracefully.
fn grace(kind: &KindInfo, object: &Value, options: &DeleteOptions) -> i64 {
    if !is(kind, ("", "pods")) {
        return 0;
    }
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if text("/spec/nodeName").is_empty() || matches!(text("/status/phase"), "Succeeded" | "Failed") {
        return 0;
    }
    match options.grace {
        Some(seconds) if seconds < 0 => 1,
        Some(seconds) => seconds,
        None => kind.default_grace(object),
    }
}

/// The finalizers after applying the propagation policy.
fn finalizers_for(kind: &KindInfo, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let mut finalizers = meta::finalizers(object);
    if is(kind, DEFINITIONS) && !meta::is_deleting(object) && !finalizers.iter().any(|own| own == CLEANUP) {
        finalizers.push(CLEANUP.to_owned());
    }
    let has = |name: &str| finalizers.iter().any(|own| own == name);
    let propagation = options.propagation.unwrap_or_else(|| {
        let orphans = kind.rules().orphans_by_default;
        match () {
            () if has(ORPHAN) => Propagation::Orphan,
            () if has(FOREGROUND) => Propagation::Foreground,
            () if orphans && !meta::is_deleting(object) => Propagation::Orphan,
            () => Propagation::Background,
        }
    });
    finalizers.retain(|own| own != ORPHAN && own != FOREGROUND);
    match propagation {
        Propagation::Orphan => finalizers.push(ORPHAN.to_owned()),
        Propagation::Foreground => finalizers.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    finalizers
}

fn reply(context: &mut Context<'_>, outcome: DeleteOutcome, options: &DeleteOptions) -> WriteReply {
    let kind = context.kind;
    let as_object = kind.rules().deleted_object;
    match outcome {
        DeleteOutcome::Gone(object) if as_object => context.reply(StatusCode::OK, &Written::Object(object)),
        DeleteOutcome::Gone(object) => {
            let details = Details {
                name: context.name.clone(),
                group: kind.resource.group.to_string(),
                kind: kind.resource.name.to_string(),
                uid: meta::text(&object, "uid").to_owned(),
                ..Details::default()
            };
            let body = status::success(&details);
            let warnings = std::mem::take(&mut context.warnings);
            WriteReply { status: StatusCode::OK, body, is_object: false, warnings }
        }
        DeleteOutcome::Marked(object) => {
            let status = if options.accepted { StatusCode::ACCEPTED } else { StatusCode::OK };
            context.reply(status, &Written::Object(object))
        }
    }
}
