//! The hub's memory, and the part of it that the embedded server's objects take. Objects have a bound of their own: the
//! share of their writer.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use http::Request;

use super::peer::Hub;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(20);

/// KiB by which the store's bodies may change during a sample for the sample to count.
const STILL: u64 = 64;

/// Minimum number of samples that count; with fewer, the attack is not judged.
const LOOKS_MIN: u32 = 20;

/// Part of the store that a node may fill, and the part of that by which tombstones may exceed it (`docs/security.md`).
const NODE_SHARE: u64 = 16;
const DELETION_RESERVE: u64 = 16;

/// The contents of the embedded server's store, in KiB. Zero with another API server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stored {
    /// Memory of the bodies of objects and of their previous versions.
    resident: u64,
    /// Size of the objects, as the bound counts them.
    size: u64,
    /// The bound.
    limit: u64,
}

/// Growth during one attack, in KiB.
#[derive(Clone, Copy)]
pub(crate) struct Growth {
    /// Growth of the process, without what was stored meanwhile.
    pub(crate) beyond: u64,
    /// Growth of the objects, as the bound counts them.
    pub(crate) stored: u64,
    /// The part of the bound that one node may use.
    pub(crate) share: u64,
}

/// Samples the hub's memory repeatedly.
pub(crate) struct Watch<'a> {
    hub: &'a Hub,
    begin: Stored,
    /// Samples that counted.
    looks: Cell<u32>,
    /// Memory of the process without the store's bodies: first and highest value.
    before: u64,
    highest: Cell<u64>,
    size: Cell<u64>,
}

impl<'a> Watch<'a> {
    pub(crate) async fn begin(hub: &'a Hub) -> Result<Self> {
        let begin = hub.stored().await?;
        let before = hub.resident()?.saturating_sub(begin.resident);
        let (highest, size) = (Cell::new(before), Cell::new(begin.size));
        Ok(Self { hub, begin, looks: Cell::new(0), before, highest, size })
    }

    /// Runs until the memory cannot be read any more, and returns the reason.
    pub(crate) async fn run(&self) -> Error {
        loop {
            if let Err(error) = self.look().await {
                return error;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Samples the process between two readings of the store. If the store changed in between, its part of the process
    /// is unknown, and the sample does not count; nor does it count when the store does not answer.
    async fn look(&self) -> Result<()> {
        let Ok(first) = self.hub.stored().await else { return Ok(()) };
        let resident = self.hub.resident()?;
        let Ok(second) = self.hub.stored().await else { return Ok(()) };
        self.size.set(self.size.get().max(second.size));
        if first.resident.abs_diff(second.resident) <= STILL {
            self.looks.set(self.looks.get() + 1);
            self.highest.set(self.highest.get().max(resident.saturating_sub(first.resident)));
        }
        Ok(())
    }

    pub(crate) async fn end(&self) -> Result<Growth> {
        self.look().await?;
        ensure!(
            self.looks.get() >= LOOKS_MIN,
            "the store was unchanged in only {} samples",
            self.looks.get()
        );
        let share = self.begin.limit / NODE_SHARE;
        Ok(Growth {
            beyond: self.highest.get() - self.before,
            stored: self.size.get() - self.begin.size,
            share: share + share / DELETION_RESERVE,
        })
    }
}

impl Hub {
    /// Memory of cloudcore and of the embedded API server, in KiB.
    pub(crate) fn resident(&self) -> Result<u64> {
        self.processes.iter().map(|process| resident(*process)).sum()
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

fn resident(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))
        .context("a process of the hub has ended")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}
