//! Following the source: list once, then every change; again when its history is lost.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;
use tombolo_apiserve::history::{Change, ChangeStream};
use tombolo_apiserve::memory::TICK_INTERVAL;
use tombolo_apiserve::store::{Store, StoreError};
use tombolo_grid::OwnPods;
use tombolo_runtime::time::sleep_until;
use tracing::debug;

use super::WrapperParts;
use super::part::Part;
use super::project::{Affected, Projector};
use super::view::View;
use crate::follow::{Brought, first};

/// Pause before the source is asked again for what it could not say; it doubles up to [`RETRY_MAX`], because what this
/// node never hears of must not keep its processor awake.
const RETRY_FIRST: Duration = Duration::from_millis(125);

/// Longest such pause.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Owns the projection: the one task that changes what is shown.
pub(super) struct Follower {
    source: Arc<dyn Store>,
    /// Of this node.
    address: watch::Receiver<Option<IpAddr>>,
    /// Of this node.
    pods: watch::Receiver<Arc<OwnPods>>,
    view: View,
    projector: Projector,
    followed: Vec<Followed>,
}

struct Followed {
    part: Part,
    changes: Option<ChangeStream>,
    /// Not asked again before.
    ask_at: Instant,
    /// How long after the next failure.
    pause: Duration,
}

impl Followed {
    fn put_off(&mut self) {
        self.ask_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }
}

impl Follower {
    pub(super) fn new(parts: WrapperParts, view: View, projector: Projector) -> Self {
        let WrapperParts { source, address, pods, .. } = parts;
        let now = Instant::now();
        let followed =
            Part::ALL.map(|part| Followed { part, changes: None, ask_at: now, pause: RETRY_FIRST });
        Self { source, address, pods, view, projector, followed: followed.into() }
    }

    /// Follows until `stop` is cancelled.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut tick = interval(TICK_INTERVAL);
        let view = self.view.clone();
        loop {
            self.begin().await;
            let ask_at = self.unread().map(|followed| followed.ask_at).min();
            tokio::select! {
                () = stop.cancelled() => return,
                news = first(self.followed.iter_mut().map(|one| one.changes.as_mut())) => self.take(news).await,
                Ok(()) = self.address.changed() => self.lead().await,
                Ok(()) = self.pods.changed() => self.relocate().await,
                () = view.asked() => {}
                () = sleep_until(ask_at) => {}
                _ = tick.tick() => view.served().tick(std::time::Instant::now()),
            }
        }
    }

    /// Lets what leads to this node lead to its present address.
    async fn lead(&mut self) {
        let address = *self.address.borrow_and_update();
        let affected = self.projector.set_address(address);
        self.refresh(affected).await;
    }

    /// Lets endpoints of this node's pods be where those are now.
    async fn relocate(&mut self) {
        let pods = Arc::clone(&self.pods.borrow_and_update());
        let affected = self.projector.set_pods(pods);
        self.refresh(affected).await;
    }

    async fn refresh(&mut self, affected: Affected) {
        if let Err(error) = self.projector.refresh(affected).await {
            self.start_again(&error);
        }
    }

    /// What is wanted and not followed.
    fn unread(&self) -> impl Iterator<Item = &Followed> {
        self.followed
            .iter()
            .filter(|followed| followed.changes.is_none() && self.view.is_wanted(followed.part))
    }

    /// Begins to follow what is not followed. Nothing is opened before all that it depends on is shown.
    async fn begin(&mut self) {
        let now = Instant::now();
        let due: Vec<Part> = self.unread().filter(|one| one.ask_at <= now).map(|one| one.part).collect();
        if due.is_empty() {
            return;
        }
        let (mut affected, mut begun) = (Affected::new(), Vec::new());
        for part in due {
            match self.read(part, &mut affected).await {
                Ok(changes) => begun.push((part, changes)),
                Err(error) => self.refused(part, &error),
            }
        }
        if let Err(error) = self.projector.refresh(affected).await {
            return self.start_again(&error);
        }
        for (part, changes) in begun {
            let followed = &mut self.followed[part.index()];
            (followed.changes, followed.pause) = (Some(changes), RETRY_FIRST);
            self.view.open(part);
        }
    }

    async fn read(&mut self, part: Part, affected: &mut Affected) -> Result<ChangeStream, StoreError> {
        let resource = part.resource();
        let snapshot = self.source.list(&resource, None)?;
        let changes = self.source.watch(&resource, snapshot.revision)?;
        affected.extend(self.projector.reset(part, snapshot.items).await);
        Ok(changes)
    }

    fn refused(&mut self, part: Part, error: &StoreError) {
        self.followed[part.index()].put_off();
        // A history that was overtaken between list and watch is read again; what is shown is as true as before.
        if !matches!(error, StoreError::Expired { .. }) {
            self.view.close(part, error.to_string());
        }
    }

    async fn take(&mut self, (index, news): Brought) {
        let mut batch = Vec::new();
        match news {
            Ok(Some(changes)) => {
                batch.extend(changes.into_iter().map(|change| (self.followed[index].part, change)));
            }
            Ok(None) => self.lose(index, "its history has ended"),
            Err(error) => self.lose(index, &error.to_string()),
        }
        for index in 0..self.followed.len() {
            self.drain(index, &mut batch);
        }
        // All kinds share one history: what happened first is shown first.
        batch.sort_by_key(|(_, change)| change.revision());
        let mut affected = Affected::new();
        for (part, change) in batch {
            self.projector.change(part, &change, &mut affected).await;
        }
        self.refresh(affected).await;
    }

    /// Takes what a stream has now.
    fn drain(&mut self, index: usize, batch: &mut Vec<(Part, Arc<Change>)>) {
        let Followed { part, changes, .. } = &mut self.followed[index];
        let Some(stream) = changes else { return };
        loop {
            match stream.poll_ready() {
                Ok(changes) if changes.is_empty() => return,
                Ok(changes) => batch.extend(changes.into_iter().map(|change| (*part, change))),
                Err(error) => return self.lose(index, &error.to_string()),
            }
        }
    }

    /// A stream is gone: the part is shown as it was until it is read again.
    fn lose(&mut self, index: usize, why: &str) {
        let followed = &mut self.followed[index];
        debug!(kind = followed.part.names().2, why, "the wrapper reads all objects again");
        followed.changes = None;
        followed.put_off();
    }

    /// The source could not be asked in the middle of a change: what is shown may be wrong.
    fn start_again(&mut self, error: &StoreError) {
        for index in 0..self.followed.len() {
            self.lose(index, "the source could not be read");
            self.view.close(self.followed[index].part, error.to_string());
        }
    }
}
