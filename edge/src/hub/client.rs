//! The owner of the session: dials, drives the session, backs off.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tombolo_link::Transport;
use tombolo_proto::frame::{Goodbye, GoodbyeReason};
use tombolo_proto::ids::NodeId;
use tombolo_proto::session::EdgeEvent;
use tombolo_runtime::{Backoff, BackoffConfig, Drain};
use tracing::{debug, warn};

use super::dial::{Connection, Dial};
use super::driver::Driver;
use super::failure::SessionFailure;
use super::kinds::KnownKinds;
use super::kubeedge::KubeEdgeDriver;
use super::{CallError, Command, HubState};
use crate::fault::Fault;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::subscriptions::Board;

/// Longest delay that a cloud's goodbye can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How long a session must last before it resets the back-off. Otherwise sessions that end soon would be repeated
/// without delay forever.
pub(super) const HELD_MIN: Duration = Duration::from_secs(5);

/// The parts of the owner.
pub(crate) struct ClientParts {
    pub(crate) node: NodeId,
    pub(crate) store: Store,
    pub(crate) board: Arc<Board>,
    pub(crate) dialer: Box<dyn Dial>,
    pub(crate) identity: watch::Receiver<Arc<Identity>>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) state: watch::Sender<HubState>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) kinds: KnownKinds,
    pub(crate) backoff: BackoffConfig,
    pub(crate) rng: StdRng,
    /// Distinguishes this process from another one with the same identity.
    pub(crate) instance: u64,
}

impl ClientParts {
    /// Records in metrics and state that a session has begun.
    pub(super) fn connected(&self, transport: Option<Transport>) {
        self.metrics.online.set(1);
        self.metrics.sessions.inc();
        self.state.send_modify(|state| {
            let (since, sessions) = (Some(Instant::now()), state.sessions.wrapping_add(1));
            *state = HubState { transport, since, sessions, ..HubState::default() };
        });
    }
}

/// The owner of the session. One for each agent.
pub(crate) struct Client {
    parts: ClientParts,
}

/// How a session ended.
pub(super) struct Ended {
    pub(super) why: String,
    /// The cloud had accepted the hello.
    pub(super) welcomed: bool,
    /// The session achieved something: see [`Achieved`].
    pub(super) achieved: bool,
    pub(super) retry_after: Duration,
}

/// Whether a session achieved something. An accepted hello does not count: the cloud also accepts the hello of an agent
/// whose store cannot commit, and that of a copy of this node's identity.
#[derive(Debug, Clone, Copy)]
pub(super) struct Achieved {
    began: Instant,
    /// Something that the cloud sent is on disk.
    stored: bool,
}

impl Achieved {
    /// Starts with nothing achieved.
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), stored: false }
    }

    /// Records whether the store wrote something that the cloud sent.
    pub(super) fn note(&mut self, stored: bool) {
        self.stored |= stored;
    }

    /// Whether the session achieved something, if it ends now.
    fn enough(self) -> bool {
        self.stored && self.began.elapsed() >= HELD_MIN
    }
}

/// The goodbye of a session that this side ends.
pub(super) fn draining(message: &str) -> Goodbye {
    let (reason, retry_after) = (GoodbyeReason::Draining, Duration::ZERO);
    Goodbye { reason, message: message.to_owned(), retry_after }
}

impl Ended {
    /// Prefers the reason of the session's goodbye over that of the link. `last` are the events that the session still
    /// has, which may contain a later goodbye.
    pub(super) fn of(
        goodbye: Option<Goodbye>,
        last: impl Iterator<Item = EdgeEvent>,
        result: Result<(), SessionFailure>,
        welcomed: bool,
        achieved: Achieved,
    ) -> Self {
        let closed = last.filter_map(|event| match event {
            EdgeEvent::Closed(goodbye) => Some(goodbye),
            _ => None,
        });
        let goodbye = closed.last().or(goodbye);
        // A replaced session does not count: another process has this node's identity, and both would reconnect for
        // ever.
        let replaced = goodbye.as_ref().is_some_and(|goodbye| goodbye.reason == GoodbyeReason::Replaced);
        let achieved = achieved.enough() && !replaced;
        let (why, retry_after) = match (goodbye, result) {
            (Some(goodbye), _) => (format!("{:?}: {}", goodbye.reason, goodbye.message), goodbye.retry_after),
            (None, Err(why)) => (why.to_string(), Duration::ZERO),
            (None, Ok(())) => ("the session ended".to_owned(), Duration::ZERO),
        };
        Self { why, welcomed, achieved, retry_after }
    }

