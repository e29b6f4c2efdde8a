//! PUT and PATCH, of objects and of their subresources.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use crate::admission::Operation;
use crate::backend::{PatchType, WriteReply, WriteRequest, WriteVerb};
use crate::encode::to_bytes;
use crate::input;
use crate::kinds::FieldError;
use crate::patch;
use crate::scale;
use crate::schema::decode::{self, Strict};
use crate::schema::gofmt;
use crate::status::{ApiError, Cause};
use crate::store::{Expect, Stored};

use super::{ATTEMPTS_MAX, Change, Context, LocalWrites, create, fields, meta};

/// Server-set metadata that updates cannot change.
const SERVER_METADATA: [&str; 5] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

/// Where the new state of an update comes from.
enum Source<'a> {
    /// The object (or Scale) of a PUT.
    Object(Value),
    /// A patch on what is stored.
    Patch(PatchType, &'a WriteRequest),
}

/// How one attempt ended.
enum Attempt {
    Done(Value),
    /// Somebody else wrote in between.
    Overtaken,
}

impl LocalWrites {
    pub(super) async fn update(&self, request: &WriteRequest) -> Result<WriteReply, ApiError> {
        let mut context = Context::new(request);
        let mut object = if context.subresource() == "scale" {
            input::parse(&request.content_type, &request.body)?
        } else {
            context.decode(&request.body, &request.content_type)?
        };
        check_name(&context, &object)?;
        create::check_namespace(&context, &mut object)?;
        if request.may_create && self.read(&context)?.is_none() && creates(request) {
            let created = self.create_named(&mut context, object, fields::track).await?;
            return Ok(context.reply(StatusCode::CREATED, &created));
        }
        let updated = self.replace(&mut context, &Source::Object(object)).await?;
        reply(context, &updated)
    }

    pub(super) async fn patch(
        &self,
        request: &WriteRequest,
        patch: PatchType,
    ) -> Result<WriteReply, ApiError> {
        let mut context = Context::new(request);
        if request.may_create && creates(request) && self.read(&context)?.is_none() {
            return self.apply_new(context).await;
        }
        let updated = self.replace(&mut context, &Source::Patch(patch, request)).await?;
        reply(context, &updated)
    }

    /// A server-side apply of an object that is not there.
    async fn apply_new(&self, mut context: Context<'_>) -> Result<WriteReply, ApiError> {
        let (applied, keys) = applied(&mut context)?;
        let uid = meta::text(&applied, "uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            let resource = &context.kind.resource;
            return Err(ApiError::conflict(&resource.group, &resource.name, &context.name, &why));
        }
        let mut object = fields::apply(&context, None, &applied)?;
        judge_keys(&mut context, &keys)?;
        meta::set(&mut object, "name", context.name.as_str().into());
        let mut object = decode_merged(&context, object)?;
        create::check_namespace(&context, &mut object)?;
        let created = self.create_named(&mut context, object, |_, _, _| {}).await?;
        Ok(context.reply(StatusCode::CREATED, &created))
    }

