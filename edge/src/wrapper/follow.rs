//! Follows the source: it lists once, then applies every change, and lists again when history is lost.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tombolo_apicore::history::{Change, ChangeStream};
use tombolo_apicore::memory::TICK_INTERVAL;
use tombolo_apicore::store::{Revision, Store, StoreError, Stored};
use tombolo_grid::OwnPods;
use tombolo_runtime::time::sleep_until;
use tracing::debug;

use super::WrapperParts;
use super::project::{Affected, Projector};
use super::projected_kind::ProjectedKind;
use super::room::Weights;
use super::view::View;
use crate::follow::{Brought, first};

/// Pause before the source is read again after a failure. It doubles up to [`RETRY_MAX`], so that kinds that are never
/// synced to this node do not cost processor time.
const RETRY_FIRST: Duration = Duration::from_millis(125);

/// Longest such pause.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How often the follower checks whether left-out namespaces fit again.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Owns the projection: the only task that changes what is shown.
pub(super) struct ProjectionFollower {
    source: Arc<dyn Store>,
    /// Of this node.
    address: watch::Receiver<Option<IpAddr>>,
    /// Of this node.
    pods: watch::Receiver<Arc<OwnPods>>,
    view: View,
    projector: Projector,
    followed: Vec<FollowedKind>,
}

struct FollowedKind {
    part: ProjectedKind,
    changes: Option<ChangeStream>,
    /// The source is not read again before this time.
    ask_at: Instant,
    /// The pause after the next failure.
    pause: Duration,
}

/// The objects of one part.
type Objects = Vec<Arc<Stored>>;

impl FollowedKind {
    fn put_off(&mut self) {
        self.ask_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }
}

impl ProjectionFollower {
    pub(super) fn new(parts: WrapperParts, view: View, projector: Projector) -> Self {
        let WrapperParts { source, address, pods, .. } = parts;
        let now = Instant::now();
        let followed = ProjectedKind::ALL.map(|part| FollowedKind {
            part,
            changes: None,
            ask_at: now,
            pause: RETRY_FIRST,
        });
        Self { source, address, pods, view, projector, followed: followed.into() }
    }

