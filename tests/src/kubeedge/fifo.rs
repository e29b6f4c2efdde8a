//! The queue between socket and hub.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Capacity of the queue (docs/reference/kubeedge.md#websocket).
pub(super) const FIFO_MAX: usize = 100;

/// Keeps the newest messages: a full queue drops its oldest.
#[derive(Default)]
pub(super) struct Fifo {
    waiting: Mutex<VecDeque<String>>,
    filled: Notify,
}

impl Fifo {
    /// Appends a message. True when the oldest message was dropped for it.
    pub(super) fn push(&self, message: String) -> bool {
        let mut waiting = self.waiting.lock();
        let full = waiting.len() == FIFO_MAX;
        if full {
            waiting.pop_front();
        }
        waiting.push_back(message);
        self.filled.notify_one();
        full
    }

    /// Waits for the oldest message. Only one task may wait at a time.
    pub(super) async fn pop(&self) -> String {
        loop {
            if let Some(message) = self.waiting.lock().pop_front() {
                return message;
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_is_dropped_when_the_queue_is_full() {
        let fifo = Fifo::default();
        let dropped: Vec<usize> = (0..FIFO_MAX + 2).filter(|number| fifo.push(number.to_string())).collect();
        assert_eq!(dropped, [FIFO_MAX, FIFO_MAX + 1]);
        assert_eq!(fifo.pop().await, "2");
    }
}