    /// Tries until nobody else writes in between.
    async fn replace(&self, context: &mut Context<'_>, source: &Source<'_>) -> Result<Value, ApiError> {
        for _ in 0..ATTEMPTS_MAX {
            let (stored, live) = self.read(context)?.ok_or_else(|| context.not_found())?;
            let warnings = context.warnings.len();
            match self.attempt(context, source, &stored, &live).await? {
                Attempt::Done(updated) => return Ok(updated),
                // The next attempt says them again.
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
        let kind = context.kind;
        let mut object = new_state(context, source, live)?;
        let conditional = settle_metadata(context, &mut object, live)?;
        kind.default(&mut object);
        if !matches!(source, Source::Patch(PatchType::Apply, _)) {
            fields::track(context, Some(live), &mut object);
        }
        self.mutate(context, Operation::Update, Some(&mut object), Some(live)).await?;
        // Scale writes the wanted count of the object itself.
        let part =
            if context.subresource() == "scale" { String::new() } else { context.subresource().to_owned() };
        kind.prepare_update(&mut object, live, &part, context.now);
        let errors: Vec<FieldError> = kind.validate_update(&object, live, &part);
        if !errors.is_empty() {
            return Err(context.invalid(&errors));
        }
        self.validate(context, Operation::Update, Some(&mut object), Some(live)).await?;
        if context.request.options.dry_run {
            return Ok(Attempt::Done(object));
        }
        let outcome = if super::delete::is_finished(context, &object) {
            self.remove(context, stored.revision).await.map(|_| object)
        } else if object == *live {
            return Ok(Attempt::Done(object));
        } else {
            let change = Change { object: &object, expected: Expect::Revision(stored.revision) };
            self.commit(context, change).await
        };
        match outcome {
            Ok(updated) => Ok(Attempt::Done(updated)),
            Err(crate::store::StoreError::Conflict { .. }) if !conditional => Ok(Attempt::Overtaken),
            Err(error) => Err(context.refused(error)),
        }
    }
}

/// Whether a write creates the object that it names when that is not there. Such a write needs the right to create.
pub(crate) fn creates(request: &WriteRequest) -> bool {
    let possible = match request.verb {
        WriteVerb::Patch(patch) => patch == PatchType::Apply,
        WriteVerb::Update => request.kind.rules().creates_on_update,
        _ => false,
    };
    possible && request.attributes.subresource.is_empty()
}

fn reply(context: Context<'_>, updated: &Value) -> Result<WriteReply, ApiError> {
    if context.subresource() == "scale" {
        let body = to_bytes(&scale::of(context.kind, updated)?);
        return Ok(WriteReply { status: StatusCode::OK, body, is_object: false, warnings: context.warnings });
    }
    Ok(context.reply(StatusCode::OK, updated))
}

/// The object that the request asks for, before defaults.
fn new_state(context: &mut Context<'_>, source: &Source<'_>, live: &Value) -> Result<Value, ApiError> {
    if context.subresource() == "scale" {
        return scaled(context, source, live);
    }
    match source {
        Source::Object(object) => Ok(object.clone()),
        Source::Patch(PatchType::Apply, _) => {
            let (applied, keys) = applied(context)?;
            let merged = fields::apply(context, Some(live), &applied)?;
            judge_keys(context, &keys)?;
            let mut object = decode_merged(context, merged)?;
            // Of what is applied only these two are conditions; the merge has taken the stored ones.
            for field in ["resourceVersion", "uid"] {
                if let Some(value) = meta::get(&applied, field) {
                    meta::set(&mut object, field, value.clone());
                }
            }
            Ok(object)
        }
        Source::Patch(patch, request) => {
            let (patched, strict) = patched(context, *patch, request, live)?;
            let object = decode_patched(context, *patch, patched, strict)?;
            check_name(context, &object)?;
            Ok(object)
        }
    }
}

/// The stored object with the wanted count of the Scale that the request makes.
fn scaled(context: &mut Context<'_>, source: &Source<'_>, live: &Value) -> Result<Value, ApiError> {
    let wanted = match source {
        Source::Object(scale) => scale.clone(),
        Source::Patch(PatchType::Apply, _) => {
            let message = "server-side apply of the scale subresource is not served; use a merge patch";
            return Err(ApiError::unsupported_media_type(message));
        }
        Source::Patch(patch, request) => {
            let current = scale::of(context.kind, live)?;
            patched(context, *patch, request, &current)?.0
        }
    };
    check_name(context, &wanted)?;
    let mut object = live.clone();
    scale::put(context.kind, &mut object, &wanted)?;
    for field in ["resourceVersion", "uid"] {
        meta::set(&mut object, field, meta::get(&wanted, field).cloned().unwrap_or_default());
    }
    Ok(object)
}

/// What a patch makes of an object, and what strict field validation finds in the patch itself.
fn patched(
    context: &Context<'_>,
    patch: PatchType,
    request: &WriteRequest,
    live: &Value,
) -> Result<(Value, Strict), ApiError> {
    let body = &request.body;
    let unreadable = |error: String| ApiError::bad_request(format!("error decoding patch: {error}"));
    if patch == PatchType::Json {
        let strict = decode::operations(body).map_err(unreadable)?;
        return Ok((patch::json_patch(live, body).map_err(|error| refused_patch(&error))?, strict));
    }
    if patch == PatchType::Strategic && context.kind.custom {
        return Err(ApiError::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        ));
    }
    let (document, strict) = decode::parse_untyped(body).map_err(unreadable)?;
    let outcome = match patch {
        PatchType::Merge => patch::merge_patch(live, &document),
        _ => patch::strategic_merge_patch(context.kind.schema(), live, &document),
    };
    Ok((outcome.map_err(|error| refused_patch(&error))?, strict))
}

fn refused_patch(error: &patch::PatchError) -> ApiError {
    let message = error.to_string();
    match error.code() {
        422 => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message),
        413 => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message),
        _ => ApiError::bad_request(message),
    }
}

