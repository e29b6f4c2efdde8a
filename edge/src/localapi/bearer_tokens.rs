//! Authenticates bearer tokens. This node verifies a token with the cluster's keys and the objects in the store; with a
//! cloud connection, the cloud's token review decides. Without one, a token is accepted only if both the keys and the
//! store prove it valid.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tombolo_apicore::accounts::{
    BoundObject, Claims, KubernetesClaim, Living, Unverified, check_bound, check_times, identity,
};
use tombolo_apicore::auth::{BadCredentials, Identity};
use tombolo_apicore::senders::name_of;
use tombolo_apicore::store::Store as ServedStore;
use tombolo_proto::ids::NodeId;
use tombolo_proto::object::{ObjectKey, Resource};

use super::callers;
use super::keys::Keys;
use super::pass;
use crate::fair::Fair;
use crate::hub::{Caller, SharedHub};
use crate::identity::WallClock;
use crate::shares::one_of_loopback;
use crate::store::Store;
use crate::store::splice::facts;

/// How long the result of a token review is remembered (as long as a permission,
/// docs/edge-node.md#pods-at-the-local-api).
const REVIEW_INTERVAL: Duration = Duration::from_secs(300);

/// Results of token reviews in memory, at most. When there are more, the oldest one of the sender with most of them is
/// removed, and its token must be reviewed again.
const REVIEWED_MAX: usize = 1024;

/// Time for the cloud's token review. After it, this node decides alone if it can.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Path of token reviews.
pub(super) const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// The result of checking a token without the cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// Signature, time, issuer and bound objects are valid. With the token's audiences.
    Good(Identity, Vec<String>),
    /// The token is invalid, and the cloud would agree.
    Wrong(String),
    /// This node does not know enough to decide.
    Undecided(String),
}

/// Authenticates bearer tokens.
pub(super) struct BearerTokens {
    pub(super) node: NodeId,
    pub(super) store: Store,
    pub(super) hub: SharedHub,
    pub(super) clock: WallClock,
    pub(super) keys: Arc<Keys>,
    reviewed: Mutex<Fair<String, [u8; 32], (Identity, Instant)>>,
}

impl BearerTokens {
    pub(super) fn new(node: NodeId, store: Store, hub: SharedHub, clock: WallClock, keys: Arc<Keys>) -> Self {
        let reviewed = Mutex::new(Fair::new(REVIEWED_MAX));
        Self { node, store, hub, clock, keys, reviewed }
    }

    /// The identity behind the token of a request to this API. `from` is the client's address.
    ///
    /// # Errors
    /// [`BadCredentials`]: the token is invalid, or this cannot be decided now.
    pub(super) async fn identify(
        &self,
        token: &str,
        from: Option<IpAddr>,
    ) -> Result<Identity, BadCredentials> {
        let found = self.for_this_api(self.judge(token));
        if let Finding::Wrong(reason) = found {
            return Err(BadCredentials::Wrong { reason });
        }
        let hash: [u8; 32] = Sha256::digest(token).into();
        let known = self.reviewed.lock().get(&hash).cloned();
        if let Some((identity, at)) = known
            && at.elapsed() < REVIEW_INTERVAL
        {
            return Ok(identity);
        }
        // Callers with unproven tokens count as strangers, who may have only few requests to the cloud.
        let caller = match &found {
            Finding::Good(identity, _) => callers::caller(identity),
            _ => Caller::Stranger(from.map(one_of_loopback)),
        };
        match (self.review(token, &caller).await, found) {
            (Some(Ok(identity)), _) => {
                self.remember(hash, &identity);
                Ok(identity)
            }
            (Some(Err(reason)), _) => {
                self.reviewed.lock().remove(&hash);
                Err(BadCredentials::Wrong { reason })
            }
            (None, Finding::Good(identity, _)) => Ok(identity),
            (None, Finding::Wrong(reason)) => Err(BadCredentials::Wrong { reason }),
            (None, Finding::Undecided(reason)) => Err(BadCredentials::Undecided { reason }),
        }
    }

