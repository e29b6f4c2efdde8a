//! Passes what the edges attest about the cloud's history from sessions to the keeper, which checks it.

use std::collections::HashMap;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tombolo_proto::{NodeId, Uid};

use crate::attestation::Attester;
use crate::history_progress::HistoryProgress;

/// Age after which edges are given a new attestation.
const ATTEST_INTERVAL: Duration = Duration::from_secs(60);

/// Interval between log lines about invalid attestations.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// Number of waiting entries from which on closed ones are removed.
const WAITING_SLACK: usize = 64;

/// What edges have attested, and who waits for the keeper's answer. Shared by all sessions.
#[derive(Debug)]
pub(crate) struct Attestations {
    attester: Attester,
    cluster: Uid,
    known: ArcSwap<CheckedProgress>,
    pending: Mutex<Pending>,
    asked: Notify,
    complained: Mutex<Option<Instant>>,
}

/// The result of the keeper's last check.
#[derive(Debug)]
struct CheckedProgress {
    progress: HistoryProgress,
    /// The attestation given to the edges; somewhat older than the rest.
    proof: Bytes,
    made: Instant,
}

#[derive(Debug, Default)]
struct Pending {
    /// The highest claim not yet answered.
    claim: Option<HistoryProgress>,
    waiting: SessionWaiters,
}

/// The sessions that wait for an answer: of each node only the most recent, because it has replaced earlier ones.
type SessionWaiters = HashMap<NodeId, oneshot::Sender<ClaimOutcome>>;

/// First evaluation of an attestation, without asking the keeper. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttestationCheck {
    /// It contains nothing new.
    Known,
    /// It was not made by a cloudcore of this cluster, or with another CA.
    Invalid,
    /// It says more than this replica knows; ask with [`Attestations::ask`].
    News(HistoryProgress),
}

/// The answer to a claim. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    /// The history has progressed that far.
    Holds,
    /// The history had gone back, and a new epoch has begun. Sessions of the old epoch end.
    Restored,
}

/// A claim and the sessions that wait for its answer, taken by the keeper.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The claim; `None` when the check was due anyway.
    pub(crate) claim: Option<HistoryProgress>,
    waiting: SessionWaiters,
}

impl Attestations {
    pub(crate) fn new(attester: Attester, cluster: Uid, progress: HistoryProgress) -> Self {
        let (proof, made) = (attester.attest(&cluster, progress), Instant::now());
        let known = ArcSwap::from_pointee(CheckedProgress { progress, proof, made });
        let (pending, complained) = (Mutex::default(), Mutex::default());
        Self { attester, cluster, known, pending, asked: Notify::new(), complained }
    }

    /// The attestation currently given to edges.
    pub(crate) fn proof(&self) -> Bytes {
        self.known.load().proof.clone()
    }

    /// Records a consistent read. Edges get a new attestation only when the epoch changed or theirs is old, because
    /// each edge stores it.
    pub(crate) fn publish(&self, progress: HistoryProgress) {
        let known = self.known.load();
        let same_epoch = known.progress.generation == progress.generation;
        let fresh = same_epoch && known.made.elapsed() < ATTEST_INTERVAL;
        let (proof, made) = match fresh || known.progress == progress {
            true => (known.proof.clone(), known.made),
            false => (self.attester.attest(&self.cluster, progress), Instant::now()),
        };
        self.known.store(CheckedProgress { progress, proof, made }.into());
    }

    /// Evaluates an attestation. Makes no API call.
    pub(crate) fn judge(&self, proof: &[u8]) -> AttestationCheck {
        match self.attester.read(&self.cluster, proof) {
            None => AttestationCheck::Invalid,
            Some(claim) if claim.exceeds(&self.known.load().progress) => AttestationCheck::News(claim),
            Some(_) => AttestationCheck::Known,
        }
    }

    /// Requests an immediate check. All requests before the check begins are answered together. Per node, at most one
    /// request is with the keeper and one waits for its next check; a newer request replaces the waiting one, which
    /// gets no answer.
    pub(crate) fn ask(&self, node: &NodeId, claim: HistoryProgress) -> oneshot::Receiver<ClaimOutcome> {
        let (answer, outcome) = oneshot::channel();
        let mut pending = self.pending.lock();
        if pending.waiting.len() >= WAITING_SLACK {
            pending.waiting.retain(|_, waiting| !waiting.is_closed());
        }
        pending.claim = Some(pending.claim.map_or(claim, |other| other.and(claim)));
        pending.waiting.insert(node.clone(), answer);
        self.asked.notify_one();
        outcome
    }

    /// Whether another line about invalid attestations may be logged.
    pub(crate) fn may_complain(&self) -> bool {
        let mut complained = self.complained.lock();
        let now = Instant::now();
        if complained.is_some_and(|last| now.duration_since(last) < COMPLAINT_INTERVAL) {
            return false;
        }
        *complained = Some(now);
        true
    }

    /// Waits until a check is requested. Cancel-safe.
    pub(crate) async fn wanted(&self) {
        self.asked.notified().await;
    }

    /// Takes the pending requests.
    pub(crate) fn take(&self) -> Asked {
        let Pending { claim, waiting } = std::mem::take(&mut *self.pending.lock());
        Asked { claim, waiting }
    }

    /// Returns unanswered requests, so that they are answered by the next check.
    pub(crate) fn put_back(&self, asked: Asked) {
        let mut pending = self.pending.lock();
        pending.claim = match (pending.claim, asked.claim) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        for (node, waiting) in asked.waiting.into_iter().filter(|(_, waiting)| !waiting.is_closed()) {
            pending.waiting.entry(node).or_insert(waiting);
        }
        if pending.waiting.is_empty() {
            pending.claim = None;
        }
    }
}

