//! Values that nodes record in large numbers. The waiting task is woken only when enough values are there: the swarm
//! shares its processors with the hub that it measures.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Values that many nodes record and one task waits for.
#[derive(Debug)]
pub(super) struct Tally<T> {
    noted: Mutex<Noted<T>>,
    enough: Notify,
}

#[derive(Debug)]
struct Noted<T> {
    values: Vec<T>,
    wanted: usize,
}

impl<T> Default for Tally<T> {
    fn default() -> Self {
        let noted = Noted { values: Vec::new(), wanted: usize::MAX };
        Self { noted: Mutex::new(noted), enough: Notify::new() }
    }
}

impl<T> Tally<T> {
    /// Adds a value.
    pub(super) fn note(&self, value: T) {
        let mut noted = self.lock();
        noted.values.push(value);
        if noted.values.len() == noted.wanted {
            drop(noted);
            self.enough.notify_one();
        }
    }

    /// Completes when this many values are there. Cancel-safe; one task waits at a time.
    pub(super) async fn reach(&self, wanted: usize) {
        while !self.has(wanted) {
            self.enough.notified().await;
        }
    }

    /// Whether this many values are there; if not, the value that reaches the number wakes the waiting task.
    fn has(&self, wanted: usize) -> bool {
        let mut noted = self.lock();
        noted.wanted = wanted;
        noted.values.len() >= wanted
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.lock().values.len()
    }

    /// Takes all values out.
    pub(super) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.lock().values)
    }

    fn lock(&self) -> MutexGuard<'_, Noted<T>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Tally;

    #[tokio::test]
    async fn waiting_ends_with_the_last_wanted_value() {
        let tally = Arc::new(Tally::default());
        for round in 1..=2 {
            let waiting = tokio::spawn({
                let tally = Arc::clone(&tally);
                async move {
                    tally.reach(3).await;
                    tally.take()
                }
            });
            (1..=3).for_each(|value| tally.note(value * round));
            assert_eq!(waiting.await.unwrap(), [round, 2 * round, 3 * round]);
            assert_eq!(tally.len(), 0);
        }
    }
}
