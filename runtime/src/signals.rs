//! Turns SIGINT and SIGTERM into a drain: the first signal starts it, the second aborts it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::drain::Trigger;

/// Registered signal handlers. Registration replaces the default action, so that a signal between start-up and
/// [`Signals::drive`] is kept instead of killing the process.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Registers for SIGINT and SIGTERM. Call once, in `main`, on a tokio runtime.
    ///
    /// # Errors
    /// The operating system refused the handlers.
    pub fn register() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Starts the drain at the first signal and aborts it at the second; returns after the second.
    pub async fn drive(mut self, trigger: Trigger) {
        let name = self.next().await;
        tracing::info!(signal = name, "draining; a second signal aborts");
        trigger.start();
        let name = self.next().await;
        tracing::warn!(signal = name, "aborting");
        trigger.abort();
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
