//! What happened in a run: each observation becomes a line of the trace and goes to the oracle at once.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::observation::{FaultScope, Millis, Observation, Seen};
use crate::oracle::{Oracle, Violation, trace};

/// The journal of a run. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    start: Instant,
    violated: CancellationToken,
    pages: Arc<Mutex<Pages>>,
}

#[derive(Debug)]
struct Pages {
    oracle: Oracle,
    /// `None` when nobody wants a trace.
    trace: Option<Vec<String>>,
    violations: Vec<Violation>,
    /// Number of observations.
    observations: u64,
}

impl Journal {
    /// An empty journal, which begins now.
    #[must_use]
    pub(crate) fn new(oracle: Oracle, with_trace: bool) -> Self {
        let trace = with_trace.then(Vec::new);
        let pages = Pages { oracle, trace, violations: Vec::new(), observations: 0 };
        let violated = CancellationToken::new();
        Self { start: Instant::now(), violated, pages: Arc::new(Mutex::new(pages)) }
    }

    /// Time since the beginning.
    #[must_use]
    pub(crate) fn now(&self) -> Millis {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The moment at this time.
    #[must_use]
    pub(crate) fn moment(&self, at: Millis) -> Instant {
        self.start + std::time::Duration::from_millis(at)
    }

    /// Enters an observation. After the first violation nothing is entered any more.
    pub(crate) fn see(&self, seen: Seen) {
        let observation = Observation { at: self.now(), seen };
        let mut pages = self.pages.lock();
        if !pages.violations.is_empty() {
            return;
        }
        pages.observations += 1;
        if let Some(trace) = &mut pages.trace {
            trace.push(trace::line(&observation));
        }
        let found = pages.oracle.observe(&observation);
        if !found.is_empty() {
            pages.violations = found;
            self.violated.cancel();
        }
    }

    /// Enters a defect that no rule is about: a program of the product has failed.
    pub(crate) fn defect(&self, seen: &str) {
        let (at, node, expected) = (self.now(), String::new(), "that it goes on".to_owned());
        let defect = Violation { rule: "program", at, node, object: None, seen: seen.to_owned(), expected };
        let mut pages = self.pages.lock();
        if pages.violations.is_empty() {
            pages.violations.push(defect);
            self.violated.cancel();
        }
    }

    /// Enters a line about something else.
    pub(crate) fn note(&self, what: &dyn fmt::Display) {
        let at = self.now();
        let mut pages = self.pages.lock();
        if pages.violations.is_empty()
            && let Some(trace) = &mut pages.trace
        {
            trace.push(trace::time_and(at, what));
        }
    }

    /// A fault begins or is over.
    pub(crate) fn fault(&self, scope: &FaultScope, begins: bool) {
        let scope = scope.clone();
        self.see(if begins { Seen::FaultBegan { scope } } else { Seen::FaultOver { scope } });
    }

    /// Whether everything has come that has to come when the faults have ended.
    #[must_use]
    pub(crate) fn is_satisfied(&self) -> bool {
        self.pages.lock().oracle.is_satisfied()
    }

    /// Completes with the first violation.
    pub(crate) async fn violated(&self) {
        self.violated.cancelled().await;
    }

    /// Everything that was entered.
    #[must_use]
    pub(crate) fn close(&self) -> (Vec<String>, Vec<Violation>, u64) {
        let mut pages = self.pages.lock();
        let trace = pages.trace.take().unwrap_or_default();
        (trace, std::mem::take(&mut pages.violations), pages.observations)
    }
}
