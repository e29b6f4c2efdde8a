//! PUT and PATCH of objects and of their subresources.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use crate::admission::Operation;
use crate::backend::{PatchType, WriteReply, WriteRequest, WriteVerb};
use crate::field_error::FieldError;
use crate::kinds::scale_kind;
use crate::scale;
use crate::status::{ApiError, Cause};
use crate::store::{Expect, Stored};
use crate::value::to_bytes;

use super::naming::{check_name, check_named};
use super::owners::{self, AFTER_ADMISSION};
use super::source::Source;
use super::{ATTEMPTS_MAX, Context, LocalWrites, Written, create, fields, meta, patches, scales, worked};

/// Metadata that the server sets: updates of it are ignored.
const SERVER_METADATA: [&str; 3] = ["uid", "creationTimestamp", "selfLink"];

/// The outcome of one attempt.
enum Attempt {
    Done(Written),
    /// Another write came in between.
    Overtaken,
}

impl LocalWrites {
    pub(super) async fn update(&self, context: &mut Context<'_>) -> Result<WriteReply, ApiError> {
        let request = context.request;
        let decode = || match context.subresource() {
            "scale" => context.decode_as(scale_kind(), &request.body, &request.content_type),
            _ => context.decode(&request.body, &request.content_type),
        };
        let mut object = worked(request, 0, decode).await??;
        check_name(context, &object)?;
        create::check_namespace(context, &mut object)?;
        let sent = to_bytes(&object);
        if request.may_create && self.read(context)?.is_none() && creates(request) {
            // No object exists that could have the UID in the request.
            check_uid(context, &object, "")?;
            let warnings = context.warnings.len();
            let created = self.create_named(context, object, fields::track).await;
            if !self.is_overtaken(context, &created, warnings)? {
                return Ok(context.reply(StatusCode::CREATED, &created?));
            }
        } else {
            // It is parsed again for each attempt.
            drop(object);
        }
        let updated = self.replace(context, &Source::Object(sent)).await?;
        reply(context, updated)
    }

    pub(super) async fn patch(
        &self,
        context: &mut Context<'_>,
        patch: PatchType,
    ) -> Result<WriteReply, ApiError> {
        let request = context.request;
        if request.may_create && creates(request) && self.read(context)?.is_none() {
            let warnings = context.warnings.len();
            let created = self.apply_new(context).await;
            if !self.is_overtaken(context, &created, warnings)? {
                return Ok(context.reply(StatusCode::CREATED, &created?));
            }
        }
        let updated = self.replace(context, &Source::Patch(patch, request)).await?;
        reply(context, updated)
    }

    /// Whether another write created the object that an update or an apply would have created: then the request becomes
    /// a change. Warnings after the first `warnings` are dropped, since the next attempt repeats them.
    fn is_overtaken(
        &self,
        context: &mut Context<'_>,
        created: &Result<Written, ApiError>,
        warnings: usize,
    ) -> Result<bool, ApiError> {
        let refused = created.as_ref().is_err_and(|error| error.reason == "AlreadyExists");
        let overtaken = refused && self.read(context)?.is_some();
        if overtaken {
            context.warnings.truncate(warnings);
        }
        Ok(overtaken)
    }

    /// A server-side apply of an object that does not exist.
    async fn apply_new(&self, context: &mut Context<'_>) -> Result<Written, ApiError> {
        let (kind, request) = (Arc::clone(context.kind), context.request);
        let applying = || patches::apply(context, &kind, None);
        let (applied, mut object) = worked(request, 0, applying).await??;
        let uid = meta::text(&applied, "uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            let resource = &context.kind.resource;
            return Err(ApiError::conflict(&resource.group, &resource.name, &context.name, &why));
        }
        if meta::text(&object, "name").is_empty() {
            // The name may be given only in the path.
            meta::set(&mut object, "name", context.name.as_str().into());
        }
        check_name(context, &object)?;
        let mut object = patches::decode_merged(context.kind, object)?;
        create::check_namespace(context, &mut object)?;
        self.create_named(context, object, |_, _, _| {}).await
    }

