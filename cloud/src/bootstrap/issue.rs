//! The last step of a join or a renewal. It counts the use of the token and records the certificate, and takes both
//! back if the client does not receive the certificate.
//!
//! A client that hangs up would interrupt this halfway: the use would be spent without a join. So it runs in a separate
//! task.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;
use tombolo_runtime::connection_limiter::Working;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::Inner;
use super::identities::{Joined, Unrecorded};
use super::join_tokens::{self, JoinId};
use super::responses::{Refusal, is_taken, refused, unauthorized, unknown};

/// Maximum number of joins and renewals that are being recorded, including those whose clients are gone. Each also
/// holds the slot of its connection until it is recorded or was first taken back.
pub(super) const ISSUES_MAX: usize = 256;

/// Waits between attempts to take back a join. [`ISSUES_MAX`] bounds how many of these run.
const RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(500), max: Duration::from_secs(60), factor: 2.0 };

/// How long the attempts continue. An API outage of an hour is survived, which is also the default lifetime of a token.
/// A longer error does not end by waiting, and each task that waits takes a slot in which others could join.
const TAKING_BACK_MAX: Duration = Duration::from_secs(3600);

/// The proof for which a certificate is issued.
pub(super) enum Way {
    /// A certificate that the node has presented and that is in force.
    Renewal(PeerCertificate),
    /// A token of this cloud, and whether it may replace an existing node.
    Token { bearer: String, replace: bool },
    /// KubeEdge's shared token.
    Shared,
}

/// Counts the token use and records the certificate before the client receives it. An unrecorded certificate would be
/// useless.
pub(super) async fn issue(
    inner: &Arc<Inner>,
    slot: &Arc<Working>,
    node: &NodeId,
    way: Way,
    certificate: PeerCertificate,
) -> Result<(), Refusal> {
    let unavailable = |sentence| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, sentence);
    if inner.issues.len() >= ISSUES_MAX {
        return Err(unavailable("too many certificates are being recorded: try again"));
    }
    let (answer, answered) = oneshot::channel::<(Result<(), Refusal>, oneshot::Sender<()>)>();
    let (inner, slot, node) = (Arc::clone(inner), Arc::clone(slot), node.clone());
    let issues = inner.issues.clone();
    issues.spawn_isolated("certificate of a node", async move {
        if answer.is_closed() {
            return;
        }
        let join = Join { inner: &inner, node: &node, way: &way, id: JoinId::new() };
        let (answered, mut traces) = join.count_and_record(&certificate).await;
        let is_refused = answered.is_err();
        if is_refused {
            join.take_back(&mut traces).await;
        }
        // An answer that was sent may still be dropped unread, together with the client's connection.
        let (taken, was_taken) = oneshot::channel();
        let is_lost = answer.send((answered, taken)).is_err() || was_taken.await.is_err();
        if is_refused || is_lost {
            if !is_refused {
                join.excuse(&mut traces);
                join.take_back(&mut traces).await;
            }
            drop(slot);
            join.keep_taking_back(traces).await;
        }
    });
    let (answer, taken) = answered.await.map_err(|_| unavailable("this cloudcore is stopping: try again"))?;
    let _ = taken.send(());
    answer
}

/// A join or a renewal.
struct Join<'a> {
    inner: &'a Inner,
    node: &'a NodeId,
    way: &'a Way,
    id: JoinId,
}

/// Changes of a join that may have to be taken back.
#[derive(Default)]
struct Traces {
    /// The record of its certificate.
    joined: Option<Joined>,
    /// Whether the use of its token is to be given back.
    counted: bool,
    /// The use is given back only if the record was still this join's.
    only_with_record: bool,
}

impl Traces {
    fn are_gone(&self) -> bool {
        self.joined.is_none() && !self.counted
    }
}

