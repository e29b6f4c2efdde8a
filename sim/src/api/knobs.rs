//! The faults of a model, as a plan sets them. Every change takes effect at once, for open watches too.

use std::time::Duration;

use super::ModelApi;
use super::faults::{CallFault, FaultId, FaultRate, FaultScope, WatchFault};

impl ModelApi {
    /// Calls go wrong from now on. The faults of one call occur in the order in which they were set.
    #[must_use = "the fault stays until it is lifted"]
    pub fn fail(&self, scope: FaultScope, fault: CallFault, rate: FaultRate) -> FaultId {
        self.model.change(|state| state.faults.add_call(scope, fault, rate))
    }

    /// Watches go wrong from now on, those that are open and those that open later.
    #[must_use = "the fault stays until it is lifted"]
    pub fn break_watches(&self, scope: FaultScope, fault: WatchFault) -> FaultId {
        self.model.change(|state| state.faults.add_watch(scope, fault))
    }

    /// Watches, and reads from the watch cache, show everything so much later. Of several lags the longest counts.
    #[must_use = "the fault stays until it is lifted"]
    pub fn lag(&self, scope: FaultScope, lag: Duration) -> FaultId {
        self.model.change(|state| state.faults.add_lag(scope, lag))
    }

    /// The watches that are open now go wrong, once.
    pub fn strike(&self, scope: FaultScope, fault: WatchFault) {
        self.model.change(|state| state.faults.strike(scope, fault));
    }

    /// Ends a fault.
    pub fn lift(&self, id: FaultId) {
        self.model.change(|state| state.faults.lift(id));
    }

    /// Ends all faults of calls and watches, and all lags.
    pub fn lift_all(&self) {
        self.model.change(|state| state.faults.lift_all());
    }

    /// The server is down for so long, and then starts again: all connections end, and the watch cache begins anew.
    pub fn restart(&self, down: Duration) {
        self.model.change(|state| {
            state.boots += 1;
            state.down_until = state.clock.elapsed() + down;
            state.storage.restart_cache();
        });
    }

    /// Restores a backup: the state of an earlier revision, with its UIDs and revisions. All connections end. False
    /// when there is no such revision.
    #[must_use]
    pub fn restore(&self, revision: u64) -> bool {
        self.model.change(|state| state.restore(revision))
    }

    /// Forgets the history up to now: older lists and watches answer 410.
    pub fn compact(&self) {
        self.model.change(|state| state.storage.compact());
    }

    /// The Node authorizer learns of bound pods so much later.
    pub fn authorizer_lag(&self, lag: Duration) {
        self.model.change(|state| state.authorizer_lag = lag);
    }

    /// Moves the server's wall clock by so many seconds; negative is back.
    pub fn jump(&self, seconds: i64) {
        self.model.change(|state| state.clock.skew += seconds);
    }
}
