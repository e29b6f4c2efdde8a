//! Which names a change concerns.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;
use tombolo_apiserve::history::{Change, ChangeStream};
use tombolo_apiserve::store::Store;
use tombolo_grid::Metadata;
use tombolo_grid::endpoints::SERVICE_NAME;

use super::names::Part;

/// How soon what is not known here is asked for again.
const RETRY: Duration = Duration::from_secs(1);

/// What must be computed anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Affected {
    /// All names.
    Everything,
    /// The names that these Services (namespace and name) govern.
    Services(BTreeSet<(String, String)>),
}

impl Affected {
    pub(super) fn join(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Services(own), Self::Services(others)) => own.extend(others),
            _ => *self = Self::Everything,
        }
    }
}

/// Follows the history of everything that decides.
pub(super) struct Follower {
    store: Arc<dyn Store>,
    streams: [Option<ChangeStream>; 4],
}

impl Follower {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, streams: [const { None }; 4] }
    }

    /// Waits for a change. Cancel-safe.
    pub(super) async fn changed(&mut self) -> Affected {
        loop {
            if self.begin() {
                return Affected::Everything;
            }
            let waiting = self.streams.iter_mut().zip(Part::ALL).filter_map(|(stream, part)| {
                let stream = stream.as_mut()?;
                Some(async move { (part, stream.next().await) }.boxed())
            });
            let waiting: Vec<_> = waiting.collect();
            let complete = waiting.len() == Part::ALL.len();
            let news = async {
                match waiting.is_empty() {
                    true => std::future::pending().await,
                    false => select_all(waiting).await.0,
                }
            };
            let (part, changes) = tokio::select! {
                news = news => news,
                () = tokio::time::sleep(RETRY), if !complete => continue,
            };
            match changes {
                Ok(Some(changes)) => return affected(part, &changes),
                // Overtaken, or no longer followed: read again.
                Ok(None) | Err(_) => {
                    if let Some(at) = Part::ALL.iter().position(|other| *other == part) {
                        self.streams[at] = None;
                    }
                }
            }
        }
    }

    /// Begins to follow what is not followed. Whether anything is followed that was not.
    fn begin(&mut self) -> bool {
        let mut begun = false;
        for (stream, part) in self.streams.iter_mut().zip(Part::ALL).filter(|(stream, _)| stream.is_none()) {
            *stream = self.store.watch(&part.resource(), self.store.revision()).ok();
            begun |= stream.is_some();
        }
        begun
    }
}

fn affected(part: Part, changes: &[Arc<Change>]) -> Affected {
    let of = |change: &Change| {
        let key = &change.object.key;
        match part {
            Part::Services => Some((key.namespace().to_owned(), key.name().to_owned())),
            Part::Slices => {
                let metadata = Metadata::of(&change.object.body).ok()?;
                Some((key.namespace().to_owned(), metadata.labels.get(SERVICE_NAME)?.clone()))
            }
            Part::Grids | Part::Nodes => None,
        }
    };
    match part {
        Part::Grids | Part::Nodes => Affected::Everything,
        Part::Services | Part::Slices => {
            // A slice that changes its Service concerns the old one too.
            let before = changes.iter().filter_map(|change| {
                let previous = change.previous.as_ref()?;
                let metadata = Metadata::of(&previous.body).ok()?;
                Some((previous.key.namespace().to_owned(), metadata.labels.get(SERVICE_NAME)?.clone()))
            });
            Affected::Services(changes.iter().filter_map(|change| of(change)).chain(before).collect())
        }
    }
}
