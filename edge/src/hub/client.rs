//! The owner of the session: dials, drives the session, backs off.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tombolo_runtime::{Backoff, Drain};
use tracing::{debug, warn};

use super::client_parts::ClientParts;
use super::dial::Connection;
use super::driver::Driver;
use super::failure::SessionFailure;
use super::kubeedge::KubeEdgeDriver;
use super::session_end::Ended;
use super::{CallError, Command, HubState};
use crate::fault::Fault;

/// Longest delay that a cloud's goodbye can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The owner of the session. One for each agent.
pub(crate) struct Client {
    parts: ClientParts,
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
