//! What the hub takes in memory, and how much of it are objects of the embedded server: those have a bound of their own, the share
//! of their writer.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use http::Request;

use super::peer::Hub;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Part of the store that a node may fill, and part of that by which marks of deletions may exceed it (`docs/security.md`).
const NODE_SHARE: u64 = 16;
const DELETION_RESERVE: u64 = 16;

/// What the embedded server's store has, in KiB. Nothing where there is another API server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stored {
    /// Bodies of objects and of what they were before, as they are in memory.
    resident: u64,
    /// Objects as their bound counts them.
    size: u64,
    /// That bound.
    limit: u64,
}

/// What became of it in one attack, in KiB.
#[derive(Clone, Copy)]
pub(crate) struct Growth {
    /// Of the process, without what was stored meanwhile.
    pub(crate) beyond: u64,
    /// Of the objects, as their bound counts them.
    pub(crate) stored: u64,
    /// Of these, what one node may make.
    pub(crate) share: u64,
}

/// Looks at the hub again and again.
pub(crate) struct Watch<'a> {
    hub: &'a Hub,
    begin: Stored,
    stored: Cell<Stored>,
    /// The process without the store's bodies: first, and highest.
    before: u64,
    highest: Cell<u64>,
    size: Cell<u64>,
}

impl<'a> Watch<'a> {
    pub(crate) async fn begin(hub: &'a Hub) -> Result<Self> {
        let begin = hub.stored().await?;
        let before = hub.resident()?.saturating_sub(begin.resident);
        let (highest, size) = (Cell::new(before), Cell::new(begin.size));
        Ok(Self { hub, begin, stored: Cell::new(begin), before, highest, size })
    }

    /// Ends when nothing can be seen any more, with the reason. The store is asked first, and asked beside: what it says is older than what the process takes, so
    /// that growth is never taken for the store's too early.
    pub(crate) async fn run(&self) -> Error {
        let asking = async {
            loop {
                // One that does not answer while it is attacked says nothing new.
                if let Ok(now) = self.hub.stored().await {
                    self.stored.set(now);
                    self.size.set(self.size.get().max(now.size));
                }
                tokio::time::sleep(INTERVAL).await;
            }
        };
        let looking = async {
            loop {
                if let Err(error) = self.look() {
                    return error;
                }
                tokio::time::sleep(INTERVAL).await;
            }
        };
        tokio::select! {
            ended = looking => ended,
            never = asking => never,
        }
    }

    fn look(&self) -> Result<()> {
        let now = self.hub.resident()?.saturating_sub(self.stored.get().resident);
        self.highest.set(self.highest.get().max(now));
        Ok(())
    }

    pub(crate) fn end(&self) -> Result<Growth> {
        self.look()?;
        let share = self.begin.limit / NODE_SHARE;
        Ok(Growth {
            beyond: self.highest.get() - self.before,
            stored: self.size.get() - self.begin.size,
            share: share + share / DELETION_RESERVE,
        })
    }
}

impl Hub {
    /// Memory of cloudcore, in KiB.
    pub(crate) fn resident(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process))
            .context("cloudcore has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
    }

    async fn stored(&self) -> Result<Stored> {
        let Some(client) = &self.embedded else { return Ok(Stored::default()) };
        let asking = client.request_text(Request::get("/metrics").body(Vec::new())?);
        let text = tokio::time::timeout(Duration::from_secs(1), asking).await??;
        let kibibytes = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = value.with_context(|| format!("no metric {name}"))?;
            anyhow::Ok(value.trim().parse::<u64>()? / 1024)
        };
        Ok(Stored {
            resident: kibibytes("apiserver_storage_resident_bytes")?
                + kibibytes("apiserver_watch_history_resident_bytes")?,
            size: kibibytes("apiserver_storage_size_bytes")?,
            limit: kibibytes("apiserver_storage_size_limit_bytes")?,
        })
    }
}
