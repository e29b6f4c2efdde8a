//! Uniform names: the hosts file for the `hosts` plugin of CoreDNS (docs/reference/superedge.md#uniform-names), and the
//! same names for the DNS server of this agent.
//!
//! The agent owns the whole file. It replaces the file atomically, and only when the text changes. While an input is
//! unknown, it keeps the file with the last known names: an empty file would be wrong.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tombolo_apicore::store::{Store, StoreError};
use tombolo_grid::{GridName, Hosts, OwnPods};
use tombolo_runtime::files;
use tracing::{info, warn};

use crate::fault::Fault;

mod follow;
mod inputs;
mod names;

#[cfg(test)]
mod tests;

use follow::Follower;
use inputs::Affected;
use names::NameSource;

/// Changes that arrive within this time of the first one are published together.
const SETTLE: Duration = Duration::from_millis(100);

/// The inputs and outputs of the names.
pub(crate) struct HostsParts {
    /// Path of the hosts file; `None` for no file.
    pub(crate) path: Option<PathBuf>,
    /// Publishes the names; `None` until all inputs were known once.
    pub(crate) names: watch::Sender<Option<Arc<Hosts>>>,
    /// The node whose units the names belong to.
    pub(crate) node: String,
    /// The cluster's domain.
    pub(crate) domain: String,
    /// How often the file on disk is checked, and unknown inputs are requested again.
    pub(crate) period: Duration,
    /// Grids, nodes, Services and EndpointSlices.
    pub(crate) source: Arc<dyn Store>,
    /// Addresses of this node's pods.
    pub(crate) pods: watch::Receiver<Arc<OwnPods>>,
}

/// Writes the file and publishes the names until the agent stops.
pub(crate) async fn publish(parts: HostsParts) {
    let follower = Follower::new(Arc::clone(&parts.source));
    let source = NameSource::new(parts.source, parts.node, parts.pods);
    let file = parts.path.map(|path| HostsFile { path, written: None, unwritten: Fault::default() });
    let hosts = Arc::new(Hosts::new(&parts.domain));
    let mut publisher = HostsPublisher { hosts, names: parts.names, file, source, unknown: Fault::default() };
    publisher.run(follower, parts.period).await;
}

struct HostsPublisher {
    /// The last known names. All receivers share this copy.
    hosts: Arc<Hosts>,
    names: watch::Sender<Option<Arc<Hosts>>>,
    file: Option<HostsFile>,
    source: NameSource,
    /// An input is unknown.
    unknown: Fault,
}

impl HostsPublisher {
    async fn run(&mut self, mut follower: Follower, period: Duration) {
        let mut whole_at = Instant::now();
        loop {
            let mut affected = tokio::select! {
                happened = follower.changed() => self.source.take(happened),
                affected = self.source.moved() => affected,
                () = sleep_until(whole_at) => {
                    whole_at = Instant::now() + period;
                    self.look_again();
                    continue;
                }
            };
            let settled = Instant::now() + SETTLE;
            while let Ok(more) = tokio::time::timeout_at(settled, follower.changed()).await {
                affected.join(self.source.take(more));
            }
            match affected {
                Affected::Everything => self.everything(),
                Affected::Grids(grids) if grids.is_empty() => {}
                Affected::Grids(grids) => self.some(&grids),
            }
        }
    }

    /// Requests unknown inputs again, or else checks that the file on disk has the right text.
    fn look_again(&mut self) {
        if !self.source.is_known() {
            return self.everything();
        }
        if let Some(file) = &mut self.file {
            file.write(&self.hosts, true);
        }
    }

    /// Recomputes the names of all grids.
    fn everything(&mut self) {
        let mut hosts = Hosts::clone(&self.hosts);
        let result = self.source.all().map(|names| {
            hosts.replace(names);
        });
        self.adopt(hosts, result, true);
    }

    /// Recomputes the names of these grids.
    fn some(&mut self, grids: &BTreeSet<GridName>) {
        let mut hosts = Hosts::clone(&self.hosts);
        let mut changed = false;
        let result = self.source.of(grids).map(|grids| {
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
                self.hosts = Arc::new(hosts);
                self.names.send_if_modified(|published| {
                    let changed = published.as_ref() != Some(&self.hosts);
                    if changed {
                        *published = Some(Arc::clone(&self.hosts));
                    }
                    changed
                });
                if let Some(file) = &mut self.file {
                    file.write(&self.hosts, compare);
                }
            }
            Err(error) => {
                if self.unknown.failed("unknown") {
                    info!(%error, "uniform names stay unchanged until all their inputs are known");
                }
            }
        }
    }
}

struct HostsFile {
    path: PathBuf,
    /// The names that this agent wrote last.
    written: Option<Arc<Hosts>>,
    /// The file cannot be written.
    unwritten: Fault,
}

impl HostsFile {
    /// Writes the file if its content differs. `compare` reads the file itself, which another program may have changed.
    fn write(&mut self, hosts: &Arc<Hosts>, compare: bool) {
        let text = hosts.text();
        let is_written = match compare {
            true => says(&self.path, &text),
            false => self.written.as_ref() == Some(hosts),
        };
        let result =
            if is_written { Ok(()) } else { files::replace(&self.path, text.as_bytes(), files::PUBLIC) };
        match result {
            Ok(()) => {
                self.written = Some(Arc::clone(hosts));
                if let Some(time) = self.unwritten.over() {
                    info!(path = %self.path.display(), ?time, "the hosts file can be written again");
                }
            }
            Err(error) => {
                if self.unwritten.failed(&error.to_string()) {
                    warn!(
                        path = %self.path.display(), %error,
                        "the hosts file cannot be written: uniform names are outdated in CoreDNS; create its folder \
                         (then restart the unit under systemd), or set another path in dns.hostsPath"
                    );
                }
            }
        }
    }
}

/// Whether a file has this text. The path may also hold a file of any size, or something other than a file.
fn says(path: &Path, text: &str) -> bool {
    let fits = std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == text.len() as u64);
    fits && std::fs::read(path).is_ok_and(|found| found == text.as_bytes())
}
