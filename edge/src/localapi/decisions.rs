//! Decisions of the cluster, kept for use without a cloud connection. A client can cause an unlimited number of
//! decisions, so all clients have equal shares of the kept ones, and decisions that arrive together become one disk
//! write.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::fair::Fair;
use crate::store::{CachedReply, Question, Store};

/// Decisions that wait to be written, at most. When there are more, the oldest one of the sender with most of them is
/// dropped.
const WAITING_MAX: usize = 256;

/// Age in seconds after which a kept decision no longer applies: a week.
pub(super) const DECISION_AGE_MAX: u64 = 7 * 86_400;

/// Keeps decisions.
pub(super) struct Decisions {
    store: Store,
    waiting: Mutex<Fair<String, Question, CachedReply>>,
    /// Notified when a decision waits to be written.
    news: Notify,
}

impl Decisions {
    pub(super) fn new(store: Store) -> Arc<Self> {
        Arc::new(Self { store, waiting: Mutex::new(Fair::new(WAITING_MAX)), news: Notify::new() })
    }

    /// Keeps a decision for a sender.
    pub(super) fn keep(&self, sender: String, question: Question, answer: CachedReply) {
        self.waiting.lock().insert(sender, question, 1, answer);
        self.news.notify_one();
    }

    /// The last decision about a question.
    pub(super) fn last(&self, question: &Question) -> Option<CachedReply> {
        let waiting = self.waiting.lock().get(question).cloned();
        waiting.or_else(|| self.store.answer(question).ok().flatten())
    }

    /// Writes waiting decisions until the agent stops.
    pub(super) async fn write(self: Arc<Self>, stop: CancellationToken) {
        let moments = async {
            loop {
                self.news.notified().await;
                // Decisions that arrive during a write are written by the next one.
                self.flush().await;
            }
        };
        stop.run_until_cancelled(moments).await;
        self.flush().await;
    }

    async fn flush(&self) {
        let cloned = |(question, answer): (&Question, &CachedReply)| (question.clone(), answer.clone());
        let waiting: Vec<_> = self.waiting.lock().iter().map(cloned).collect();
        if waiting.is_empty() {
            return;
        }
        if let Err(error) = self.store.keep_answers(waiting.clone()).await {
            warn!(%error, "cannot keep decisions for use without a cloud connection");
        }
        // They are removed only now, so that they can be read here until they are in the store. Newer answers wait for
        // the next write.
        let mut left = self.waiting.lock();
        for (question, answer) in waiting {
            if left.get(&question) == Some(&answer) {
                left.remove(&question);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{FaultyDisk, LogBounds, Sealer};

    fn answer(given_at: u64) -> CachedReply {
        CachedReply { given_at, body: "yes".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_decisions_share_one_write_and_take_effect_at_once() {
        let disk = Box::new(FaultyDisk::new(1));
        let store = Store::open_on(disk, Sealer::new(&[1; 32]), LogBounds::default()).unwrap().store;
        let (decisions, stop) = (Decisions::new(store.clone()), CancellationToken::new());
        let writing = tokio::spawn(Arc::clone(&decisions).write(stop.clone()));
        let mut commits = store.commits();
        let before = *commits.borrow_and_update();
        let question = |number: u64| Question::of_sender("shop", &[&number.to_string()]);
        for number in 0..100 {
            decisions.keep("shop".to_owned(), question(number), answer(number));
            assert_eq!(decisions.last(&question(number)), Some(answer(number)));
        }
        assert_eq!(*commits.borrow_and_update(), before, "callers do not wait for the disk");
        commits.changed().await.unwrap();
        assert_eq!(*commits.borrow_and_update(), before + 1);
        assert!((0..100).all(|number| store.answer(&question(number)).unwrap() == Some(answer(number))));
        decisions.keep("shop".to_owned(), question(200), answer(200));
        stop.cancel();
        writing.await.unwrap();
        assert_eq!(store.answer(&question(200)).unwrap(), Some(answer(200)), "the last decision too");
        assert_eq!(*commits.borrow_and_update(), before + 2, "one write for each moment");
    }
}
