//! Limits the cost of asking the API about certificates that memory does not confirm: each question reads a Node and a
//! Secret of up to 900 KiB. So there is one question per name at a time, a fixed number for all names together, and a
//! refusal is remembered for a few seconds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tombolo_link::identity::PeerCertificate;
use tombolo_proto::NodeId;

use super::IdentityError;
use super::entry::{Denied, Entry};

/// Maximum number of concurrent questions to the API about certificates. Further callers are told to come back.
const QUESTIONS_MAX: usize = 64;

/// Maximum number of concurrent questions about names to join under. Further callers wait, because a fleet may join at
/// the same time; the connection limits bound their number.
const JOINS_MAX: usize = 16;

/// Maximum number of callers of one name that wait for the answer to an earlier one. Further callers are told to come
/// back.
const WAITING_MAX: usize = 16;

/// How long a refusal is repeated, unless the name's record or Node changes.
const REFUSAL_LIFE: Duration = Duration::from_secs(5);

/// Number of names whose last refusal is remembered.
const REFUSALS_MAX: usize = 1024;

/// The state of a name in memory: its record, and the UID of its Node if Nodes have been listed.
pub(super) type Memory = (Option<Entry>, Option<Option<String>>);

#[derive(Debug)]
struct CachedRefusal {
    certificate: PeerCertificate,
    why: Denied,
    /// The state in memory at that time. If it changes, the refusal no longer counts.
    memory: Memory,
    until: Instant,
}

/// Running questions, and recent refusals.
#[derive(Debug)]
pub(super) struct Questions {
    permits: Semaphore,
    joins: Semaphore,
    turns: Mutex<HashMap<NodeId, Arc<tokio::sync::Mutex<()>>>>,
    refusals: Mutex<HashMap<NodeId, CachedRefusal>>,
}

impl Default for Questions {
    fn default() -> Self {
        let (turns, refusals) = (Mutex::default(), Mutex::default());
        let (permits, joins) = (Semaphore::new(QUESTIONS_MAX), Semaphore::new(JOINS_MAX));
        Self { permits, joins, turns, refusals }
    }
}

impl Questions {
    /// A turn to ask about a name. The turn's lock is dropped when no caller needs it any more.
    pub(super) fn turn(&self, node: &NodeId) -> Result<Turn<'_>, IdentityError> {
        let mut turns = self.turns.lock();
        let lock = Arc::clone(turns.entry(node.clone()).or_default());
        // One reference is the map's and one is ours.
        if Arc::strong_count(&lock) > WAITING_MAX + 2 {
            return Err(IdentityError::Busy);
        }
        Ok(Turn { questions: self, node: node.clone(), lock })
    }

    /// A permit for a question about any name.
    pub(super) fn permit(&self) -> Result<SemaphorePermit<'_>, IdentityError> {
        self.permits.try_acquire().map_err(|_| IdentityError::Busy)
    }

    /// A permit for a question of a joining client.
    pub(super) async fn place_to_join(&self) -> Result<SemaphorePermit<'_>, IdentityError> {
        self.joins.acquire().await.map_err(|_| IdentityError::Busy)
    }

    /// The reason of a recent refusal of a certificate.
    pub(super) fn refusal(
        &self,
        node: &NodeId,
        certificate: &PeerCertificate,
        memory: &Memory,
    ) -> Option<Denied> {
        let refusals = self.refusals.lock();
        let refusal = refusals.get(node).filter(|refusal| refusal.until > Instant::now())?;
        (refusal.certificate == *certificate && refusal.memory == *memory).then_some(refusal.why)
    }

    /// Remembers a refusal.
    pub(super) fn refused(&self, node: &NodeId, certificate: &PeerCertificate, why: Denied, memory: Memory) {
        let mut refusals = self.refusals.lock();
        let now = Instant::now();
        if refusals.len() >= REFUSALS_MAX {
            refusals.retain(|_, refusal| refusal.until > now);
        }
        if refusals.len() < REFUSALS_MAX || refusals.contains_key(node) {
            let until = now + REFUSAL_LIFE;
            refusals.insert(node.clone(), CachedRefusal { certificate: *certificate, why, memory, until });
        }
    }
}

/// A caller that asks about a name, or waits for another one.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    questions: &'a Questions,
    node: NodeId,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl Turn<'_> {
    /// Waits until no other caller asks about the name.
    pub(super) async fn begin(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.lock.lock().await
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.questions.turns.lock();
        // The references of the map and of this turn.
        if Arc::strong_count(&self.lock) <= 2 {
            turns.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize) -> NodeId {
        NodeId::parse(&format!("edge{number}")).expect("a name")
    }

    fn certificate() -> PeerCertificate {
        PeerCertificate { serial: 1.into(), key: [1; 32], issued: 1, expires: 2 }
    }

    #[tokio::test(start_paused = true)]
    async fn cached_refusals_are_short_and_bounded() {
        let questions = Questions::default();
        let known = || (None, None);
        let asked = |number| questions.refusal(&node(number), &certificate(), &known());
        for number in 0..=REFUSALS_MAX {
            questions.refused(&node(number), &certificate(), Denied::Unknown, known());
        }
        assert_eq!(asked(0), Some(Denied::Unknown));
        assert_eq!(asked(REFUSALS_MAX), None, "there is no room for more");
        let other = PeerCertificate { serial: 2.into(), ..certificate() };
        assert_eq!(questions.refusal(&node(0), &other, &known()), None, "another certificate");
        let joined = (Some(Entry::default()), None);
        assert_eq!(questions.refusal(&node(0), &certificate(), &joined), None, "its record has changed");
        let listed = (None, Some(Some("u1".to_owned())));
        assert_eq!(questions.refusal(&node(0), &certificate(), &listed), None, "its Node has changed");
        tokio::time::advance(REFUSAL_LIFE).await;
        assert_eq!(asked(0), None);
        questions.refused(&node(REFUSALS_MAX), &certificate(), Denied::Unknown, known());
        assert_eq!(asked(REFUSALS_MAX), Some(Denied::Unknown), "those that are over made room");
    }

    #[tokio::test]
    async fn waiting_callers_of_one_name_are_bounded_and_forgotten() {
        let questions = Questions::default();
        let turns: Vec<_> =
            (0..=WAITING_MAX).map(|_| questions.turn(&node(1)).expect("there is room")).collect();
        assert!(matches!(questions.turn(&node(1)), Err(IdentityError::Busy)));
        assert!(questions.turn(&node(2)).is_ok(), "another name");
        drop(turns);
        assert!(questions.turns.lock().is_empty());
    }
}