    /// Retries until no other write comes in between.
    async fn replace(&self, context: &mut Context<'_>, source: &Source<'_>) -> Result<Written, ApiError> {
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.store.get(&context.key())?.ok_or_else(|| context.not_found())?;
            let read = || super::served(context.kind, &stored.body());
            let live = worked(context.request, stored.body_len(), read).await??;
            let warnings = context.warnings.len();
            match self.attempt(context, source, &stored, &live).await? {
                Attempt::Done(updated) => return Ok(updated),
                // The next attempt repeats them.
                Attempt::Overtaken => context.warnings.truncate(warnings),
            }
        }
        Err(context.modified())
    }

    async fn attempt(
        &self,
        context: &mut Context<'_>,
        source: &Source<'_>,
        stored: &Arc<Stored>,
        live: &Value,
    ) -> Result<Attempt, ApiError> {
        let request = context.request;
        let wanted = || wanted(context, source, live);
        let (mut object, uid, conditional) = worked(request, stored.body_len(), wanted).await??;
        self.mutate(context, Operation::Update, Some(&mut object), Some(live)).await?;
        let attempt = match check_patched_uid(context, &uid, live) {
            Ok(()) => self.store_changed(context, &mut object, (stored, live), conditional).await,
            Err(refused) => Err(refused),
        };
        if !matches!(attempt, Ok(Attempt::Done(_))) {
            self.abandon(context, Operation::Update, &mut object, Some(live));
        }
        attempt
    }

    /// Validates and stores an object that admission has completed.
    async fn store_changed(
        &self,
        context: &mut Context<'_>,
        object: &mut Value,
        (stored, live): (&Arc<Stored>, &Value),
        conditional: bool,
    ) -> Result<Attempt, ApiError> {
        let kind = context.kind;
        context.warnings.extend(owners::dedup(object, AFTER_ADMISSION));
        // A Scale changes the desired count of the object itself.
        let part =
            if context.subresource() == "scale" { String::new() } else { context.subresource().to_owned() };
        kind.prepare_update(object, live, &part, context.now);
        let validation =
            super::validated(context, stored.body_len(), || kind.validate_update(object, live, &part))
                .await?;
        context.warnings.extend(validation.overlooked.iter().map(ToString::to_string));
        if !validation.errors.is_empty() {
            return Err(context.invalid(&validation.errors));
        }
        context.warnings.extend(kind.warnings(object, Some(live), &part));
        self.validate(context, Operation::Update, Some(&mut *object), Some(live)).await?;
        if context.dry_run {
            return Ok(Attempt::Done(Written::Object(std::mem::take(object))));
        }
        let outcome = if super::delete::is_finished(context, object) {
            self.remove(context, stored, stored.revision)
                .await
                .map(|_| Written::Object(std::mem::take(object)))
        } else if object == live {
            return Ok(Attempt::Done(Written::Object(std::mem::take(object))));
        } else {
            let expected = Expect::Revision(stored.revision);
            self.commit(context, object, expected).await
        };
        match outcome {
            Ok(updated) => Ok(Attempt::Done(updated)),
            Err(crate::store::StoreError::Conflict { .. }) if !conditional => Ok(Attempt::Overtaken),
            // A value that admission chose was taken in the meantime, so it is chosen again.
            Err(crate::store::StoreError::Taken { .. }) => Ok(Attempt::Overtaken),
            Err(error) => Err(context.refused(error)),
        }
    }
}

/// Whether a write creates an object that does not exist. Such a write needs the permission to create.
pub(crate) fn creates(request: &WriteRequest) -> bool {
    let possible = match request.verb {
        WriteVerb::Patch(patch) => patch == PatchType::Apply,
        WriteVerb::Update => request.kind.rules().creates_on_update,
        _ => false,
    };
    possible && request.attributes.subresource.is_empty()
}

fn reply(context: &mut Context<'_>, updated: Written) -> Result<WriteReply, ApiError> {
    if context.subresource() != "scale" {
        return Ok(context.reply(StatusCode::OK, &updated));
    }
    let object = match updated {
        Written::Stored(stored) => super::served(context.kind, &stored.body())?,
        Written::Object(object) => object,
    };
    let scale = scale::of(context.kind, &object)?;
    Ok(context.reply(StatusCode::OK, &Written::Object(scale)))
}

/// 409 when the request has another UID than the stored object. kube-apiserver's message contains the key in etcd.
fn check_uid(context: &Context<'_>, object: &Value, stored: &str) -> Result<(), ApiError> {
    let uid = meta::text(object, "uid");
    if uid.is_empty() || uid == stored {
        return Ok(());
    }
    let resource = &context.kind.resource;
    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}");
    Err(ApiError::conflict(&resource.group, &resource.name, &context.name, &why))
}

