//! The complete write logic over a [`WriteStore`]: processing a request before it is committed.
//!
//! Order, as in kube-apiserver: decode, default, field ownership, admission (mutating), the kind's own preparation and
//! validation, admission (validating), commit. A write without a resource version of its own is retried when another
//! write comes in between.

mod create;
mod delete;
mod fields;
mod meta;
mod naming;
mod options;
mod owners;
mod patches;
mod scales;
mod source;
mod update;

pub use delete::CLEANUP;
pub(crate) use update::{check_body, creates};

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::Value;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::ObjectKey;

use crate::admission::{Admission, AdmissionRequest, Operation, Warnings};
use crate::backend::{
    FieldValidation, PatchType, WriteBackend, WriteOptions, WriteReply, WriteRequest, WriteVerb,
};
use crate::blocking::{run_blocking, run_blocking_if_large};
use crate::field_error::FieldError;
use crate::input;
use crate::kinds::KindInfo;
use crate::patch;
use crate::protobuf::Typed;
use crate::raw;
use crate::schema::decode::{DecodeError, Decoded, Strict};
use crate::ssa::{self, Writer};
use crate::status::{ApiError, Cause};
use crate::store::{Expect, Mutation, Revision, StoreError, Stored, Write, WriteStore};

/// Maximum number of attempts of a write without a resource version, when other writes come in between.
const ATTEMPTS_MAX: usize = 10;

/// Executes writes on its own store.
pub struct LocalWrites {
    store: Arc<dyn WriteStore>,
    admission: Vec<Arc<dyn Admission>>,
}

impl LocalWrites {
    /// Executes writes on a store, without admission.
    #[must_use]
    pub fn new(store: Arc<dyn WriteStore>) -> Self {
        Self { store, admission: Vec::new() }
    }

    /// Adds a hook after the existing ones.
    #[must_use]
    pub fn admission(mut self, hook: Arc<dyn Admission>) -> Self {
        self.admission.push(hook);
        self
    }
}

impl WriteBackend for LocalWrites {
    fn execute(&self, request: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>> {
        Box::pin(async move {
            let mut context = Context::new(&request);
            let outcome = match request.verb {
                WriteVerb::Create => self.create(&mut context).await,
                WriteVerb::Update => self.update(&mut context).await,
                WriteVerb::Patch(patch) => self.patch(&mut context, patch).await,
                WriteVerb::Delete => self.delete(&mut context).await,
                WriteVerb::DeleteCollection => self.delete_collection(&request).await,
            };
            // A refusal also contains the warnings from before it.
            outcome.map_err(|error| error.with_warnings(context.warnings))
        })
    }
}

/// The state of one write.
struct Context<'a> {
    request: &'a WriteRequest,
    kind: &'a Arc<KindInfo>,
    name: String,
    now: Timestamp,
    warnings: Vec<String>,
    /// Nothing is stored, as requested by the parameters or by the body of a deletion.
    dry_run: bool,
    /// Whether the last attempt failed because a value that admission chose was taken in the meantime.
    taken: bool,
}

impl<'a> Context<'a> {
    fn new(request: &'a WriteRequest) -> Self {
        let name = request.attributes.name.clone();
        let (kind, dry_run) = (&request.kind, request.options.dry_run);
        Self { request, kind, name, now: Timestamp::now(), warnings: Vec::new(), dry_run, taken: false }
    }

    fn namespace(&self) -> &str {
        if self.kind.namespaced { &self.request.attributes.namespace } else { "" }
    }

    fn subresource(&self) -> &str {
        &self.request.attributes.subresource
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.kind.storage.clone(), self.namespace(), &self.name)
    }

    /// Decodes a body to an object of the kind; unknown and duplicate fields are refused, reported or dropped.
    fn decode(&mut self, body: &[u8], content_type: &str) -> Result<Value, ApiError> {
        self.decode_as(self.kind, body, content_type)
    }

    /// Decodes a body to an object of another kind: the view that a subresource uses.
    fn decode_as(&mut self, kind: &KindInfo, body: &[u8], content_type: &str) -> Result<Value, ApiError> {
        decode(kind, body, content_type, self.request.options.field_validation, &mut self.warnings)
    }

    /// Refuses, reports or ignores findings of strict field validation.
    fn judge_strictness(
        &mut self,
        strict: &Strict,
        refuse: impl FnOnce(&str) -> ApiError,
    ) -> Result<(), ApiError> {
        judge(strict, self.request.options.field_validation, &mut self.warnings, refuse)
    }

    fn invalid(&self, errors: &[FieldError]) -> ApiError {
        invalid(self.kind, &self.name, errors)
    }

    fn not_found(&self) -> ApiError {
        ApiError::not_found(&self.kind.resource.group, &self.kind.resource.name, &self.name)
    }

    fn modified(&self) -> ApiError {
        ApiError::modified(&self.kind.resource.group, &self.kind.resource.name, &self.name)
    }

    /// Converts a store error, naming the resource as the client knows it.
    fn refused(&self, error: StoreError) -> ApiError {
        let resource = &self.kind.resource;
        match error {
            StoreError::AlreadyExists { .. } => {
                ApiError::already_exists(&resource.group, &resource.name, &self.name)
            }
            StoreError::Conflict { .. } => self.modified(),
            StoreError::NotFound { .. } => self.not_found(),
            other => other.into(),
        }
    }

    /// The answer, which takes the warnings out of the context.
    fn reply(&mut self, status: StatusCode, written: &Written) -> WriteReply {
        let body = match written {
            Written::Stored(stored) => stored.body(),
            Written::Object(object) => raw::object_text(object),
        };
        let warnings = std::mem::take(&mut self.warnings);
        WriteReply { status, body, is_object: true, warnings }
    }
}