    /// The API server's default audience is its issuer. Only the cluster can decide about tokens with other audiences.
    fn for_this_api(&self, found: Finding) -> Finding {
        let issuer = self.keys.current().map(|keys| keys.issuer().to_owned()).unwrap_or_default();
        match found {
            Finding::Good(_, audiences) if !audiences.contains(&issuer) => {
                Finding::Undecided(format!("the token is for {audiences:?}, and the cloud cannot be asked"))
            }
            found => found,
        }
    }

    /// The result of checking a token without the cloud.
    pub(super) fn judge(&self, token: &str) -> Finding {
        if jsonwebtoken::decode_header(token).is_err() {
            return Finding::Wrong(Unverified::Invalid.to_string());
        }
        let Some(keys) = self.keys.current() else {
            self.keys.want();
            return Finding::Undecided("this node has never fetched the cluster's keys".to_owned());
        };
        match keys.verify(token) {
            Ok(claims) => self.judge_claims(&claims),
            Err(error @ Unverified::Invalid) => Finding::Wrong(error.to_string()),
            Err(error @ (Unverified::OtherIssuer | Unverified::UnknownKey)) => {
                self.keys.want();
                Finding::Undecided(error.to_string())
            }
        }
    }

    fn judge_claims(&self, claims: &Claims) -> Finding {
        let now = self.clock.unix_seconds();
        if let Err(reason) = check_times(claims, now) {
            return Finding::Wrong(reason);
        }
        let claim = &claims.kubernetes;
        if let Some(secret) = &claim.secret
            && let Some(not_good) = self.judge_bound("secrets", claim, secret, now)
        {
            return not_good;
        }
        let Some(pod) = &claim.pod else {
            return Finding::Undecided("the token is not bound to a pod of this node".to_owned());
        };
        match self.judge_bound("pods", claim, pod, now) {
            Some(not_good) => not_good,
            None => Finding::Good(identity(claims), claims.aud.clone()),
        }
    }

    /// Checks that an object to which a token is bound still exists; none if it does.
    fn judge_bound(
        &self,
        plural: &str,
        claim: &KubernetesClaim,
        bound: &BoundObject,
        now: u64,
    ) -> Option<Finding> {
        let key = ObjectKey::new(Resource::new("", "v1", plural), &claim.namespace, &bound.name);
        let here = claim.node.as_ref().is_some_and(|node| node.name == self.node.as_str());
        let object = match ServedStore::get(&self.store, &key) {
            Ok(None) if !here => return Some(Finding::Undecided(format!("{key} is not on this node"))),
            Ok(object) => object,
            Err(error) => return Some(Finding::Undecided(error.to_string())),
        };
        let facts = object.as_ref().and_then(|object| facts(&object.body()).ok());
        let living = facts.as_ref().map(|facts| Living {
            uid: &facts.uid,
            deletion_timestamp: facts.deletion_timestamp.as_deref().unwrap_or_default(),
        });
        check_bound(plural, bound, living, now).err().map(Finding::Wrong)
    }

    /// Asks the cloud for a token review: the identity, or why the token is invalid; none without an answer.
    async fn review(&self, token: &str, caller: &Caller) -> Option<Result<Identity, String>> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let call = pass::post(TOKEN_REVIEWS.to_owned(), &review);
        let answer = pass::ask(&self.hub, caller, call, TIMEOUT, None).await.ok()?;
        if !answer.status.is_success() {
            return None;
        }
        let status = &answer.body["status"];
        if status["authenticated"] == true {
            return Some(Ok(Identity::from_user_info(&status["user"])));
        }
        Some(Err(status["error"].as_str().unwrap_or("the cluster does not know this token").to_owned()))
    }

    fn remember(&self, hash: [u8; 32], identity: &Identity) {
        self.reviewed.lock().insert(name_of(identity), hash, 1, (identity.clone(), Instant::now()));
    }
}
