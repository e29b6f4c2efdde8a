//! Keeping the zone equal to what this node knows.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tombolo_apiserve::history::{Change, ChangeKind};
use tombolo_apiserve::store::{Snapshot, Stored};
use tombolo_grid::dns::{Part, Service, Slice, Zone};
use tombolo_grid::endpoints::service_of;
use tombolo_grid::{BodyError, Carrier, Hosts, Metadata, ServiceName};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::warn;

use super::{DnsParts, Published, serial};
use crate::follow::{Following, News};

/// Changes that come this soon after one another are published together: each publication copies a part of the index.
const SETTLE: Duration = Duration::from_millis(50);

const PARTS: [Part; 3] = [Part::Namespaces, Part::Services, Part::Slices];

fn resource(part: Part) -> Resource {
    match part {
        Part::Namespaces => Resource::new("", "v1", "namespaces"),
        Part::Services => Resource::new("", "v1", "services"),
        Part::Slices => Resource::new("discovery.k8s.io", "v1", "endpointslices"),
    }
}

/// The one task that changes the zone.
pub(super) struct Follower {
    following: Following,
    names: watch::Receiver<Option<Arc<Hosts>>>,
    zone: Zone,
    /// What of each part is in the zone.
    held: [HashSet<ObjectKey>; 3],
    published: Arc<ArcSwap<Published>>,
}

enum Input {
    Objects(News),
    Names,
}

impl Follower {
    pub(super) fn new(parts: DnsParts, published: Arc<ArcSwap<Published>>) -> Self {
        let mut names = parts.names;
        names.mark_changed();
        Self {
            following: Following::new(parts.source, PARTS.map(resource)),
            names,
            zone: Zone::default(),
            held: Default::default(),
            published,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let input = self.next().await;
            self.take(input);
            let settled = Instant::now() + SETTLE;
            while let Ok(input) = timeout_at(settled, self.next()).await {
                self.take(input);
            }
            let published = Published { zone: self.zone.clone(), serial: serial(SystemTime::now()) };
            self.published.store(Arc::new(published));
        }
    }

    async fn next(&mut self) -> Input {
        tokio::select! {
            news = self.following.next() => Input::Objects(news),
            // Who tells the names lives as long as this.
            Ok(()) = self.names.changed() => Input::Names,
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Names => {
                if let Some(hosts) = &*self.names.borrow_and_update() {
                    self.zone.set_uniform(hosts);
                }
            }
            Input::Objects(News::All(index, snapshot)) => self.reset(PARTS[index], &snapshot),
            Input::Objects(News::Changed(index, changes)) => {
                for change in changes {
                    self.change(PARTS[index], &change);
                }
            }
        }
    }

    fn reset(&mut self, part: Part, snapshot: &Snapshot) {
        let present: HashSet<ObjectKey> = snapshot.items.iter().map(|item| item.key.clone()).collect();
        let gone: Vec<ObjectKey> = self.held[part as usize].difference(&present).cloned().collect();
        for key in gone {
            self.remove(part, &key);
        }
        for item in &snapshot.items {
            self.put(part, item);
        }
        self.zone.open(part);
    }

    fn change(&mut self, part: Part, change: &Change) {
        match change.kind {
            ChangeKind::Deleted => self.remove(part, &change.object.key),
            ChangeKind::Added | ChangeKind::Modified => self.put(part, &change.object),
        }
    }

    fn put(&mut self, part: Part, object: &Stored) {
        if let Err(error) = self.show(part, object) {
            warn!(object = %object.key, %error, "an object says nothing to the DNS server");
            self.remove(part, &object.key);
        }
    }

    fn show(&mut self, part: Part, object: &Stored) -> Result<(), BodyError> {
        let key = &object.key;
        match part {
            Part::Namespaces => self.zone.set_namespace(key.name(), true),
            Part::Services => self.zone.set_service(&service_name(key), Some(Service::of(&object.body())?)),
            Part::Slices => {
                let body = object.body();
                let service = service_of(Carrier::EndpointSlice, &Metadata::of(&body)?);
                let slice = Slice::of(&body)?;
                let of = service.as_ref().map(|service| (service.name.as_str(), slice));
                self.zone.set_slice(key.namespace(), key.name(), of);
            }
        }
        self.held[part as usize].insert(key.clone());
        Ok(())
    }

    fn remove(&mut self, part: Part, key: &ObjectKey) {
        match part {
            Part::Namespaces => self.zone.set_namespace(key.name(), false),
            Part::Services => self.zone.set_service(&service_name(key), None),
            Part::Slices => self.zone.set_slice(key.namespace(), key.name(), None),
        }
        self.held[part as usize].remove(key);
    }
}

fn service_name(key: &ObjectKey) -> ServiceName {
    ServiceName::new(key.namespace(), key.name())
}
