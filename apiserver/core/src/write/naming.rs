//! Whether an object has the name that its URL names.

use serde_json::Value;

use super::{Context, meta};
use crate::status::ApiError;

/// The name in the body must be the one in the path.
pub(super) fn check_name(context: &Context<'_>, object: &Value) -> Result<(), ApiError> {
    check_named(&context.name, object)
}

pub(super) fn check_named(wanted: &str, object: &Value) -> Result<(), ApiError> {
    let name = meta::text(object, "name");
    if name.is_empty() {
        return Err(nameless(wanted));
    }
    if name != wanted {
        let message =
            format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

/// 400 for an object without a name.
pub(super) fn nameless(wanted: &str) -> ApiError {
    let message =
        format!("the name of the object ({wanted} based on URL) was undeterminable: name must be provided");
    ApiError::bad_request(message)
}