/// The outcome of a patch as an object of the kind.
fn decode_patched(
    context: &mut Context<'_>,
    patch: PatchType,
    patched: Value,
    strict: Strict,
) -> Result<Value, ApiError> {
    let body = &context.request.body;
    let invalid = |message: &str| {
        // The real server shows the whole object instead, but for a strategic merge patch.
        let shown = match patch {
            PatchType::Strategic => gofmt::value(&serde_json::from_slice(body).unwrap_or_default()),
            _ => String::from_utf8_lossy(body).into_owned(),
        };
        let message = format!("Invalid value: {shown:?}: {message}");
        ApiError::invalid("", "", "", vec![Cause::new("FieldValueInvalid", "patch", &message)])
    };
    let decoded = context.kind.decode_value(patched).map_err(|error| invalid(&error.to_string()))?;
    context.judge_strictness(&strict.then(decoded.strict), invalid)?;
    Ok(decoded.object)
}

/// The outcome of a server-side apply, whose fields were checked when it was merged.
fn decode_merged(context: &Context<'_>, merged: Value) -> Result<Value, ApiError> {
    Ok(context.kind.decode_value(merged).map_err(|error| super::unreadable(&error))?.object)
}

/// The body of a server-side apply, and its keys that come twice.
fn applied(context: &mut Context<'_>) -> Result<(Value, Strict), ApiError> {
    let (object, keys) = input::parse_yaml(&context.request.body)?;
    check_name(context, &object).or_else(|error| {
        // The name may be left to the path.
        if meta::text(&object, "name").is_empty() { Ok(()) } else { Err(error) }
    })?;
    if meta::get(&object, "managedFields").is_some() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    Ok((object, keys))
}

/// Field validation of a server-side apply; the real server comes to it when the configuration is merged.
fn judge_keys(context: &mut Context<'_>, keys: &Strict) -> Result<(), ApiError> {
    context.judge_strictness(keys, |_| {
        let found = keys.yaml_message();
        ApiError::bad_request(format!("error strict decoding YAML: error converting YAML to JSON: {found}"))
    })
}

fn check_name(context: &Context<'_>, object: &Value) -> Result<(), ApiError> {
    let (name, wanted) = (meta::text(object, "name"), &context.name);
    if name.is_empty() {
        let message = format!(
            "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
        );
        return Err(ApiError::bad_request(message));
    }
    if name != wanted {
        let message =
            format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

/// Checks the conditions in the new metadata and takes over what the server sets. Whether the request named the
/// version that it replaces.
fn settle_metadata(context: &Context<'_>, object: &mut Value, live: &Value) -> Result<bool, ApiError> {
    let resource = &context.kind.resource;
    let uid = meta::text(object, "uid");
    let stored_uid = meta::text(live, "uid");
    if !uid.is_empty() && uid != stored_uid {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {stored_uid}");
        return Err(ApiError::conflict(&resource.group, &resource.name, &context.name, &why));
    }
    let wanted = meta::text(object, "resourceVersion").to_owned();
    let current = meta::text(live, "resourceVersion");
    let patch = matches!(context.request.verb, WriteVerb::Patch(_));
    if matches!(wanted.as_str(), "" | "0")
        && context.kind.rules().conditional_update
        && !patch
        && context.subresource() != "scale"
    {
        let message = "Invalid value: 0: must be specified for an update";
        // The real server puts the resource where the kind belongs.
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
    meta::set(object, "resourceVersion", current.into());
    // A patch that does not speak of the version carries the one it was applied to, and may be tried again.
    Ok(!patch && !matches!(wanted.as_str(), "" | "0"))
}