    fn failed(why: &SessionFailure) -> Self {
        Self { why: why.to_string(), welcomed: false, achieved: false, retry_after: Duration::ZERO }
    }
}

impl Client {
    pub(crate) fn new(parts: ClientParts) -> Self {
        Self { parts }
    }

    /// Connects and reconnects until the drain starts.
    pub(crate) async fn run(mut self, drain: Drain) {
        let mut backoff = Backoff::new(self.parts.backoff);
        let mut fault = Fault::default();
        while !drain.is_started() {
            let ended = match self.connect(&drain).await {
                Some(Ok(connection)) => self.session(connection, &drain).await,
                Some(Err(why)) => Ended::failed(&why),
                None => return,
            };
            if drain.is_started() {
                return;
            }
            if ended.achieved {
                backoff.reset();
            }
            if ended.welcomed {
                // The session logged the end of the fault.
                let _ = fault.over();
            }
            let delay = backoff.next_delay(&mut self.parts.rng).max(ended.retry_after.min(RETRY_AFTER_MAX));
            if fault.failed(&ended.why) {
                warn!(why = %ended.why, retry_in = ?delay, "no connection to the cloud");
            } else {
                debug!(why = %ended.why, retry_in = ?delay, "still no connection to the cloud");
            }
            self.parts.state.send_modify(|state| {
                *state =
                    HubState { sessions: state.sessions, trouble: Some(ended.why), ..HubState::default() };
            });
            if !self.rest(delay, &drain).await {
                return;
            }
        }
    }

    /// Dials, and refuses requests meanwhile. Returns `None` when the drain starts.
    async fn connect(&mut self, drain: &Drain) -> Option<Result<Connection, SessionFailure>> {
        let identity = Arc::clone(&self.parts.identity.borrow_and_update());
        self.parts.metrics.dials.inc();
        let mut dialing = self.parts.dialer.dial(&identity);
        loop {
            tokio::select! {
                link = &mut dialing => return Some(link),
                () = drain.started() => return None,
                command = self.parts.commands.recv() => refuse(command?),
            }
        }
    }

    /// Waits before the next attempt; a renewed certificate ends the wait. Returns false when the agent stops.
    async fn rest(&mut self, delay: Duration, drain: &Drain) -> bool {
        let until = Instant::now() + delay;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return true,
                () = drain.started() => return false,
                changed = self.parts.identity.changed() => return changed.is_ok(),
                command = self.parts.commands.recv() => match command {
                    Some(command) => refuse(command),
                    None => return false,
                },
            }
        }
    }

    /// Drives one session to its end. Returns only after the store has finished the work of the session, because the
    /// next session's inventory must be complete.
    async fn session(&mut self, connection: Connection, drain: &Drain) -> Ended {
        match connection {
            Connection::Tombolo(link) => {
                let mut driver = match Driver::start(&self.parts, *link) {
                    Ok(driver) => driver,
                    Err(why) => return Ended::failed(&why),
                };
                let result = driver.run(&mut self.parts, drain).await;
                self.parts.metrics.online.set(0);
                driver.finish(result).await
            }
            Connection::KubeEdge(link) => {
                let mut driver = match KubeEdgeDriver::start(&self.parts, *link) {
                    Ok(driver) => driver,
                    Err(why) => return Ended::failed(&why),
                };
                let result = driver.run(&mut self.parts, drain).await;
                self.parts.metrics.online.set(0);
                driver.finish(result).await
            }
        }
    }
}

fn refuse(command: Command) {
    match command {
        Command::Request { reply, .. } => {
            reply.send(Err(CallError::Offline));
        }
        // The next session begins with a renewal.
        Command::RenewLease(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a session of this duration, with something stored or not, counts as achieved if it ends for this reason.
    async fn achieved(time: Duration, stored: bool, reason: GoodbyeReason) -> bool {
        let mut achieved = Achieved::begin();
        achieved.note(stored);
        achieved.note(false);
        tokio::time::advance(time).await;
        let goodbye = Goodbye { reason, message: String::new(), retry_after: Duration::ZERO };
        Ended::of(Some(goodbye), std::iter::empty(), Ok(()), true, achieved).achieved
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_achieves_something_by_what_it_stored_and_how_long_it_held() {
        let (short, other) = (HELD_MIN - Duration::from_millis(1), GoodbyeReason::Other);
        assert!(achieved(HELD_MIN, true, other).await);
        assert!(!achieved(short, true, other).await, "it might begin again at once for ever");
        assert!(!achieved(HELD_MIN, false, other).await, "a welcome is nothing");
        assert!(!achieved(HELD_MIN, true, GoodbyeReason::Replaced).await, "somebody else has this identity");
    }
}
