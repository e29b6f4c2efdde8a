//! Many watches of one namespace.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Connection;
use crate::target::MeasuredServer;

/// Watches that share one connection, as the watches of one client do.
const PER_CONNECTION: usize = 100;

const EVENT_WITHIN: Duration = Duration::from_secs(30);

/// Open watches.
pub(crate) struct Watchers {
    count: usize,
    seen: mpsc::UnboundedReceiver<Instant>,
    _readers: JoinSet<()>,
}

impl Watchers {
    /// Opens the watches. They have not received any event yet.
    pub(crate) async fn open(target: &impl MeasuredServer, path: &str, count: usize) -> Result<Self> {
        // Bounded by one entry per watch and event: each event is awaited before the next one is sent.
        let (sender, seen) = mpsc::unbounded_channel();
        let mut readers = JoinSet::new();
        let mut opened = 0;
        while opened < count {
            let connection = Connection::open(target).await?;
            for _ in 0..PER_CONNECTION.min(count - opened) {
                let answer = connection.send(Method::GET, path, Bytes::new()).await?;
                readers.spawn(read(answer.into_body(), sender.clone()));
                opened += 1;
            }
        }
        Ok(Self { count, seen, _readers: readers })
    }

    /// Waits until every watch has received one more event, and returns the durations since `begin`.
    pub(crate) async fn all_see_one(&mut self, begin: Instant) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(self.count);
        while times.len() < self.count {
            let seen = tokio::time::timeout(EVENT_WITHIN, self.seen.recv()).await;
            let seen =
                seen.with_context(|| format!("only {} of {} watches received it", times.len(), self.count))?;
            times.push(seen.context("every watch has ended")? - begin);
        }
        Ok(times)
    }

    /// Fails if a watch received more events than were awaited.
    pub(crate) fn nothing_more(&mut self) -> Result<()> {
        ensure!(self.seen.try_recv().is_err(), "a watch received an event twice");
        Ok(())
    }
}

/// Reports the arrival of every line.
async fn read(mut body: Incoming, seen: mpsc::UnboundedSender<Instant>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Some(data) = frame.data_ref() else { continue };
        for _ in data.iter().filter(|byte| **byte == b'\n') {
            let _ = seen.send(Instant::now());
        }
    }
}
