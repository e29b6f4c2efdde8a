//! Reads of callers other than this node, mostly pods with the tokens of their service accounts. Callers see what their
//! own permissions allow, never what only this node may read.
//!
//! With a cloud connection, a single object is read there with the caller's own token. Lists and watches use
//! subscriptions, shared by all callers whose permission for this list the cluster has confirmed. Without a cloud
//! connection, callers read the local copies if the last decision of the cluster allows it.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::selector::stored_fields;
use tombolo_apicore::sources::Read;
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::Store as ServedStore;
use tombolo_proto::api_path::path_of;
use tombolo_proto::object::ObjectKey;
use tombolo_proto::references;

use super::callers::caller;
use super::copies::{copy, refused};
use super::rights::{AccessDecision, Rights};
use super::single_answers::{Listed, One};
use super::{RETRY_AFTER_SECONDS, pass};
use crate::hub::SharedHub;
use crate::paths;
use crate::store::{Learned, Selection, Store, Subscribed, is_pushed, why_unreadable};
use crate::subscriptions::{Subscriptions, Unreadable};

/// Time for the cloud's answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Serves reads of service accounts and other callers with their own tokens.
pub(super) struct AccountReads {
    pub(super) store: Store,
    pub(super) subscriptions: Subscriptions,
    pub(super) hub: SharedHub,
    pub(super) rights: Arc<Rights>,
}

impl AccountReads {
    /// The store that answers a caller with this token.
    pub(super) async fn choose(&self, read: Read<'_>, token: &str) -> Result<Arc<dyn ServedStore>, ApiError> {
        let about = read.attributes;
        if about.verb != "get" {
            return self.followed(read, token).await;
        }
        let key = ObjectKey::new(read.kind.storage.clone(), &about.namespace, &about.name);
        match self.read_in_the_cloud(&key, about, token).await {
            Ok(one) => Ok(Arc::new(one)),
            // Only requests without an answer of the cloud may be served locally.
            Err(error) if error.code.is_server_error() => self.read_here(&key, about, error),
            Err(error) => Err(error),
        }
    }