fn decode(
    kind: &KindInfo,
    body: &[u8],
    content_type: &str,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let decoded = if input::is_yaml(content_type)? {
        let (value, keys) = input::parse_yaml(body)?;
        kind.decode_value(value).map(|decoded| Decoded { strict: keys.then(decoded.strict), ..decoded })
    } else {
        kind.decode(body)
    };
    let Decoded { object, strict } = decoded.map_err(|error| match &error {
        DecodeError::OtherKind { found, .. } if kind.custom => {
            let sent = input::parse(content_type, body).unwrap_or_default();
            other_kind(kind, found, meta::text(&sent, "name"))
        }
        DecodeError::Syntax(_) | DecodeError::NotAnObject(_) | DecodeError::KindMissing(_) => {
            let (kind, body) = (&kind.kind, summary(body));
            ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type {kind}): {error} ({body})"
            ))
        }
        _ => unreadable(&error),
    })?;
    let (kind, version) = (&kind.kind, &kind.resource.version);
    judge(&strict, validation, warnings, |message| {
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {message}"
        ))
    })?;
    Ok(object)
}

/// 422 for an object of another kind than the custom kind in the path.
fn other_kind(kind: &KindInfo, found: &str, name: &str) -> ApiError {
    let message = format!("Invalid value: {found:?}: must be {}", kind.kind);
    let causes = vec![Cause::new("FieldValueInvalid", "kind", &message)];
    ApiError::invalid(&kind.storage.group, found, name, causes)
}

/// Maximum number of bytes of a body that a refusal repeats.
const SUMMARY_LEN_MAX: usize = 30;

/// The beginning of a body that is not an object of a known kind, as kube-apiserver repeats it: JSON as text, anything
/// else in hexadecimal digits.
fn summary(body: &[u8]) -> String {
    let start = &body[..body.len().min(SUMMARY_LEN_MAX)];
    let more = if body.len() > SUMMARY_LEN_MAX { " ..." } else { "" };
    match start.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => {
            let digits: String = start.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{digits}{more}")
        }
    }
}

