//! `DeleteOptions`, from a body or from parameters.

use serde_json::Value;

use crate::backend::WriteRequest;
use crate::input;
use crate::query::params::{self, Params};
use crate::schema::decode::DecodeError;
use crate::status::{ApiError, Cause};
use crate::value::json_type;

/// Treatment of dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Propagation {
    /// They are kept, without their owner.
    Orphan,
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
}

/// The options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DeleteOptions {
    /// Grace period in seconds.
    pub(super) grace: Option<i64>,
    /// Treatment of dependents; `None` for the kind's default.
    pub(super) propagation: Option<Propagation>,
    /// Required UID of the object.
    pub(super) uid: Option<String>,
    /// Required revision of the object.
    pub(super) revision: Option<String>,
    pub(super) dry_run: bool,
    /// `orphanDependents: false` was given: a deletion that takes time is answered with 202.
    pub(super) accepted: bool,
}

impl DeleteOptions {
    /// Reads the body, or the parameters when there is no body.
    pub(super) fn of(request: &WriteRequest) -> Result<Self, ApiError> {
        if request.body.is_empty() {
            return Self::from_params(&request.query, request.options.dry_run);
        }
        let body = input::parse(&request.content_type, &request.body)?;
        if !body.is_object() && !body.is_null() {
            let error = DecodeError::NotAnObject(json_type(&body));
            return Err(ApiError::bad_request(error.to_string()));
        }
        let kind = body.get("kind").unwrap_or(&Value::Null);
        let unreadable = || {
            let error = unmarshal(kind, "Go struct field .kind of type string");
            ApiError::bad_request(DecodeError::Syntax(error).to_string())
        };
        let kind = if kind.is_null() { "" } else { kind.as_str().ok_or_else(unreadable)? };
        if !matches!(kind, "" | "DeleteOptions") {
            return Err(ApiError::bad_request(format!(
                "the body of a deletion must be DeleteOptions, not {kind}"
            )));
        }
        Self::from_body(&body, request.options.dry_run)
    }

    fn from_body(body: &Value, dry_run: bool) -> Result<Self, ApiError> {
        let grace = field(body, "gracePeriodSeconds", "int64", Value::as_i64)?;
        let dry = field(body, "dryRun", "[]string", Value::as_array)?;
        let orphan = field(body, "orphanDependents", "bool", Value::as_bool)?;
        let policy = field(body, "propagationPolicy", "v1.DeletionPropagation", Value::as_str)?;
        field(body, "preconditions", "v1.Preconditions", Value::as_object)?;
        let condition = |name: &str, go: &str| {
            let value = &body["preconditions"][name];
            let target = format!("Go struct field Preconditions.preconditions.{name} of type {go}");
            typed(value, &target, Value::as_str).map(|text| text.map(str::to_owned))
        };
        let mut causes = Vec::new();
        let dry: Vec<&str> =
            dry.map_or(&[][..], Vec::as_slice).iter().map(dry_run_value).collect::<Result<_, _>>()?;
        let dry_run = params::dry_run(&dry, &mut causes) || dry_run;
        let propagation = propagation(policy, orphan, &mut causes);
        refuse(causes)?;
        Ok(Self {
            grace,
            propagation,
            uid: condition("uid", "types.UID")?,
            revision: condition("resourceVersion", "string")?,
            dry_run,
            accepted: orphan == Some(false),
        })
    }

    fn from_params(params: &Params, dry_run: bool) -> Result<Self, ApiError> {
        let grace = params.number("gracePeriodSeconds")?;
        let mut causes = Vec::new();
        let orphan = params.first("orphanDependents").map(|_| params.flag("orphanDependents"));
        let propagation = propagation(params.text("propagationPolicy"), orphan, &mut causes);
        refuse(causes)?;
        Ok(Self { grace, propagation, dry_run, accepted: orphan == Some(false), ..Self::default() })
    }
}

/// A field of the options. A wrong type is refused: a deletion that was meant as a dry run or with a precondition must
/// not happen because of a mistake in the options.
fn field<'v, T>(
    body: &'v Value,
    name: &str,
    go: &str,
    read: impl Fn(&'v Value) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    typed(&body[name], &format!("Go struct field DeleteOptions.{name} of type {go}"), read)
}

fn dry_run_value(value: &Value) -> Result<&str, ApiError> {
    let text = typed(value, "Go struct field DeleteOptions.dryRun of type string", Value::as_str)?;
    Ok(text.unwrap_or_default())
}

fn typed<'v, T>(
    value: &'v Value,
    target: &str,
    read: impl Fn(&'v Value) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    if value.is_null() {
        return Ok(None);
    }
    read(value).map(Some).ok_or_else(|| ApiError::bad_request(unmarshal(value, target)))
}

/// The message of Go's decoder about a value that does not fit its type.
fn unmarshal(value: &Value, target: &str) -> String {
    let number =
        if value.is_number() && target.ends_with("int64") { format!(" {value}") } else { String::new() };
    format!("json: cannot unmarshal {}{number} into {target}", json_type(value))
}

fn propagation(policy: Option<&str>, orphan: Option<bool>, causes: &mut Vec<Cause>) -> Option<Propagation> {
    let mut refuse =
        |reason: &str, message: String| causes.push(Cause::new(reason, "propagationPolicy", &message));
    if let (Some(policy), Some(_)) = (policy, orphan) {
        let rule = "orphanDependents and deletionPropagation cannot be both set";
        refuse("FieldValueInvalid", format!("Invalid value: {policy:?}: {rule}"));
    }
    match (policy, orphan) {
        (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
        (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
        (Some("Foreground"), _) => Some(Propagation::Foreground),
        (None, None) => None,
        (Some(other), _) => {
            let known = "\"Foreground\", \"Background\", \"Orphan\", \"nil\"";
            refuse(
                "FieldValueNotSupported",
                format!("Unsupported value: {other:?}: supported values: {known}"),
            );
            None
        }
    }
}

fn refuse(causes: Vec<Cause>) -> Result<(), ApiError> {
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", causes))
}
