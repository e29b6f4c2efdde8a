//! The copies that answer lists and watches of local clients.

use http::StatusCode;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::selector::stored_fields;
use tombolo_apicore::senders::name_of;
use tombolo_apicore::sources::Read;
use tombolo_apicore::status::ApiError;

use super::RETRY_AFTER_SECONDS;
use crate::store::{Selection, Subscribed};
use crate::subscriptions::{Subscriptions, TokenCaller, Unreadable};

/// The copy that answers a list or a watch: that of the whole selection, or, if the caller may not read all of it, that
/// of the requested part.
pub(super) async fn copy(
    subscriptions: &Subscriptions,
    wide: Selection,
    read: Read<'_>,
    token: Option<&str>,
) -> Result<Subscribed, Unreadable> {
    let sender = name_of(&read.attributes.identity);
    let who = token.map(|token| TokenCaller { sender: &sender, token });
    let narrow = Selection {
        label_selector: read.attributes.label_selector.clone(),
        field_selector: stored_fields(read.kind, &read.attributes.field_selector),
        ..wide.clone()
    };
    match subscriptions.reader(&wide, who).await {
        Err(Unreadable::Refused { code: 403, .. }) if narrow != wide => {
            subscriptions.reader(&narrow, who).await
        }
        outcome => outcome,
    }
}

pub(super) fn refused(error: Unreadable, about: &Attributes) -> ApiError {
    match error {
        Unreadable::Refused { code: 403, reason } => ApiError::forbidden(about, &reason),
        Unreadable::Refused { code: 404, .. } => ApiError::no_such_path(),
        Unreadable::Refused { code, reason } => match StatusCode::from_u16(code) {
            Ok(StatusCode::BAD_REQUEST) => ApiError::bad_request(reason),
            _ => ApiError::unavailable(reason).retry_after(RETRY_AFTER_SECONDS),
        },
        Unreadable::Unknown(reason) | Unreadable::Store(reason) => {
            ApiError::unavailable(reason).retry_after(RETRY_AFTER_SECONDS)
        }
    }
}
