//! The end of a join or a renewal: the use of a token is counted and the certificate recorded, and both are taken back where
//! nobody gets it.
//!
//! A client that hangs up would stop that halfway, with a use that is spent and nobody who has joined. So it runs in a task of
//! its own.

use std::sync::Arc;

use http::StatusCode;
use tokio::sync::oneshot;
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;
use tombolo_runtime::door::Working;

use super::Inner;
use super::identities::Joined;
use super::routes::{Refusal, is_taken, refused, unauthorized, unknown};
use super::tokens;

/// Joins and renewals that are being recorded at a time, those of clients that are gone included. Each also has the place of
/// its connection until it is done.
pub(super) const ISSUES_MAX: usize = 256;

/// What a certificate is given for.
pub(super) enum Way {
    /// The node has shown this one, which is in force.
    Renewal(PeerCertificate),
    /// A token of this cloud, and whether it may replace what there is.
    Token { bearer: String, replace: bool },
    /// KubeEdge's shared token.
    Shared,
}

/// Counts and records a certificate before anybody has it: one that is not recorded opens nothing.
pub(super) async fn issue(
    inner: &Arc<Inner>,
    place: &Arc<Working>,
    node: &NodeId,
    way: Way,
    certificate: PeerCertificate,
) -> Result<(), Refusal> {
    let unavailable = |sentence| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, sentence);
    if inner.issues.len() >= ISSUES_MAX {
        return Err(unavailable("too many certificates are being recorded: try again"));
    }
    let (answer, answered) = oneshot::channel::<(Result<(), Refusal>, oneshot::Sender<()>)>();
    let (inner, place, node) = (Arc::clone(inner), Arc::clone(place), node.clone());
    let issues = inner.issues.clone();
    issues.spawn_isolated("certificate of a node", async move {
        let _place = place;
        if answer.is_closed() {
            return;
        }
        let recorded = count_and_record(&inner, &node, &way, &certificate).await;
        let (answered, joined) = match recorded {
            Ok(joined) => (Ok(()), joined),
            Err(refusal) => (Err(refusal), None),
        };
        // An answer that was sent may still be dropped unread, with the client's connection.
        let (taken, was_taken) = oneshot::channel();
        let is_lost = answer.send((answered, taken)).is_err() || was_taken.await.is_err();
        if let Some(joined) = joined.filter(|_| is_lost) {
            take_back(&inner, &node, &way, joined).await;
        }
    });
    let (answer, taken) = answered.await.map_err(|_| unavailable("this cloudcore is ending: try again"))?;
    let _ = taken.send(());
    answer
}

/// The join that was recorded; none for a renewal.
async fn count_and_record(
    inner: &Inner,
    node: &NodeId,
    way: &Way,
    certificate: &PeerCertificate,
) -> Result<Option<Joined>, Refusal> {
    let Way::Token { bearer, .. } = way else { return record(inner, node, way, certificate).await };
    spend(inner, bearer, node).await?;
    let recorded = record(inner, node, way, certificate).await;
    if recorded.is_err() {
        give_back(inner, bearer, node).await;
    }
    recorded
}

async fn record(
    inner: &Inner,
    node: &NodeId,
    way: &Way,
    certificate: &PeerCertificate,
) -> Result<Option<Joined>, Refusal> {
    let identities = &inner.identities;
    let replace = match way {
        Way::Renewal(with) => {
            let renewed = identities.renewed(node, with, certificate).await.map_err(unknown)?;
            return renewed.map(|()| None).map_err(|why| unauthorized(why.to_string()));
        }
        Way::Token { replace, .. } => *replace,
        Way::Shared => false,
    };
    let joined = identities.joined(node, certificate, replace).await.map_err(unknown)?;
    joined.map(Some).map_err(|taken| is_taken(node, &taken.to_string()))
}

/// Whoever wanted to join is gone and does not have the certificate. Of each token this is excused once: otherwise whoever has one
/// could join and hang up for ever, and each time two Secrets are written twice.
async fn take_back(inner: &Inner, node: &NodeId, way: &Way, joined: Joined) {
    match (inner.identities.not_joined(node, joined).await, way) {
        (Ok(true), Way::Token { bearer, .. }) => {
            if inner.excuse(bearer) {
                give_back(inner, bearer, node).await;
            }
        }
        (Ok(_), _) => {}
        (Err(error), _) => {
            tracing::debug!(%node, %error, "a join whose client is gone could not be taken back");
        }
    }
}

async fn spend(inner: &Inner, bearer: &str, node: &NodeId) -> Result<(), Refusal> {
    let _turn = inner.spending.lock().await;
    tokens::spend(&*inner.secrets, bearer, node, inner.now()).await.map(|_| ()).map_err(refused)
}

/// A join that failed after its use was counted uses nothing up.
async fn give_back(inner: &Inner, bearer: &str, node: &NodeId) {
    let _turn = inner.spending.lock().await;
    if let Err(error) = tokens::give_back(&*inner.secrets, bearer).await {
        tracing::warn!(%node, %error, "a use of a join token whose join has failed could not be given back");
    }
}
