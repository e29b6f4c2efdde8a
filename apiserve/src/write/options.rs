//! `DeleteOptions`, from a body or from parameters.

use serde_json::Value;

use crate::backend::WriteRequest;
use crate::input;
use crate::query::params::{self, Params};
use crate::status::{ApiError, Cause};

/// What happens to dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Propagation {
    /// They lose their owner and stay.
    Orphan,
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
}

/// How to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DeleteOptions {
    /// Seconds to stop gently.
    pub(super) grace: Option<i64>,
    /// What happens to dependents; `None` is the kind's default.
    pub(super) propagation: Option<Propagation>,
    /// UID that the object must have.
    pub(super) uid: Option<String>,
    /// Revision that the object must have.
    pub(super) revision: Option<String>,
    pub(super) dry_run: bool,
    /// `orphanDependents: false` was given: the answer to a deletion that takes time is 202.
    pub(super) accepted: bool,
}

impl DeleteOptions {
    /// Reads the body, or without one the parameters.
    pub(super) fn of(request: &WriteRequest) -> Result<Self, ApiError> {
        if request.body.is_empty() {
            return Self::from_params(&request.query, request.options.dry_run);
        }
        let body = input::parse(&request.content_type, &request.body)?;
        if !body.is_object() {
            return Err(ApiError::bad_request("the body of a deletion must be a DeleteOptions object"));
        }
        let kind = body.get("kind").and_then(Value::as_str).unwrap_or("DeleteOptions");
        if kind != "DeleteOptions" {
            return Err(ApiError::bad_request(format!(
                "the body of a deletion must be DeleteOptions, not {kind}"
            )));
        }
        Self::from_body(&body, request.options.dry_run)
    }

    fn from_body(body: &Value, dry_run: bool) -> Result<Self, ApiError> {
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let grace = match body.get("gracePeriodSeconds") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_i64().ok_or_else(|| {
                ApiError::bad_request("gracePeriodSeconds must be a whole number of seconds")
            })?),
        };
        let mut causes = Vec::new();
        let dry: Vec<&str> =
            body["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let dry_run = params::dry_run(&dry, &mut causes) || dry_run;
        let policy = text("/propagationPolicy");
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        let propagation = propagation(policy.as_deref(), orphan, &mut causes);
        refuse(causes)?;
        Ok(Self {
            grace,
            propagation,
            uid: text("/preconditions/uid"),
            revision: text("/preconditions/resourceVersion"),
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