/// The requested object as passed to admission, the UID in it, and whether it names the version that it replaces.
fn wanted(
    context: &mut Context<'_>,
    source: &Source<'_>,
    live: &Value,
) -> Result<(Value, String, bool), ApiError> {
    let kind = context.kind;
    let mut object = new_state(context, source, live)?;
    let uid = meta::text(&object, "uid").to_owned();
    let conditional = settle_metadata(context, &mut object, live)?;
    let applied = matches!(source, Source::Patch(PatchType::Apply, _));
    match applied {
        true => kind.default_applied(&mut object),
        false => kind.default(&mut object),
    }
    let tracked = applied || context.subresource() == "scale";
    if matches!(source, Source::Object(_)) {
        context.warnings.extend(owners::dedup(&mut object, ""));
    }
    if !tracked {
        fields::track(context, Some(live), &mut object);
    }
    Ok((object, uid, conditional))
}

/// The requested object, before defaults.
fn new_state(context: &mut Context<'_>, source: &Source<'_>, live: &Value) -> Result<Value, ApiError> {
    if context.subresource() == "scale" {
        return scales::scaled(context, source, live);
    }
    match source {
        Source::Object(sent) => super::kept(sent),
        Source::Patch(PatchType::Apply, _) => {
            let (applied, object) = patches::apply(context, context.kind, Some(live))?;
            let mut object = patches::decode_merged(context.kind, object)?;
            check_name(context, &object)?;
            create::check_namespace(context, &mut object)?;
            // In an applied configuration these two are preconditions, but the merge result has the stored values.
            for field in ["resourceVersion", "uid"] {
                if let Some(value) = meta::get(&applied, field) {
                    meta::set(&mut object, field, value.clone());
                }
            }
            Ok(object)
        }
        Source::Patch(patch, request) => {
            let mut object = patches::patched(context, context.kind, *patch, request, live)?;
            check_name(context, &object)?;
            create::check_namespace(context, &mut object)?;
            Ok(object)
        }
    }
}

/// Checks that the body of a PUT is the object in its path: kube-apiserver reads it before it checks the permission to
/// create an object that does not exist.
pub(crate) fn check_body(request: &WriteRequest) -> Result<(), ApiError> {
    if request.verb != WriteVerb::Update {
        return Ok(());
    }
    let (kind, validation) = (&request.kind, request.options.field_validation);
    let object = super::decode(kind, &request.body, &request.content_type, validation, &mut Vec::new())?;
    check_named(&request.attributes.name, &object)
}

/// In a patch a UID is not a precondition but a change of an immutable field, which kube-apiserver reports twice: for
/// the kind and for all kinds. As a part of validation this check comes after admission.
fn check_patched_uid(context: &Context<'_>, uid: &str, live: &Value) -> Result<(), ApiError> {
    let patch = matches!(context.request.verb, WriteVerb::Patch(_));
    if !patch || uid.is_empty() || uid == meta::text(live, "uid") {
        return Ok(());
    }
    let error = FieldError::invalid("metadata.uid", uid, "field is immutable");
    Err(context.invalid(&[error.clone(), error]))
}

/// Checks the preconditions in the new metadata and sets the fields of the server. Returns whether the request named
/// the version that it replaces.
fn settle_metadata(context: &Context<'_>, object: &mut Value, live: &Value) -> Result<bool, ApiError> {
    let resource = &context.kind.resource;
    let stored_uid = meta::text(live, "uid");
    let patch = matches!(context.request.verb, WriteVerb::Patch(_));
    if !patch {
        check_uid(context, object, stored_uid)?;
    }
    let wanted = meta::text(object, "resourceVersion").to_owned();
    let current = meta::text(live, "resourceVersion");
    if matches!(wanted.as_str(), "" | "0")
        && context.kind.rules().conditional_update
        && !patch
        && context.subresource() != "scale"
    {
        let message = "Invalid value: 0: must be specified for an update";
        // kube-apiserver puts the resource in place of the kind.
        let cause = Cause::new("FieldValueInvalid", "metadata.resourceVersion", message);
        return Err(ApiError::invalid(&resource.group, &resource.name, &context.name, vec![cause]));
    }
    if !wanted.is_empty() && wanted.parse::<u64>().is_err() {
        return Err(ApiError::bad_request(format!(
            "invalid resourceVersion {wanted:?}: it must be a number"
        )));
    }
    if !matches!(wanted.as_str(), "" | "0") && wanted != current {
        return Err(context.modified());
    }
    meta::copy(object, live, &SERVER_METADATA);
    if meta::is_deleting(live) {
        // An update that would begin a deletion is refused by validation.
        meta::copy(object, live, &["deletionTimestamp"]);
    }
    meta::set(object, "resourceVersion", current.into());
    // A patch without a version has that of the object it was applied to, and may be retried.
    Ok(!patch && !matches!(wanted.as_str(), "" | "0"))
}