    /// One object, read in the cloud by the caller.
    async fn read_in_the_cloud(
        &self,
        key: &ObjectKey,
        about: &Attributes,
        token: &str,
    ) -> Result<One, ApiError> {
        // Permission for a subresource does not imply permission for the whole object, nor the reverse.
        let call = pass::get(&paths::part(key, &about.subresource), "application/json");
        let reply =
            pass::heard(&self.hub, &caller(&about.identity), call, TIMEOUT, Some(token.to_owned())).await?;
        let revision = self.store.local_revision();
        let status = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::BAD_GATEWAY);
        match status {
            // The API server checks permissions before it looks for the object, so 404 means allowed.
            StatusCode::OK | StatusCode::NOT_FOUND => self.rights.note(about, true, ""),
            StatusCode::FORBIDDEN => self.rights.note(about, false, ""),
            _ => {}
        }
        match status {
            StatusCode::OK if about.subresource == "scale" => {
                One::scale(&self.store, key.clone(), reply.body)
            }
            StatusCode::OK => {
                let learned = Learned { key: key.clone(), body: reply.body.clone(), keep: false };
                let local = self.store.learn(learned).await.ok().flatten();
                One::of(key.clone(), local.unwrap_or(reply.body), revision)
            }
            StatusCode::NOT_FOUND => Ok(One::none(revision)),
            _ => Err(pass::refusal(status, &reply.body)),
        }
    }

    /// The local copy of one object, if the last decision allows the caller to read it.
    fn read_here(
        &self,
        key: &ObjectKey,
        about: &Attributes,
        away: ApiError,
    ) -> Result<Arc<dyn ServedStore>, ApiError> {
        match self.rights.stored(about) {
            AccessDecision::Refused(reason) => return Err(ApiError::forbidden(about, &reason)),
            AccessDecision::Unknown => return Err(away),
            AccessDecision::Allowed => {}
        }
        // The pushed set has only some objects of a resource. Of the others it knows only that none has an invalid
        // name.
        let is_held = || matches!(ServedStore::get(&self.store, key), Ok(Some(_)));
        if is_pushed(key.resource()) && is_held() || references::is_never_there(key) {
            return Ok(Arc::new(self.store.clone()));
        }
        let selection = Selection {
            namespace: key.namespace().to_owned(),
            borrowed: true,
            ..Selection::all(key.resource().clone())
        };
        match self.subscriptions.kept(&selection) {
            Ok(Some(copy)) => Ok(Arc::new(copy)),
            Ok(None) if self.store.is_unreadable(key).unwrap_or(false) => {
                Err(ApiError::unavailable(why_unreadable(key)).retry_after(RETRY_AFTER_SECONDS))
            }
            Ok(None) => Err(away),
            Err(error) => Err(refused(error, about)),
        }
    }

    /// A list or a watch.
    async fn followed(&self, read: Read<'_>, token: &str) -> Result<Arc<dyn ServedStore>, ApiError> {
        let about = read.attributes;
        self.allowed(about, &about.verb).await?;
        let other = if about.verb == "list" { "watch" } else { "list" };
        // The cloud requires permission to both list and watch for a subscription.
        let refusal = match self.allowed(about, other).await {
            Ok(()) => match self.subscribed(read, token).await {
                Err(Unreadable::Refused { code: 403, reason }) => ApiError::forbidden(about, &reason),
                outcome => {
                    let subscribed = outcome.map(|subscribed| Arc::new(subscribed) as Arc<dyn ServedStore>);
                    return subscribed.map_err(|error| refused(error, about));
                }
            },
            Err(refusal) => refusal,
        };
        if about.verb == "list" {
            return Ok(Arc::new(self.listed(read, token).await?));
        }
        Err(refusal)
    }

    async fn allowed(&self, about: &Attributes, verb: &str) -> Result<(), ApiError> {
        let asked = Attributes { verb: verb.to_owned(), ..about.clone() };
        match self.rights.decide(&asked).await {
            AccessDecision::Allowed => Ok(()),
            AccessDecision::Refused(reason) => Err(ApiError::forbidden(&asked, &reason)),
            AccessDecision::Unknown => Err(unknown(&asked)),
        }
    }

    async fn subscribed(&self, read: Read<'_>, token: &str) -> Result<Subscribed, Unreadable> {
        let about = read.attributes;
        let wide = Selection {
            namespace: about.namespace.clone(),
            borrowed: true,
            ..Selection::all(read.kind.storage.clone())
        };
        copy(&self.subscriptions, wide, read, Some(token)).await
    }

    /// A list that cannot be followed, read in the cloud by the caller.
    async fn listed(&self, read: Read<'_>, token: &str) -> Result<Listed, ApiError> {
        let call = pass::get(&query(read), "application/json");
        let caller = caller(&read.attributes.identity);
        let reply = pass::heard(&self.hub, &caller, call, TIMEOUT, Some(token.to_owned())).await?;
        let status = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::BAD_GATEWAY);
        if !status.is_success() {
            return Err(pass::refusal(status, &reply.body));
        }
        Listed::of(&self.store, read.kind, &reply.body)
    }
}

fn unknown(about: &Attributes) -> ApiError {
    let sentence = format!(
        "only the cluster can decide whether {} may {} {}; it cannot be reached now and has not decided this before",
        about.identity.user, about.verb, about.resource
    );
    ApiError::unavailable(sentence).retry_after(RETRY_AFTER_SECONDS)
}

/// Path and query of a list in the API of the cluster, in the version that the store keeps.
fn query(Read { kind, attributes: about, .. }: Read<'_>) -> String {
    let fields = stored_fields(kind, &about.field_selector);
    let selectors = [("labelSelector", &about.label_selector), ("fieldSelector", &fields)];
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(selectors.iter().filter(|(_, selector)| !selector.is_empty()));
    let path = path_of(&kind.storage, &about.namespace, "");
    match query.finish().as_str() {
        "" => path,
        query => format!("{path}?{query}"),
    }
}
