//! POST.

use http::StatusCode;
use rand::Rng;
use serde_json::Value;
use uuid::Uuid;

use crate::admission::Operation;
use crate::backend::{WriteReply, WriteVerb};
use crate::kinds::KindInfo;
use crate::status::ApiError;
use crate::store::{Expect, StoreError};
use crate::value::to_bytes;

use super::owners::{self, AFTER_ADMISSION};
use super::{ATTEMPTS_MAX, Context, LocalWrites, Written, fields, meta, worked};

/// Maximum length of the prefix of a generated name: 63 bytes with the suffix (Kubernetes convention).
const GENERATED_PREFIX_LEN_MAX: usize = 58;

/// Letters and digits of generated names: chosen so that they form no words and are not confused with each other.
const GENERATED_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

const GENERATED_SUFFIX_LEN: usize = 5;

impl LocalWrites {
    pub(super) async fn create(&self, context: &mut Context<'_>) -> Result<WriteReply, ApiError> {
        let request = context.request;
        if !context.subresource().is_empty() {
            return Err(ApiError::method_not_allowed());
        }
        let decode = || context.decode(&request.body, &request.content_type);
        let mut object = worked(request, 0, decode).await??;
        check_namespace(context, &mut object)?;
        if !meta::text(&object, "resourceVersion").is_empty() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message));
        }
        if !meta::text(&object, "name").is_empty() {
            let created = self.create_named(context, object, fields::track).await?;
            return Ok(context.reply(StatusCode::CREATED, &created));
        }
        let nameless = to_bytes(&object);
        let mut attempt = 1;
        loop {
            generate_name(&mut object);
            match self.create_named(context, std::mem::take(&mut object), fields::track).await {
                Err(error) if attempt < ATTEMPTS_MAX && error.reason == "AlreadyExists" => {
                    object = super::kept(&nameless)?;
                    attempt += 1;
                }
                created => return Ok(context.reply(StatusCode::CREATED, &created?)),
            }
        }
    }

    /// Creates an object with a known name. `own` records field ownership. When a value that admission chose was taken
    /// by a concurrent write, it is chosen again.
    pub(super) async fn create_named(
        &self,
        context: &mut Context<'_>,
        mut object: Value,
        own: impl Fn(&Context<'_>, Option<&Value>, &mut Value) + Sync,
    ) -> Result<Written, ApiError> {
        let (warnings, sent) = (context.warnings.len(), to_bytes(&object));
        for _ in 1..ATTEMPTS_MAX {
            let created = self.create_once(context, object, &own).await;
            if !std::mem::take(&mut context.taken) {
                return created;
            }
            context.warnings.truncate(warnings);
            object = super::kept(&sent)?;
        }
        self.create_once(context, object, &own).await
    }

    async fn create_once(
        &self,
        context: &mut Context<'_>,
        mut object: Value,
        own: &(impl Fn(&Context<'_>, Option<&Value>, &mut Value) + Sync),
    ) -> Result<Written, ApiError> {
        context.name = meta::text(&object, "name").to_owned();
        let kind = context.kind;
        if kind.is_terminating() {
            let why = "create not allowed while custom resource definition is terminating";
            let resource = &kind.resource;
            return Err(ApiError::forbidden_object(&resource.group, &resource.name, &context.name, why));
        }
        meta::set(&mut object, "creationTimestamp", meta::time(context.now).into());
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            meta::set(&mut object, field, Value::Null);
        }
        // Set before the kind prepares the object: a Job selects its pods by UID.
        let uid = Value::from(Uuid::new_v4().to_string());
        meta::set(&mut object, "uid", uid.clone());
        let request = context.request;
        let complete = || {
            kind.default(&mut object);
            // For a patch they are searched for only once, after admission.
            if !matches!(context.request.verb, WriteVerb::Patch(_)) {
                context.warnings.extend(owners::dedup(&mut object, ""));
            }
            own(context, None, &mut object);
        };
        worked(request, 0, complete).await?;
        self.mutate(context, Operation::Create, Some(&mut object), None).await?;
        let created = self.store_new(context, &mut object, uid).await;
        if created.is_err() {
            self.abandon(context, Operation::Create, &mut object, None);
        }
        created
    }

    /// Validates and stores an object that admission has completed.
    async fn store_new(
        &self,
        context: &mut Context<'_>,
        object: &mut Value,
        uid: Value,
    ) -> Result<Written, ApiError> {
        let kind = context.kind;
        context.warnings.extend(owners::dedup(object, AFTER_ADMISSION));
        // Set again: a mutating hook may have changed them.
        meta::set(object, "uid", uid);
        meta::set(object, "creationTimestamp", meta::time(context.now).into());
        kind.prepare_create(object, context.now);
        let errors = super::validated(context, 0, || kind.validate_create(object)).await?;
        if !errors.is_empty() {
            return Err(context.invalid(&errors));
        }
        context.warnings.extend(kind.warnings(object, None, ""));
        if let Some((_, live)) = self.read(context)? {
            // Checked before the validating hooks, which may allocate resources.
            let error = context.refused(StoreError::AlreadyExists { key: context.key() });
            return Err(match meta::text(&live, "deletionTimestamp") {
                "" => error,
                _ => ApiError { message: format!("object is being deleted: {}", error.message), ..error },
            });
        }
        self.validate(context, Operation::Create, Some(&mut *object), None).await?;
        if context.dry_run {
            return Ok(Written::Object(std::mem::take(object)));
        }
        let stored = self.commit(context, object, Expect::Absent).await;
        context.taken = matches!(stored, Err(StoreError::Taken { .. }));
        stored.map_err(|error| context.refused(error))
    }
}

/// Sets the namespace of the path in the object, or refuses a different one.
pub(super) fn check_namespace(context: &Context<'_>, object: &mut Value) -> Result<(), ApiError> {
    settle_namespace(context.kind, context.namespace(), object)
}

/// Like [`check_namespace`], for any kind. The namespace of a cluster-scoped object is removed.
pub(super) fn settle_namespace(kind: &KindInfo, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    let own = meta::text(object, "namespace");
    if !kind.namespaced {
        if !own.is_empty() {
            meta::set(object, "namespace", Value::Null);
        }
    } else if own.is_empty() || namespace.is_empty() {
        // Validation refuses an empty namespace in the path.
        meta::set(object, "namespace", namespace.into());
    } else if own != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

fn generate_name(object: &mut Value) {
    let prefix = meta::text(object, "generateName");
    if prefix.is_empty() {
        // Left to the kind's validation, which has the right message.
        return;
    }
    let mut end = prefix.len().min(GENERATED_PREFIX_LEN_MAX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut rng = rand::rng();
    let suffix: String = (0..GENERATED_SUFFIX_LEN)
        .map(|_| char::from(GENERATED_ALPHABET[rng.random_range(0..GENERATED_ALPHABET.len())]))
        .collect();
    let name = format!("{}{suffix}", &prefix[..end]);
    meta::set(object, "name", name.into());
}
