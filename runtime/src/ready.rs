//! Readiness: what a process still waits for before it can serve.
//!
//! A component takes a guard when it is built and drops it when it can serve. A guard that is lost in an error path is
//! dropped too, but then the process ends with that error.

use std::sync::Arc;

use tokio::sync::watch;

/// The set of things that are not ready yet. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    pending: Arc<watch::Sender<Vec<Arc<str>>>>,
}

impl Readiness {
    /// A process that waits for nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds something to wait for, named in an operator's terms ("node watch").
    #[must_use = "dropping the guard says that the thing is ready"]
    pub fn wait_for(&self, name: &str) -> ReadyGuard {
        let name: Arc<str> = name.into();
        self.pending.send_modify(|pending| pending.push(Arc::clone(&name)));
        ReadyGuard { readiness: self.clone(), name }
    }

    /// Whether nothing is pending.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// What is pending, oldest first.
    #[must_use]
    pub fn pending(&self) -> Vec<Arc<str>> {
        self.pending.borrow().clone()
    }

    /// Completes when nothing is pending. Cancel-safe.
    pub async fn ready(&self) {
        let mut pending = self.pending.subscribe();
        // An error would mean that the sender was dropped; `self` holds it.
        let _ = pending.wait_for(Vec::is_empty).await;
    }
}

/// Something that is not ready until this is dropped.
#[derive(Debug)]
pub struct ReadyGuard {
    readiness: Readiness,
    name: Arc<str>,
}

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        let mut left = 0;
        self.readiness.pending.send_modify(|pending| {
            // Two guards may share a name: remove exactly this one.
            if let Some(at) = pending.iter().position(|name| Arc::ptr_eq(name, &self.name)) {
                pending.remove(at);
            }
            left = pending.len();
        });
        tracing::info!(ready = &*self.name, still_pending = left, "component is ready");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(readiness: &Readiness) -> Vec<String> {
        readiness.pending().iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn names_pending_components_until_the_last_guard_is_dropped() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let listener = readiness.wait_for("hub listener");
        let first = readiness.wait_for("watch");
        let second = readiness.wait_for("watch");
        assert_eq!(names(&readiness), ["hub listener", "watch", "watch"]);
        drop(second);
        drop(listener);
        assert_eq!(names(&readiness), ["watch"]);
        let waiting = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.ready().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        assert!(readiness.is_ready());
    }
}
