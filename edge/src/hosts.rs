//! The hosts file of uniform names, for the `hosts` plugin of CoreDNS (app-grid.md section 4).
//!
//! The agent owns the whole file. It is replaced in one step, only when its text changes, and left as it is while something
//! that decides is not known here: the last known names are right, an empty file would be a lie.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tombolo_apiserve::store::{Store, StoreError};
use tombolo_grid::{GridName, Hosts};
use tombolo_runtime::files;
use tracing::{info, warn};

use crate::fault::Fault;

mod follow;
mod names;

#[cfg(test)]
mod tests;

use follow::{Affected, Follower};
use names::Source;

/// Changes that come this soon after one another are published together.
const SETTLE: Duration = Duration::from_millis(100);

/// What the file is made of.
pub(crate) struct HostsParts {
    /// Where the file is.
    pub(crate) path: PathBuf,
    /// The node whose units' names it has.
    pub(crate) node: String,
    /// The cluster's domain.
    pub(crate) domain: String,
    /// How often everything is computed anew, and the file on the disk compared.
    pub(crate) period: Duration,
    /// Grids, nodes, Services and EndpointSlices.
    pub(crate) source: Arc<dyn Store>,
}

/// Writes the file until the agent stops.
pub(crate) async fn publish(parts: HostsParts) {
    let follower = Follower::new(Arc::clone(&parts.source));
    let source = Source { store: parts.source, me: parts.node };
    let hosts = Hosts::new(&parts.domain);
    let mut writer =
        Writer { path: parts.path, hosts, source, unknown: Fault::default(), unwritten: Fault::default() };
    writer.run(follower, parts.period).await;
}

struct Writer {
    path: PathBuf,
    /// What the file says; changed only after it was written.
    hosts: Hosts,
    source: Source,
    /// Something that decides is not known.
    unknown: Fault,
    /// The file cannot be written.
    unwritten: Fault,
}

impl Writer {
    async fn run(&mut self, mut follower: Follower, period: Duration) {
        let mut whole_at = Instant::now();
        loop {
            let mut affected = tokio::select! {
                affected = follower.changed() => affected,
                () = sleep_until(whole_at) => Affected::Everything,
            };
            let settled = Instant::now() + SETTLE;
            while let Ok(more) = tokio::time::timeout_at(settled, follower.changed()).await {
                affected.join(more);
            }
            match affected {
                Affected::Everything => {
                    self.everything();
                    whole_at = Instant::now() + period;
                }
                Affected::Services(services) => self.some(&services),
            }
        }
    }

    /// The whole file, from all grids.
    fn everything(&mut self) {
        let mut hosts = self.hosts.clone();
        let result = self.source.all().map(|names| {
            hosts.replace(names);
        });
        self.adopt(hosts, result, true);
    }

    /// The names of the grids that these Services govern.
    fn some(&mut self, services: &BTreeSet<(String, String)>) {
        let mut hosts = self.hosts.clone();
        let mut changed = false;
        let result = self.source.governed_by(services).map(|grids| {
            for (grid, names) in grids {
                changed |= hosts.set(grid, names);
            }
        });
        if changed || result.is_err() {
            self.adopt(hosts, result, false);
        }
    }

    fn adopt(&mut self, hosts: Hosts, result: Result<(), StoreError>, compare: bool) {
        match result {
            Ok(()) => {
                let _ = self.unknown.over();
                self.write(hosts, compare);
            }
            Err(error) => {
                if self.unknown.failed("unknown") {
                    info!(%error, path = %self.path.display(), "the hosts file stays as it is until everything is known");
                }
            }
        }
    }

    /// Writes the file when it does not say this already. `compare` looks at the file itself: others may have damaged it.
    fn write(&mut self, hosts: Hosts, compare: bool) {
        let text = hosts.text();
        let is_written = match compare {
            true => std::fs::read(&self.path).is_ok_and(|found| found == text.as_bytes()),
            false => text == self.hosts.text(),
        };
        let result = if is_written { Ok(()) } else { self.replace(&text) };
        match result {
            Ok(()) => {
                self.hosts = hosts;
                if let Some(time) = self.unwritten.over() {
                    info!(path = %self.path.display(), ?time, "the hosts file is written again");
                }
            }
            Err(error) => {
                if self.unwritten.failed(&error.to_string()) {
                    warn!(
                        path = %self.path.display(), %error,
                        "the hosts file cannot be written: uniform names are not up to date for CoreDNS; make its folder, \
                         or name another one in dns.hostsPath"
                    );
                }
            }
        }
    }

    fn replace(&self, text: &str) -> std::io::Result<()> {
        files::replace(&self.path, text.as_bytes(), files::PUBLIC)
    }
}

/// The name of a grid, as sources give it.
pub(super) fn grid_name(namespace: &str, name: &str) -> GridName {
    GridName { namespace: namespace.to_owned(), name: name.to_owned() }
}
