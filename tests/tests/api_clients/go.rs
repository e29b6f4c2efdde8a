//! Informers of client-go.

use std::path::Path;

use anyhow::{Context, Result};
use tombolo_tests::informers::{Followed, Informers};

use crate::writes::RESOURCES;
use crate::{Held, SELECTORS};

pub(crate) struct GoClients(Informers);

impl GoClients {
    /// Starts this many informers. With `streaming`, the watch begins with the list (`WatchListClient` of client-go).
    pub(crate) fn start(program: &Path, kubeconfig: &Path, count: usize, streaming: bool) -> Result<Self> {
        let followed = Followed { count, resources: &RESOURCES, selectors: &SELECTORS, streaming };
        Ok(Self(Informers::start(program, kubeconfig, followed)?))
    }

    /// Returns what every informer holds.
    pub(crate) fn held(&mut self) -> Result<Vec<Held>> {
        let known = |names: &[&'static str], text: &str| names.iter().copied().find(|name| *name == text);
        let held = self.0.held()?.into_iter().map(|one| {
            Ok(Held {
                watcher: format!("client-go {}", one.client),
                resource: known(&RESOURCES, &one.resource).context("a resource that was not requested")?,
                selector: known(&SELECTORS, &one.selector).context("a selector that was not given")?,
                objects: one.objects,
            })
        });
        held.collect()
    }
}
