//! The objects that one subscription selects, and those that the node needs if a test requires it: a view that answers
//! at once, whatever its size.

#![allow(dead_code, unreachable_pub)] // shared by several test binaries

use std::collections::HashMap;
use std::sync::Arc;

use tombolo_proto::inventory::content_hash;
use tombolo_proto::object::{ObjectVersion, SharedObject};
use tombolo_proto::session::{Lookup, NodeView};
use tombolo_proto::{CloudRevision, ObjectKey, Resource, SubscriptionId, Uid};

pub const MIB: usize = 1024 * 1024;

/// Keys that arrive before they are counted.
pub const SLACK: usize = 1024;

/// The id of the subscription.
pub const SUBSCRIPTION: SubscriptionId = SubscriptionId(1);

#[derive(Debug, Default)]
pub struct Selection {
    objects: HashMap<ObjectKey, Arc<SharedObject>>,
    /// The objects that the node needs; without an object, the answer to queries for it.
    own: HashMap<ObjectKey, Own>,
    revision: u64,
}

/// A view's knowledge of an object that the node needs.
#[derive(Debug, Clone)]
pub enum Own {
    Present(Arc<SharedObject>),
    Absent,
    Unreadable,
}

impl Selection {
    /// A name of a typical length.
    pub fn key(number: usize) -> ObjectKey {
        let name = format!("a-service-of-some-team-{number:06}");
        ObjectKey::new(Resource::new("", "v1", "services"), "some-namespace", &name)
    }

    pub fn create(&mut self, number: usize) -> ObjectKey {
        let object = self.object(&Self::key(number), number);
        let key = object.key.clone();
        self.objects.insert(key.clone(), object);
        key
    }

    fn object(&mut self, key: &ObjectKey, number: usize) -> Arc<SharedObject> {
        self.revision += 1;
        let uid = format!("00000000-0000-0000-0000-{number:012}");
        let metadata =
            format!(r#"{{"name":"{}","namespace":"{}","uid":"{uid}"}}"#, key.name(), key.namespace());
        let body = format!(r#"{{"apiVersion":"v1","kind":"Service","metadata":{metadata}}}"#);
        let uid = Uid::parse(&uid).expect("a UID");
        let version = ObjectVersion {
            uid,
            revision: CloudRevision(self.revision),
            hash: content_hash(body.as_bytes()),
        };
        Arc::new(SharedObject::new(key.clone(), version, body.into(), Vec::new()))
    }

    /// Makes the node need an object, of a kind in the core group, of which this is known.
    pub fn need(&mut self, kind: &str, number: usize, known: Option<Own>) -> ObjectKey {
        let key = ObjectKey::new(Resource::new("", "v1", kind), "a-tenant", &format!("settings-{number:06}"));
        let known = known.unwrap_or_else(|| Own::Present(self.object(&key, 1_000_000 + number)));
        self.own.insert(key.clone(), known);
        key
    }

    pub fn delete(&mut self, number: usize) -> ObjectKey {
        let key = Self::key(number);
        self.objects.remove(&key);
        key
    }
}

impl NodeView for Selection {
    fn wanted(&self, subscription: SubscriptionId) -> Vec<ObjectKey> {
        match subscription {
            SUBSCRIPTION => self.objects.keys().cloned().collect(),
            _ => self.own.keys().cloned().collect(),
        }
    }

    fn count(&self, subscription: SubscriptionId) -> usize {
        if subscription == SUBSCRIPTION { self.objects.len() } else { self.own.len() }
    }

    fn lookup(&self, subscription: SubscriptionId, key: &ObjectKey) -> Lookup {
        if subscription != SUBSCRIPTION {
            return match self.own.get(key) {
                Some(Own::Present(object)) => Lookup::Present(Arc::clone(object)),
                Some(Own::Absent) => Lookup::Absent,
                Some(Own::Unreadable) => Lookup::Unreadable(413),
                None => Lookup::Unwanted(None),
            };
        }
        let found = self.objects.get(key);
        found.map_or(Lookup::Unwanted(None), |object| Lookup::Present(Arc::clone(object)))
    }

    fn revision(&self, _: SubscriptionId) -> CloudRevision {
        CloudRevision(self.revision)
    }
}

/// An edge that follows one selection, in either dialect.
pub trait Follower {
    /// The maximum number of objects that it may follow.
    const MAX: usize;

    fn selection(&mut self) -> &mut Selection;

    fn offer(&mut self, key: ObjectKey);

    /// Whether the subscription has ended because it followed too many objects.
    fn ended(&mut self) -> bool;

    fn create(&mut self, number: usize) {
        let key = self.selection().create(number);
        self.offer(key);
    }

    /// Deletes one object and creates another.
    fn replace(&mut self, number: usize) {
        let gone = self.selection().delete(number);
        self.offer(gone);
        self.create(number + Self::MAX);
    }

    /// Follows more than the limit; returns whether that has ended the subscription.
    fn ends_beyond(&mut self) -> bool {
        (0..=SLACK).any(|number| {
            self.create(number);
            self.ended()
        })
    }
}
