//! Drain: stop accepting work, finish the work already accepted, then end (`docs/operations.md`).
//!
//! A [`Trigger`] starts the drain, every task that must notice it holds a [`Drain`], and work that must be finished
//! holds a [`DrainBlocker`]. Starting the drain a second time aborts it; a deadline bounds the wait.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Creates a drain.
///
/// `grace` is how long [`Trigger::finished`] waits for blockers once the drain has started.
#[must_use]
pub fn channel(grace: Duration) -> (Trigger, Drain) {
    let (phase, _) = watch::channel(DrainPhase::Running);
    let (blockers, _) = watch::channel(0);
    let shared = Arc::new(Shared { phase, blockers, grace });
    (Trigger { shared: Arc::clone(&shared) }, Drain { shared })
}

/// The side that starts a drain. Clones start the same one.
#[derive(Debug, Clone)]
pub struct Trigger {
    shared: Arc<Shared>,
}

impl Trigger {
    /// Starts the drain; if it has already started, aborts it.
    pub fn start(&self) {
        let deadline = Instant::now() + self.shared.grace;
        self.shared.phase.send_modify(|phase| {
            *phase = match *phase {
                DrainPhase::Running => DrainPhase::Draining { deadline },
                DrainPhase::Draining { .. } | DrainPhase::Aborted => DrainPhase::Aborted,
            };
        });
    }

    /// Ends the wait for blockers at once.
    pub fn abort(&self) {
        self.shared.phase.send_replace(DrainPhase::Aborted);
    }

    /// Waits until a drain has started and every [`DrainBlocker`] is gone, the deadline has passed, or the
    /// drain was aborted.
    pub async fn finished(&self) -> DrainOutcome {
        let drain = Drain { shared: Arc::clone(&self.shared) };
        drain.started().await;
        let mut blockers = self.shared.blockers.subscribe();
        let released = blockers.wait_for(|count| *count == 0);
        tokio::select! {
            biased;
            () = drain.aborted() => DrainOutcome::Aborted,
            // An error would mean that the sender is gone; it lives in `self.shared`.
            _ = released => DrainOutcome::Complete,
            () = drain.deadline_passed() => DrainOutcome::DeadlinePassed,
        }
    }
}

/// The side that notices a drain. Cheap to clone; holding one delays nothing.
#[derive(Debug, Clone)]
pub struct Drain {
    shared: Arc<Shared>,
}

impl Drain {
    /// A drain that never starts, for tests and tools without a shutdown of their own.
    #[must_use]
    pub fn never() -> Self {
        channel(Duration::ZERO).1
    }

    /// Whether the drain has started.
    #[must_use]
    pub fn is_started(&self) -> bool {
        !matches!(*self.shared.phase.borrow(), DrainPhase::Running)
    }

    /// Completes when the drain has started. Cancel-safe.
    pub async fn started(&self) {
        self.reached(|phase| !matches!(phase, DrainPhase::Running)).await;
    }

    /// Completes when the drain is aborted: give up unfinished work. Cancel-safe.
    pub async fn aborted(&self) {
        self.reached(|phase| matches!(phase, DrainPhase::Aborted)).await;
    }

    /// When unfinished work will be given up; `None` before the drain has started.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match *self.shared.phase.borrow() {
            DrainPhase::Draining { deadline } => Some(deadline),
            DrainPhase::Running | DrainPhase::Aborted => None,
        }
    }

    /// Completes when the drain's deadline has passed or it was aborted. Cancel-safe.
    pub async fn deadline_passed(&self) {
        self.started().await;
        match self.deadline() {
            Some(deadline) => tokio::select! {
                () = tokio::time::sleep_until(deadline) => {}
                () = self.aborted() => {}
            },
            None => self.aborted().await,
        }
    }

    /// Delays the end of the drain until the returned guard is dropped (or the deadline passes).
    #[must_use]
    pub fn block(&self) -> DrainBlocker {
        self.shared.blockers.send_modify(|count| *count += 1);
        DrainBlocker { shared: Arc::clone(&self.shared) }
    }

    /// Runs `work` until it is done or the drain starts. Returns `None` if the drain started first.
    pub async fn until_started<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.started() => None,
            done = work => Some(done),
        }
    }

    async fn reached(&self, condition: impl FnMut(&DrainPhase) -> bool) {
        let mut phase = self.shared.phase.subscribe();
        if phase.wait_for(condition).await.is_err() {
            // Unreachable while `self.shared` holds the sender. Never completing is the harmless choice.
            std::future::pending::<()>().await;
        }
    }
}

/// Work that a drain waits for: one connection, one unfinished write.
#[derive(Debug)]
pub struct DrainBlocker {
    shared: Arc<Shared>,
}

impl Drop for DrainBlocker {
    fn drop(&mut self) {
        self.shared.blockers.send_modify(|count| *count -= 1);
    }
}

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOutcome {
    /// All work was finished.
    Complete,
    /// Some work was not finished when the grace period ended.
    DeadlinePassed,
    /// A second signal or an abort came first.
    Aborted,
}

#[derive(Debug)]
struct Shared {
    phase: watch::Sender<DrainPhase>,
    blockers: watch::Sender<usize>,
    grace: Duration,
}

#[derive(Debug, Clone, Copy)]
enum DrainPhase {
    Running,
    Draining { deadline: Instant },
    Aborted,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn ends_when_the_last_blocker_is_dropped() {
        let (trigger, drain) = channel(GRACE);
        let (first, second) = (drain.block(), drain.block());
        trigger.start();
        assert!(drain.is_started());
        let finished = tokio::spawn({
            let trigger = trigger.clone();
            async move { trigger.finished().await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!finished.is_finished(), "one blocker is left");
        drop(second);
        assert_eq!(finished.await.unwrap(), DrainOutcome::Complete);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_blocker_is_given_up_at_the_deadline() {
        let (trigger, drain) = channel(GRACE);
        let _stuck = drain.block();
        let begin = Instant::now();
        trigger.start();
        assert_eq!(trigger.finished().await, DrainOutcome::DeadlinePassed);
        assert_eq!(begin.elapsed().as_secs(), GRACE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_start_aborts() {
        let (trigger, drain) = channel(GRACE);
        let _stuck = drain.block();
        let begin = Instant::now();
        trigger.start();
        trigger.start();
        drain.aborted().await;
        drain.deadline_passed().await;
        assert_eq!(trigger.finished().await, DrainOutcome::Aborted);
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn work_races_with_the_start() {
        let (trigger, drain) = channel(GRACE);
        assert_eq!(drain.until_started(async { 7 }).await, Some(7));
        trigger.start();
        assert_eq!(drain.until_started(async { 7 }).await, None);
        assert!(drain.deadline().is_some());
    }
}
