//! The end of a join or a renewal: the use of a token is counted and the certificate recorded, and both are taken back where
//! nobody gets it.
//!
//! A client that hangs up would stop that halfway, with a use that is spent and nobody who has joined. So it runs in a task of
//! its own.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;
use tombolo_runtime::door::Working;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::Inner;
use super::identities::{Joined, Unrecorded};
use super::routes::{Refusal, is_taken, refused, unauthorized, unknown};
use super::tokens::{self, JoinId};

/// Joins and renewals that are being recorded at a time, those of clients that are gone included. Each also has the place of
/// its connection until it is done.
pub(super) const ISSUES_MAX: usize = 256;

/// Waits between tries to take back what nobody has. The places of [`ISSUES_MAX`] bound how many try.
const RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(500), max: Duration::from_secs(60), factor: 2.0 };

/// How long they go on: an hour without an API server passes, as long as a token lasts unless it says otherwise. An error that
/// lasts longer ends by nobody's waiting, and each that waits has a place in which others could join.
const TAKING_BACK_MAX: Duration = Duration::from_secs(3600);

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
        if answer.is_closed() {
            return;
        }
        let join = Join { inner: &inner, node: &node, way: &way, id: JoinId::new() };
        let (answered, mut traces) = join.count_and_record(&certificate).await;
        let is_refused = answered.is_err();
        if is_refused {
            join.take_back(&mut traces).await;
        }
        // An answer that was sent may still be dropped unread, with the client's connection.
        let (taken, was_taken) = oneshot::channel();
        let is_lost = answer.send((answered, taken)).is_err() || was_taken.await.is_err();
        if is_refused || is_lost {
            if !is_refused {
                join.excuse(&mut traces);
                join.take_back(&mut traces).await;
            }
            drop(place);
            join.keep_taking_back(traces).await;
        }
    });
    let (answer, taken) = answered.await.map_err(|_| unavailable("this cloudcore is ending: try again"))?;
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

/// What a join has left behind, or may have.
#[derive(Default)]
struct Traces {
    /// The record of its certificate.
    joined: Option<Joined>,
    /// The use of its token, where that is to be given back.
    counted: bool,
    /// Only where the record was still its own.
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
            // A count whose answer is lost may have been made.
            traces.counted = matches!(counted, Ok(()) | Err(tokens::Refused::Store(_)));
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
            // It may have been written all the same, and nobody gets the certificate.
            Err(Unrecorded { error, joined }) => {
                traces.joined = joined;
                return Err(unknown(error));
            }
        }
        Ok(())
    }

    async fn spend(&self, bearer: &str) -> Result<(), tokens::Refused> {
        let inner = self.inner;
        let _turn = inner.spending.lock().await;
        tokens::spend(&*inner.secrets, bearer, self.node, self.id, inner.now()).await
    }

    /// Whoever wanted to join is gone and does not have the certificate. Of each token this is excused once: otherwise whoever has one
    /// could join and hang up for ever, and each time two Secrets are written twice.
    fn excuse(&self, traces: &mut Traces) {
        traces.only_with_record = true;
        if let Way::Token { bearer, .. } = self.way {
            traces.counted = traces.joined.is_some() && self.inner.excuse(bearer);
        }
    }

    /// Tries to take back what is left of a join that nobody has. What stays in `traces` could not be taken back.
    async fn take_back(&self, traces: &mut Traces) {
        if let Err(error) = self.try_to_take_back(traces).await {
            tracing::warn!(node = %self.node, error, "a join that nobody has could not be taken back; trying again");
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
            let given_back = tokens::give_back(&*self.inner.secrets, bearer, self.id).await;
            given_back.map_err(|error| error.to_string())?;
        }
        traces.counted = false;
        Ok(())
    }

    /// Takes back what could not be taken back at once, for [`TAKING_BACK_MAX`].
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
                    tracing::info!(node = %self.node, after = ?begun.elapsed(), "a join that nobody has is taken back");
                    return;
                }
                Err(error) if begun.elapsed() >= TAKING_BACK_MAX => {
                    let Traces { joined, counted, .. } = traces;
                    tracing::warn!(
                        node = %self.node,
                        error,
                        name_is_taken = joined.is_some(),
                        use_is_spent = counted,
                        "a join that nobody has cannot be taken back, and no more tries are made: mend what the error says, then join the \
                         node with a new token that is made with --replace"
                    );
                    return;
                }
                Err(error) => {
                    tracing::debug!(node = %self.node, error, "a join that nobody has still could not be taken back");
                }
            }
        }
    }
}
