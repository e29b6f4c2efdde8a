//! Shares one request among many concurrent callers: it is made once, and all callers that wait get the answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Default time between an answer and the next request. Callers that arrive meanwhile share the next one.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Which answer a caller accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// An answer that arrived less than this time ago.
    Younger(Duration),
    /// An answer to a request that was made after the caller arrived.
    New,
}

/// Origin of an answer.
#[derive(Debug)]
pub(crate) enum Got<A, R> {
    /// Another caller's request brought it.
    Common(A),
    /// The outcome of the caller's own request.
    Own(R),
}

/// A request, and its last answer that was kept.
#[derive(Debug)]
pub(crate) struct Common<A> {
    /// Time between an answer and the next request for callers that want a [`Wanted::New`] one.
    pause: Duration,
    /// Number of requests so far.
    asked: AtomicU64,
    /// Locked during a request, so that only one is made at a time.
    last: Mutex<Last<A>>,
}

#[derive(Debug)]
struct Last<A> {
    /// Number of the request that brought the answer.
    number: u64,
    answer: Option<(Instant, A)>,
}

impl<A> Default for Common<A> {
    fn default() -> Self {
        Self::with_pause(PAUSE)
    }
}

impl<A> Common<A> {
    /// A request that is repeated after this time at the earliest.
    pub(crate) fn with_pause(pause: Duration) -> Self {
        let last = Mutex::new(Last { number: 0, answer: None });
        Self { pause, asked: AtomicU64::new(0), last }
    }
}

impl<A: Clone> Common<A> {
    /// Returns another caller's answer, or the outcome of `ask`. The value that `keep` returns is shared with the other
    /// callers; without one, each of them asks.
    ///
    /// If a caller gives up during its request, the next waiting caller makes it.
    pub(crate) async fn ask<R, F: Future<Output = R>>(
        &self,
        wanted: Wanted,
        ask: impl FnOnce() -> F,
        keep: impl FnOnce(&R) -> Option<A>,
    ) -> Got<A, R> {
        let asked_before = self.asked.load(Ordering::SeqCst);
        let mut last = loop {
            let last = self.last.lock().await;
            let Some((since, answer)) = &last.answer else { break last };
            let good = match wanted {
                Wanted::Younger(age) => since.elapsed() < age,
                Wanted::New => last.number > asked_before,
            };
            if good {
                return Got::Common(answer.clone());
            }
            let next = *since + self.pause;
            if matches!(wanted, Wanted::Younger(_)) || next <= Instant::now() {
                break last;
            }
            // Callers for whom the present answer is good enough must not wait meanwhile.
            drop(last);
            tokio::time::sleep_until(next).await;
        };
        // Frees the memory of the old answer while the next one is read.
        last.answer = None;
        let number = self.asked.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        let outcome = ask().await;
        last.number = number;
        last.answer = keep(&outcome).map(|answer| (Instant::now(), answer));
        Got::Own(outcome)
    }

    /// The answer, if it is younger than this and no request is running.
    pub(super) fn younger(&self, age: Duration) -> Option<A> {
        let last = self.last.try_lock().ok()?;
        last.answer.as_ref().filter(|(since, _)| since.elapsed() < age).map(|(_, answer)| answer.clone())
    }

    /// Whether no request is running and no answer is younger than this.
    pub(super) fn is_idle(&self, age: Duration) -> bool {
        let younger = |since: &Instant| since.elapsed() < age;
        self.last.try_lock().is_ok_and(|last| !last.answer.as_ref().is_some_and(|(since, _)| younger(since)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::future::{join, join_all};

    use super::*;

    const FLIGHT: Duration = Duration::from_millis(20);

    /// The state that is asked about changes. Each request sees the state at the time of its arrival.
    #[derive(Default)]
    struct World {
        now: Cell<u64>,
        questions: Cell<usize>,
        common: Common<u64>,
    }

    impl World {
        async fn ask(&self, wanted: Wanted) -> u64 {
            let ask = || async {
                self.questions.set(self.questions.get() + 1);
                let seen = self.now.get();
                tokio::time::sleep(FLIGHT).await;
                seen
            };
            match self.common.ask(wanted, ask, |seen| Some(*seen)).await {
                Got::Common(seen) | Got::Own(seen) => seen,
            }
        }

        /// A caller that arrives after so many milliseconds must get the state of that time or a later one.
        async fn comes(&self, millis: u64) {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            let came = self.now.get();
            let seen = self.ask(Wanted::New).await;
            assert!(seen >= came, "after {millis} ms: {seen}, which was so before {came}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn caller_never_gets_an_answer_requested_before_its_call() {
        let world = World::default();
        let many = join_all((0..2000).map(|number| world.comes(number * 3 / 2)));
        let changes = async {
            for now in 1..3000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                world.now.set(now);
            }
        };
        join(many, changes).await;
        assert!(world.questions.get() <= 5, "{} questions in three seconds", world.questions.get());
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_request_does_not_block_waiting_callers() {
        let world = World::default();
        let begin = Instant::now();
        let gives_up = tokio::time::timeout(FLIGHT / 2, world.ask(Wanted::New));
        let (gave_up, _) = join(gives_up, join_all((0..9).map(|_| world.ask(Wanted::New)))).await;
        assert!(gave_up.is_err() && begin.elapsed() < 2 * FLIGHT);
        assert_eq!(world.questions.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn caller_that_accepts_an_older_answer_does_not_wait() {
        let world = World::default();
        world.ask(Wanted::New).await;
        world.now.set(1);
        let begin = Instant::now();
        let old = async { (world.ask(Wanted::Younger(2 * PAUSE)).await, begin.elapsed()) };
        let (new, (old, waited)) = join(world.ask(Wanted::New), old).await;
        assert_eq!((new, old, waited, world.questions.get()), (1, 0, Duration::ZERO, 2));
        tokio::time::advance(2 * PAUSE).await;
        assert!(world.common.is_idle(2 * PAUSE) && !world.common.is_idle(3 * PAUSE));
    }
}
