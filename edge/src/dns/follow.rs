//! Keeps the DNS zone up to date with the objects on this node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;
use tokio::sync::watch;
use tombolo_apicore::history::{Change, ChangeKind};
use tombolo_apicore::store::{Snapshot, Stored};
use tombolo_grid::dns::{Part, Service, Slice};
use tombolo_grid::endpoints::service_of;
use tombolo_grid::{BodyError, Carrier, Hosts, ObjectMetadata, ServiceName};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::warn;

use super::{DnsParts, ServedZone, serial};
use crate::follow::{Following, News};

const PARTS: [Part; 3] = [Part::Namespaces, Part::Services, Part::Slices];

fn resource(part: Part) -> Resource {
    match part {
        Part::Namespaces => Resource::new("", "v1", "namespaces"),
        Part::Services => Resource::new("", "v1", "services"),
        Part::Slices => Resource::new("discovery.k8s.io", "v1", "endpointslices"),
    }
}

/// The only task that changes the zone. A change holds the write lock, so no query is answered from half of it.
pub(super) struct Follower {
    following: Following,
    names: watch::Receiver<Option<Arc<Hosts>>>,
    /// Objects of each part that are in the zone.
    held: [HashSet<ObjectKey>; 3],
    known: Arc<RwLock<ServedZone>>,
}

enum Input {
    Objects(News),
    Names,
}

impl Follower {
    pub(super) fn new(parts: DnsParts, known: Arc<RwLock<ServedZone>>) -> Self {
        let mut names = parts.names;
        names.mark_changed();
        let following = Following::new(parts.source, PARTS.map(resource));
        Self { following, names, held: Default::default(), known }
    }

    pub(super) async fn run(mut self) {
        loop {
            let input = self.next().await;
            self.take(input);
            self.known.write().serial = serial(SystemTime::now());
        }
    }

    async fn next(&mut self) -> Input {
        tokio::select! {
            news = self.following.next() => Input::Objects(news),
            // The sender of the names lives as long as this task.
            Ok(()) = self.names.changed() => Input::Names,
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Names => {
                let names = self.names.borrow_and_update().clone();
                if let Some(hosts) = names {
                    self.known.write().zone.set_uniform(&hosts);
                }
            }
            Input::Objects(News::All(index, snapshot)) => self.reset(PARTS[index], snapshot),
            Input::Objects(News::Changed(index, changes)) => {
                for change in changes {
                    self.change(PARTS[index], &change);
                }
            }
        }
    }

    fn reset(&mut self, part: Part, snapshot: Snapshot) {
        let present: HashSet<ObjectKey> = snapshot.items.iter().map(|item| item.key.clone()).collect();
        let gone: Vec<ObjectKey> = self.held[part as usize].difference(&present).cloned().collect();
        for key in gone {
            self.remove(part, &key);
        }
        for item in snapshot.items {
            self.put(part, &item);
        }
        self.known.write().zone.open(part);
    }

    fn change(&mut self, part: Part, change: &Change) {
        match change.kind {
            ChangeKind::Deleted => self.remove(part, &change.object.key),
            ChangeKind::Added | ChangeKind::Modified => self.put(part, &change.object),
        }
    }

    fn put(&mut self, part: Part, object: &Stored) {
        if let Err(error) = self.show(part, object) {
            warn!(object = %object.key, %error, "the DNS server ignores an invalid object");
            self.remove(part, &object.key);
        }
    }

    fn show(&mut self, part: Part, object: &Stored) -> Result<(), BodyError> {
        let key = &object.key;
        match part {
            Part::Namespaces => self.known.write().zone.set_namespace(key.name(), true),
            Part::Services => {
                let service = Service::of(&object.body())?;
                self.known.write().zone.set_service(&service_name(key), Some(service));
            }
            Part::Slices => {
                let body = object.body();
                let service = service_of(Carrier::EndpointSlice, &ObjectMetadata::of(&body)?);
                let slice = Slice::of(&body)?;
                let of = service.as_ref().map(|service| (service.name.as_str(), slice));
                self.known.write().zone.set_slice(key.namespace(), key.name(), of);
            }
        }
        self.held[part as usize].insert(key.clone());
        Ok(())
    }

    fn remove(&mut self, part: Part, key: &ObjectKey) {
        let zone = &mut self.known.write().zone;
        match part {
            Part::Namespaces => zone.set_namespace(key.name(), false),
            Part::Services => zone.set_service(&service_name(key), None),
            Part::Slices => zone.set_slice(key.namespace(), key.name(), None),
        }
        self.held[part as usize].remove(key);
    }
}

fn service_name(key: &ObjectKey) -> ServiceName {
    ServiceName::new(key.namespace(), key.name())
}