fn judge(
    strict: &Strict,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
    refuse: impl FnOnce(&str) -> ApiError,
) -> Result<(), ApiError> {
    match validation {
        FieldValidation::Strict if !strict.is_empty() => Err(refuse(&strict.message())),
        FieldValidation::Warn => {
            warnings.extend(strict.warnings().cloned());
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Reads an object that is answered instead of stored, such as a review, like an object to be created: decoded,
/// defaulted, in its namespace, and with the fields that its sender owns.
pub(crate) fn question(
    kind: &KindInfo,
    namespace: &str,
    body: &Typed,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Value, ApiError> {
    let mut object = decode(kind, &body.bytes, &body.media_type, options.field_validation, warnings)?;
    create::settle_namespace(kind, namespace, &mut object)?;
    kind.default(&mut object);
    let writer = Writer {
        manager: &options.field_manager,
        api_version: kind.api_version(),
        subresource: "",
        now: Timestamp::now(),
    };
    ssa::update(kind, None, &mut object, &writer);
    Ok(object)
}

/// The result of a write.
enum Written {
    /// An object that is served as it is stored: it need not be encoded again for the answer.
    Stored(Arc<Stored>),
    /// An object in the served version.
    Object(Value),
}

impl LocalWrites {
    /// Runs the mutating hooks.
    async fn mutate(
        &self,
        context: &mut Context<'_>,
        operation: Operation,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        let mut admission = admission_request(context, operation, object, old);
        for (index, hook) in self.admission.iter().enumerate() {
            if let Err(refused) = hook.mutate(&mut admission).await {
                self.admission[..index].iter().for_each(|before| before.abandon(&admission));
                return Err(refused);
            }
        }
        let warnings = admission.warnings.into_vec();
        context.warnings.extend(warnings);
        Ok(())
    }

    /// Notifies the hooks that an object which they accepted is not stored.
    fn abandon(&self, context: &Context<'_>, operation: Operation, object: &mut Value, old: Option<&Value>) {
        let admission = admission_request(context, operation, Some(object), old);
        self.admission.iter().for_each(|hook| hook.abandon(&admission));
    }

    /// Runs the validating hooks.
    async fn validate(
        &self,
        context: &mut Context<'_>,
        operation: Operation,
        object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        let admission = admission_request(context, operation, object, old);
        for hook in &self.admission {
            hook.validate(&admission).await?;
        }
        let warnings = admission.warnings.into_vec();
        context.warnings.extend(warnings);
        Ok(())
    }

    /// The stored version, and the object in the served version.
    fn read(&self, context: &Context<'_>) -> Result<Option<(Arc<Stored>, Value)>, ApiError> {
        let Some(stored) = self.store.get(&context.key())? else { return Ok(None) };
        let object = served(context.kind, &stored.body())?;
        Ok(Some((stored, object)))
    }

    /// Stores an object of the served version, and takes it.
    async fn commit(
        &self,
        context: &Context<'_>,
        object: &mut Value,
        expected: Expect,
    ) -> Result<Written, StoreError> {
        let stored = self.put(context, object, expected).await?;
        let object = std::mem::take(object);
        Ok(if context.kind.identical_storage() { Written::Stored(stored) } else { Written::Object(object) })
    }

    /// Stores an object of the served version and sets its new resource version. The object is not copied: its author
    /// determines how much memory its tree takes.
    async fn put(
        &self,
        context: &Context<'_>,
        object: &mut Value,
        expected: Expect,
    ) -> Result<Arc<Stored>, StoreError> {
        let refuse = |reason: String| StoreError::Refused { key: context.key(), reason };
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let uid = Uid::parse(uid).map_err(|error| refuse(error.to_string()))?;
        let body = stored_text(context.kind, object);
        let sender = &context.request.attributes;
        let line = sender.payer.storing(body.len()).await;
        let mutation = Mutation { key: context.key(), expected, write: Write::Put { uid, body } };
        let stored = self.store.commit_for(mutation, &sender.identity.user, line).await?;
        meta::set(object, "resourceVersion", stored.revision.to_string().into());
        Ok(stored)
    }

    /// Removes a version of an object. The deletion takes as many permits of its sender as the object is long, because
    /// its last state is sent to all watchers. It may wait for them and is never refused for lack of them.
    async fn remove(
        &self,
        context: &Context<'_>,
        stored: &Stored,
        revision: Revision,
    ) -> Result<Arc<Stored>, StoreError> {
        let sender = &context.request.attributes;
        let line = sender.payer.storing(stored.body_len()).await;
        let expected = Expect::Revision(revision);
        let mutation = Mutation { key: context.key(), expected, write: Write::Delete };
        self.store.commit_for(mutation, &sender.identity.user, line).await
    }
}

/// Validates an object that replaces one of `stored` bytes.
async fn validated<T>(
    context: &Context<'_>,
    stored: usize,
    validate: impl FnOnce() -> T + Send,
) -> Result<T, ApiError> {
    match context.kind.is_slow_to_validate() {
        true => run_blocking(&context.request.attributes.payer, validate).await,
        false => worked(context.request, stored, validate).await,
    }
}

/// Runs work whose duration depends on the size of the body and of the object of `stored` bytes that it changes.
async fn worked<T>(
    request: &WriteRequest,
    stored: usize,
    work: impl FnOnce() -> T + Send,
) -> Result<T, ApiError> {
    let len = request.body.len().saturating_add(stored);
    let operations = match request.verb {
        WriteVerb::Patch(PatchType::Json) => patch::operations_work(&request.body, stored),
        _ => 0,
    };
    run_blocking_if_large(&request.attributes.payer, len.saturating_add(operations), work).await
}

fn admission_request<'r>(
    context: &'r Context<'_>,
    operation: Operation,
    object: Option<&'r mut Value>,
    old: Option<&'r Value>,
) -> AdmissionRequest<'r> {
    AdmissionRequest {
        attributes: &context.request.attributes,
        operation,
        kind: context.kind,
        namespace: context.namespace(),
        name: &context.name,
        object,
        old,
        dry_run: context.dry_run,
        warnings: Warnings::default(),
    }
}

/// The stored text of an object of the served version.
fn stored_text(kind: &KindInfo, object: &Value) -> Bytes {
    if kind.resource == kind.storage {
        return raw::object_text(object);
    }
    let mut object = object.clone();
    kind.to_storage(&mut object);
    raw::object_text(&object)
}

/// Parses an object that was kept as text, which takes far less memory than a tree.
fn kept(text: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(text)
        .map_err(|error| ApiError::internal(format!("an object cannot be read: {error}")))
}

fn served(kind: &KindInfo, body: &Bytes) -> Result<Value, ApiError> {
    let unreadable = |error| ApiError::internal(format!("a stored object cannot be read: {error}"));
    kind.read(body).map_err(unreadable)
}

fn unreadable(error: &DecodeError) -> ApiError {
    ApiError::bad_request(error.to_string())
}

/// 422 with the causes of field errors, which refer to the kind as stored.
fn invalid(kind: &KindInfo, name: &str, errors: &[FieldError]) -> ApiError {
    ApiError::invalid(&kind.storage.group, &kind.kind, name, errors)
}

#[cfg(test)]
mod tests;
