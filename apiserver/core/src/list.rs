//! Lists: revision, paging, selection.

mod token;

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::time::{Instant, sleep};

use crate::accept::Accepted;
use crate::blocking::run_blocking_if_large;
use crate::body::{self, Body};
use crate::encode::{Encoder, ListMeta};
use crate::kinds::KindInfo;
use crate::query::params::{ListParams, Match};
use crate::selector::RequestSelection;
use crate::senders::Payer;
use crate::status::ApiError;
use crate::store::{Revision, Snapshot, Store, StoreError, Stored};

use token::Token;

#[cfg(test)]
mod tests;

/// How long a request waits for the store to reach the requested revision (as in kube-apiserver).
pub const FRESH_WAIT_MAX: Duration = Duration::from_secs(3);

/// How often the store's revision is checked while waiting.
const FRESH_POLL: Duration = Duration::from_millis(20);

const EXPIRED_TOKEN: &str = "The provided continue parameter is too old to display a consistent list result. You \
    can start a new list without the continue parameter, or use the continue token in this response to retrieve the \
    remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were \
    created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// One list request.
#[derive(Debug)]
pub struct ListRequest<'a> {
    /// The kind.
    pub kind: &'a KindInfo,
    /// The selected objects.
    pub selection: RequestSelection,
    /// Revision and paging.
    pub params: ListParams,
}

/// One page.
#[derive(Debug)]
pub struct Page {
    /// Objects, in order.
    pub items: Vec<Arc<Stored>>,
    /// The list's metadata.
    pub meta: ListMeta,
}

/// Collects the requested page once the store is as new as the request demands.
///
/// # Errors
/// 410 for a revision that is too old, 504 for one that is not reached in time, 503 when the store is not synced.
pub async fn fresh_page(store: &dyn Store, request: &ListRequest<'_>) -> Result<Page, ApiError> {
    if let Some(revision) = request.params.revision {
        reach(store, revision).await?;
    }
    page(store, request)
}

/// The answer with a page of a store. The store keeps the bodies anyway where they are `shared`.
///
/// # Errors
/// 429 when the client already has too many objects to be read.
pub async fn shown(
    page: Page,
    encoder: &Encoder<'_>,
    accepted: &Accepted,
    payer: &Payer,
    shared: bool,
) -> Result<Response<Body>, ApiError> {
    let Page { items, meta } = page;
    let parts = run_blocking_if_large(payer, encoder.read_len(&items), || encoder.list(&items, meta)).await?;
    Ok(body::pieces_of(StatusCode::OK, parts, accepted, shared))
}

/// Waits until the store reaches a revision.
///
/// # Errors
/// 504 with the cause that client-go understands when the revision is not reached in time.
pub async fn reach(store: &dyn Store, revision: Revision) -> Result<(), ApiError> {
    let deadline = Instant::now() + FRESH_WAIT_MAX;
    loop {
        let current = store.revision();
        if current >= revision {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(ApiError::too_large_revision(revision.0, current.0));
        }
        sleep(FRESH_POLL).await;
    }
}

/// Collects one page.
///
/// # Errors
/// 400 for an invalid token, 410 for a revision that is too old, 503 when the store is not synced.
pub fn page(store: &dyn Store, request: &ListRequest<'_>) -> Result<Page, ApiError> {
    let token = match request.params.continue_token.as_str() {
        "" => None,
        _ if request.params.revision.is_some_and(|revision| revision.0 != 0) => {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        text => Some(Token::decode(text)?),
    };
    let snapshot = match &token {
        Some(token) => continued(store, request, token)?,
        None => first(store, request)?,
    };
    let start = token.as_ref().map_or(0, |token| {
        snapshot.items.partition_point(|item| (item.key.namespace(), item.key.name()) <= token.after())
    });
    Ok(cut(snapshot, start, request))
}

fn first(store: &dyn Store, request: &ListRequest<'_>) -> Result<Snapshot, ApiError> {
    let params = &request.params;
    let namespace = request.selection.namespace.as_deref();
    let resource = &request.kind.storage;
    let exact = match (params.revision_match, params.revision) {
        (Some(Match::Exact), Some(revision)) => Some(revision),
        // A limited list with a revision and no match mode shows exactly that revision (Kubernetes API concepts).
        (None, Some(revision)) if params.limit > 0 && revision.0 > 0 => Some(revision),
        _ => None,
    };
    let Some(revision) = exact else { return Ok(store.list(resource, namespace)?) };
    store.list_at(resource, namespace, revision).map_err(|error| match error {
        StoreError::Expired { .. } => {
            ApiError::expired("The resourceVersion for the provided list is too old.")
        }
        other => other.into(),
    })
}

fn continued(store: &dyn Store, request: &ListRequest<'_>, token: &Token) -> Result<Snapshot, ApiError> {
    let namespace = request.selection.namespace.as_deref();
    let resource = &request.kind.storage;
    let Some(revision) = token.revision() else { return Ok(store.list(resource, namespace)?) };
    store.list_at(resource, namespace, revision).map_err(|error| match error {
        StoreError::Expired { .. } => {
            let mut error = ApiError::expired(EXPIRED_TOKEN);
            error.continue_token = Some(token.inconsistent().encode());
            error
        }
        other => other.into(),
    })
}

/// Takes the selected objects from `start` on, up to the limit.
fn cut(snapshot: Snapshot, start: usize, request: &ListRequest<'_>) -> Page {
    let Snapshot { revision, items } = snapshot;
    let mut meta = ListMeta { resource_version: revision.to_string(), ..ListMeta::default() };
    let selection = &request.selection;
    let limit = match request.params.limit {
        0 => usize::MAX,
        // Revision 0 accepts any state and ignores the limit, as kube-apiserver's cache does.
        _ if request.params.revision == Some(Revision(0)) => usize::MAX,
        limit => limit,
    };
    let total = items.len();
    let mut taken = Vec::new();
    let mut more = false;
    for (index, item) in items.into_iter().enumerate().skip(start) {
        if !selection.is_everything() && !selection.matches(request.kind, &item) {
            continue;
        }
        if taken.len() == limit {
            more = true;
            if selection.is_everything() {
                meta.remaining_item_count = Some(total - index);
            }
            break;
        }
        taken.push(item);
    }
    if let (true, Some(last)) = (more, taken.last()) {
        meta.continue_token = Some(Token::new(revision, &last.key).encode());
    }
    Page { items: taken, meta }
}