    /// Follows until `stop` is cancelled.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut tick = interval(TICK_INTERVAL);
        let mut look = interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let view = self.view.clone();
        loop {
            self.begin().await;
            let ask_at = self.unread().map(|followed| followed.ask_at).min();
            tokio::select! {
                () = stop.cancelled() => return,
                news = first(self.followed.iter_mut().map(|one| one.changes.as_mut())) => self.take(news).await,
                Ok(()) = self.address.changed() => self.lead().await,
                Ok(()) = self.pods.changed() => self.relocate().await,
                _ = look.tick(), if self.projector.is_crowded() => self.look_again().await,
                () = view.asked() => {}
                () = sleep_until(ask_at) => {}
                _ = tick.tick() => view.served().tick(std::time::Instant::now()),
            }
        }
    }

    /// Updates endpoints that lead to this node after its address has changed.
    async fn lead(&mut self) {
        let address = *self.address.borrow_and_update();
        let affected = self.projector.set_address(address);
        self.refresh(affected).await;
    }

    /// Updates endpoints of this node's pods after their addresses have changed.
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

    /// The parts that are wanted but not followed.
    fn unread(&self) -> impl Iterator<Item = &FollowedKind> {
        self.followed
            .iter()
            .filter(|followed| followed.changes.is_none() && self.view.is_wanted(followed.part))
    }

    /// Begins to follow the parts that are not followed. A part is opened only when all parts that it depends on are
    /// shown.
    async fn begin(&mut self) {
        let now = Instant::now();
        let due: Vec<ProjectedKind> =
            self.unread().filter(|one| one.ask_at <= now).map(|one| one.part).collect();
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

    async fn read(
        &mut self,
        part: ProjectedKind,
        affected: &mut Affected,
    ) -> Result<ChangeStream, StoreError> {
        let resource = part.resource();
        let (revision, items) = match self.take_all(part)? {
            (revision, Some(items)) => (revision, items),
            (_, None) => self.take_what_fits(part, affected).await?,
        };
        let changes = self.source.watch(&resource, revision)?;
        affected.extend(self.projector.reset(part, items).await);
        Ok(changes)
    }

    /// All objects of a part, and their revision. None if they do not fit beside the other parts; they are then never
    /// in memory together.
    fn take_all(&self, part: ProjectedKind) -> Result<(Revision, Option<Objects>), StoreError> {
        let (room, mut weights, mut items) = (self.projector.room_for(part), Weights::default(), Vec::new());
        let revision = self.source.each(&part.resource(), None, &mut |object| {
            if !self.projector.shows(object.key.namespace()) {
                return;
            }
            weights.add(&object);
            if weights.sum() <= room { items.push(object) } else { items = Vec::new() }
        })?;
        Ok((revision, Some(items).filter(|_| weights.sum() <= room)))
    }

    /// The objects of a part without the largest namespaces.
    async fn take_what_fits(
        &mut self,
        part: ProjectedKind,
        affected: &mut Affected,
    ) -> Result<(Revision, Objects), StoreError> {
        self.projector.exclude(self.weigh(), affected).await;
        let mut items = Vec::new();
        let revision = self.source.each(&part.resource(), None, &mut |object| {
            if self.projector.shows(object.key.namespace()) {
                items.push(object);
            }
        })?;
        Ok((revision, items))
    }

    /// The weight of each namespace in the source, as far as it is known.
    fn weigh(&self) -> Weights {
        let mut weights = Weights::default();
        for part in self.followed.iter().map(|one| one.part).filter(|part| self.view.is_wanted(*part)) {
            // A part that cannot be read now has no weight until it is read.
            let _ = self.source.each(&part.resource(), None, &mut |object| weights.add(&object));
        }
        weights
    }

    /// Checks whether there is room again for left-out namespaces.
    async fn look_again(&mut self) {
        let mut affected = Affected::new();
        if self.projector.judge(self.weigh(), &mut affected).await {
            for index in 0..self.followed.len() {
                self.lose(index, "left-out namespaces fit again");
                self.followed[index].ask_at = Instant::now();
            }
        }
        self.refresh(affected).await;
    }

    fn refused(&mut self, part: ProjectedKind, error: &StoreError) {
        self.followed[part.index()].put_off();
        // If the history expired between list and watch, the part is listed again; what is shown is still valid.
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
        // All kinds share one history, so changes are applied in the order of their revisions.
        batch.sort_by_key(|(_, change)| change.revision());
        let mut affected = Affected::new();
        for (part, change) in batch {
            self.projector.change(part, &change, &mut affected).await;
        }
        self.refresh(affected).await;
    }

    /// Takes the changes that a stream has ready.
    fn drain(&mut self, index: usize, batch: &mut Vec<(ProjectedKind, Arc<Change>)>) {
        let FollowedKind { part, changes, .. } = &mut self.followed[index];
        let Some(stream) = changes else { return };
        loop {
            match stream.poll_ready() {
                Ok(changes) if changes.is_empty() => return,
                Ok(changes) => batch.extend(changes.into_iter().map(|change| (*part, change))),
                Err(error) => return self.lose(index, &error.to_string()),
            }
        }
    }

    /// Drops a stream. The part stays as it is until it is read again.
    fn lose(&mut self, index: usize, why: &str) {
        let followed = &mut self.followed[index];
        debug!(kind = followed.part.names().2, why, "the wrapper reads all objects again");
        followed.changes = None;
        followed.put_off();
    }

    /// Closes and reads all parts again, because the source failed during a change and what is shown may be wrong.
    fn start_again(&mut self, error: &StoreError) {
        for index in 0..self.followed.len() {
            self.lose(index, "the source could not be read");
            self.view.close(self.followed[index].part, error.to_string());
        }
    }
}