impl Join<'_> {
    async fn count_and_record(&self, certificate: &PeerCertificate) -> (Result<(), Refusal>, Traces) {
        let mut traces = Traces::default();
        if let Way::Token { bearer, .. } = self.way {
            let counted = self.spend(bearer).await;
            // If the answer to the count was lost, the count may still have been made.
            traces.counted = matches!(counted, Ok(()) | Err(join_tokens::Refused::Store(_)));
            if let Err(error) = counted {
                return (Err(refused(error)), traces);
            }
        }
        (self.record(certificate, &mut traces).await, traces)
    }

    async fn record(&self, certificate: &PeerCertificate, traces: &mut Traces) -> Result<(), Refusal> {
        let Self { inner, node, .. } = *self;
        let identities = &inner.identities;
        let joined = match self.way {
            Way::Renewal(with) => {
                let renewed = identities.renewed(node, with, certificate).await.map_err(unknown)?;
                return renewed.map_err(|why| unauthorized(why.to_string()));
            }
            Way::Token { replace, .. } => identities.joined(node, certificate, *replace).await,
            Way::Shared => identities.joined_by_all(node, certificate).await,
        };
        match joined {
            Ok(Ok(joined)) => traces.joined = Some(joined),
            Ok(Err(taken)) => return Err(is_taken(node, &taken.to_string())),
            // It may have been written nevertheless, and no client receives the certificate.
            Err(Unrecorded { error, joined }) => {
                traces.joined = joined;
                return Err(unknown(error));
            }
        }
        Ok(())
    }

    async fn spend(&self, bearer: &str) -> Result<(), join_tokens::Refused> {
        let inner = self.inner;
        let _turn = inner.spending.lock().await;
        join_tokens::spend(&*inner.secrets, bearer, self.node, self.id, inner.now()).await
    }

    /// The client is gone without its certificate. This is excused once per token. Otherwise the holder of a token
    /// could join and hang up for ever, with two Secrets written twice each time.
    fn excuse(&self, traces: &mut Traces) {
        traces.only_with_record = true;
        if let Way::Token { bearer, .. } = self.way {
            traces.counted = traces.joined.is_some() && self.inner.excuse(bearer);
        }
    }

    /// Tries to take back an unreceived join. The changes that could not be taken back remain in `traces`.
    async fn take_back(&self, traces: &mut Traces) {
        if let Err(error) = self.try_to_take_back(traces).await {
            tracing::warn!(node = %self.node, error, "cannot undo an incomplete join; trying again");
        }
    }

    async fn try_to_take_back(&self, traces: &mut Traces) -> Result<(), String> {
        if let Some(joined) = &traces.joined {
            let was_own = self.inner.identities.not_joined(self.node, joined.clone()).await;
            let was_own = was_own.map_err(|error| error.to_string())?;
            traces.joined = None;
            traces.counted &= was_own || !traces.only_with_record;
        }
        if let (true, Way::Token { bearer, .. }) = (traces.counted, self.way) {
            let _turn = self.inner.spending.lock().await;
            let given_back = join_tokens::give_back(&*self.inner.secrets, bearer, self.id).await;
            given_back.map_err(|error| error.to_string())?;
        }
        traces.counted = false;
        Ok(())
    }

    /// Keeps trying to take back the remaining changes, for [`TAKING_BACK_MAX`].
    async fn keep_taking_back(&self, mut traces: Traces) {
        if traces.are_gone() {
            return;
        }
        let (begun, mut backoff) = (Instant::now(), Backoff::new(RETRY));
        loop {
            let wait = backoff.next_delay(&mut rand::rng());
            tokio::time::sleep(wait).await;
            match self.try_to_take_back(&mut traces).await {
                Ok(()) => {
                    tracing::info!(node = %self.node, after = ?begun.elapsed(), "undid an incomplete join");
                    return;
                }
                Err(error) if begun.elapsed() >= TAKING_BACK_MAX => {
                    let Traces { joined, counted, .. } = traces;
                    tracing::warn!(
                        node = %self.node,
                        error,
                        name_is_taken = joined.is_some(),
                        use_is_spent = counted,
                        "giving up undoing an incomplete join: fix the cause of the error, then join the node with a \
                         new token created with --replace"
                    );
                    return;
                }
                Err(error) => {
                    tracing::debug!(node = %self.node, error, "still cannot undo an incomplete join");
                }
            }
        }
    }
}
