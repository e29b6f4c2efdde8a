//! Field ownership in every write.

use http::StatusCode;
use serde_json::Value;

use crate::kinds::KindInfo;
use crate::ssa::{self, ApplyError, Writer};
use crate::status::{ApiError, Cause, Details};

use super::Context;

/// Records the fields that the writer of a create, update or patch owns.
pub(super) fn track(context: &Context<'_>, live: Option<&Value>, new: &mut Value) {
    track_as(context, context.kind, live, new);
}

/// Like [`track`], for an object of another kind: the view that a subresource uses.
pub(super) fn track_as(context: &Context<'_>, kind: &KindInfo, live: Option<&Value>, new: &mut Value) {
    ssa::update(kind, live, new, &writer(context, kind));
}

/// Merges an applied configuration into what is stored.
pub(super) fn apply(
    context: &Context<'_>,
    kind: &KindInfo,
    live: Option<&Value>,
    applied: &Value,
) -> Result<Value, ApiError> {
    let force = context.request.options.force;
    ssa::apply(kind, live, applied, &writer(context, kind), force).map_err(|error| match error {
        ApplyError::Conflict(conflicts) => conflict(&conflicts),
        ApplyError::BadRequest(message) => ApiError::bad_request(message),
        // The Status has no reason, as in kube-apiserver's answer to a configuration that does not fit the schema.
        ApplyError::Invalid(message) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message),
    })
}

fn writer<'a>(context: &'a Context<'_>, kind: &KindInfo) -> Writer<'a> {
    Writer {
        manager: &context.request.options.field_manager,
        api_version: kind.api_version(),
        subresource: context.subresource(),
        now: context.now,
    }
}

/// 409 with one cause per field that another manager owns.
fn conflict(conflicts: &[ssa::Conflict]) -> ApiError {
    let causes = conflicts.iter().map(|conflict| {
        let message = format!("conflict with {}", conflict.manager);
        Cause::new("FieldManagerConflict", &conflict.field, &message)
    });
    let details = Details { causes: causes.collect(), ..Details::default() };
    ApiError::new(StatusCode::CONFLICT, "Conflict", ssa::conflict_message(conflicts)).with_details(details)
}