impl Asked {
    /// Answers all waiting sessions.
    pub(crate) fn answer(self, outcome: ClaimOutcome) {
        for waiting in self.waiting.into_values() {
            // A session that has ended needs no answer.
            let _ = waiting.send(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;
    use tombolo_proto::CloudRevision;

    use super::*;

    fn cluster() -> Uid {
        Uid::parse("here").expect("valid")
    }

    fn progress(generation: u64, beat: u64, revision: u64) -> HistoryProgress {
        HistoryProgress { generation, beat, revision: CloudRevision(revision) }
    }

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("a name")
    }

    fn attested(progress: HistoryProgress) -> Bytes {
        Attester::new(b"secret").expect("cryptography works").attest(&cluster(), progress)
    }

    fn at(progress: HistoryProgress) -> Attestations {
        Attestations::new(Attester::new(b"secret").expect("cryptography works"), cluster(), progress)
    }

    #[test]
    fn only_newer_attestations_cause_an_epoch_read() {
        let attestations = at(progress(5, 7, 100));
        for known in [progress(5, 7, 100), progress(5, 6, 99), progress(4, 99, 1_000_000), progress(0, 0, 0)]
        {
            assert_eq!(attestations.judge(&attested(known)), AttestationCheck::Known, "{known:?}");
        }
        for news in
            [progress(5, 7, 101), progress(5, 8, 1), progress(6, 0, 1), progress(u64::MAX, 0, u64::MAX)]
        {
            assert_eq!(attestations.judge(&attested(news)), AttestationCheck::News(news));
        }
        for odd in [&b""[..], b"x", &[0xff; 57], &[1; 57]] {
            assert_eq!(attestations.judge(odd), AttestationCheck::Invalid);
        }
    }

    #[tokio::test]
    async fn one_epoch_read_serves_all_waiting_checks() {
        let attestations = at(progress(5, 7, 100));
        let first = attestations.ask(&node("a"), progress(5, 7, 103));
        let second = attestations.ask(&node("b"), progress(5, 8, 101));
        attestations.wanted().await;
        let asked = attestations.take();
        assert_eq!(asked.claim, Some(progress(5, 8, 103)), "all that they know");
        // The API server does not answer: no session gets an answer, and new requests wait with the others.
        let third = attestations.ask(&node("c"), progress(5, 7, 107));
        drop(second);
        attestations.put_back(asked);
        let asked = attestations.take();
        assert_eq!(
            (asked.claim, asked.waiting.len()),
            (Some(progress(5, 8, 107)), 2),
            "disconnected nodes are forgotten"
        );
        asked.answer(ClaimOutcome::Holds);
        assert_eq!((first.await, third.await), (Ok(ClaimOutcome::Holds), Ok(ClaimOutcome::Holds)));
        assert_eq!(attestations.take().claim, None);
    }

    #[tokio::test]
    async fn only_the_newest_attestation_check_of_a_node_waits() {
        let attestations = at(progress(5, 7, 100));
        let ask = || attestations.ask(&node("a"), progress(5, 7, 101));
        let mut first = ask();
        let asked = attestations.take();
        let mut older: Vec<_> = (0..100).map(|_| ask()).collect();
        let newest = ask();
        for older in &mut older {
            assert_eq!(older.try_recv(), Err(TryRecvError::Closed), "a newer one has replaced it");
        }
        // The API server has not answered, and the newest request stays.
        attestations.put_back(asked);
        assert_eq!(first.try_recv(), Err(TryRecvError::Closed));
        let asked = attestations.take();
        assert_eq!(asked.waiting.len(), 1);
        asked.answer(ClaimOutcome::Holds);
        assert_eq!(newest.await, Ok(ClaimOutcome::Holds));
    }

    #[test]
    fn closed_sessions_hold_no_attestation_check() {
        let attestations = at(progress(5, 7, 100));
        let ask = |number: usize| attestations.ask(&node(&format!("n{number}")), progress(5, 7, 101));
        (0..10_000).for_each(|number| drop(ask(number)));
        assert!(attestations.pending.lock().waiting.len() <= WAITING_SLACK);
        attestations.put_back(attestations.take());
        assert_eq!(attestations.take().claim, None);
    }

    #[tokio::test(start_paused = true)]
    async fn edges_are_given_a_new_attestation_each_minute_and_with_a_new_epoch() {
        let attestations = at(progress(5, 7, 100));
        let first = attestations.proof();
        assert_eq!(first, attested(progress(5, 7, 100)));
        attestations.publish(progress(5, 7, 101));
        assert_eq!(attestations.proof(), first, "not at each look");
        assert_eq!(attestations.judge(&attested(progress(5, 7, 101))), AttestationCheck::Known);
        attestations.publish(progress(6, 7, 50));
        assert_eq!(attestations.proof(), attested(progress(6, 7, 50)));
        tokio::time::advance(ATTEST_INTERVAL).await;
        attestations.publish(progress(6, 8, 51));
        assert_eq!(attestations.proof(), attested(progress(6, 8, 51)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_has_one_line_a_minute() {
        let attestations = at(progress(1, 1, 1));
        assert!(attestations.may_complain());
        assert!((0..1000).all(|_| !attestations.may_complain()));
        tokio::time::advance(COMPLAINT_INTERVAL).await;
        assert!(attestations.may_complain());
    }
}
