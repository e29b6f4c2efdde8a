//! From what the source holds to what this node sees.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tombolo_apicore::history::{Change, ChangeKind};
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::raw;
use tombolo_apicore::store::{Expect, Mutation, Revision, Store, StoreError, Stored, Write, WriteStore};
use tombolo_grid::local_api::{family_of_kubernetes, lead_to_local_api};
use tombolo_grid::{BodyError, Carrier, Graph, Lead, Link, Node, OwnPods, Reach, ServiceName, Stays, prune};
use tombolo_proto::object::{KeyMap, ObjectKey};
use tracing::warn;

use super::part::Part;
use super::room::{Room, SHOWN_BYTES_MAX, Weights, weight};
use super::{Kubernetes, WrapperMetrics, WrapperParts};

/// Objects that are shown anew before other tasks have their turn.
const TURN: usize = 32;

/// Keeps what is shown equal to what the source says, seen from this node.
///
/// Bodies are kept once, as they are shown. What decides is in the graph; when that changes, the source is asked for the
/// bodies again.
pub(super) struct Projector {
    source: Arc<dyn Store>,
    served: MemoryStore,
    graph: Graph<ObjectKey>,
    kubernetes: Kubernetes,
    /// Of this node.
    address: Option<IpAddr>,
    /// Of this node.
    pods: Arc<OwnPods>,
    /// Revision of the source that objects with endpoints are shown as of: asking the source again may be ahead of the
    /// changes that it tells.
    seen: KeyMap<Revision>,
    /// The address families of the slices of the Service `default/kubernetes`.
    families: BTreeMap<ObjectKey, String>,
    /// Since they were last counted.
    services_changed: bool,
    /// Why pods are not led to the local API, as far as it was said.
    told: BTreeSet<Stays>,
    room: Room,
    metrics: Arc<WrapperMetrics>,
}

/// Reasons that are said, at most.
const REASONS_MAX: usize = 8;

/// What may look different, and is not shown anew yet.
pub(super) type Affected = BTreeSet<ObjectKey>;

impl Projector {
    pub(super) fn new(parts: &WrapperParts, served: MemoryStore, metrics: Arc<WrapperMetrics>) -> Self {
        let WrapperParts { node, source, kubernetes, address, pods, .. } = parts;
        Self {
            source: Arc::clone(source),
            served,
            graph: Graph::new(node),
            kubernetes: *kubernetes,
            address: *address.borrow(),
            pods: Arc::clone(&pods.borrow()),
            seen: KeyMap::default(),
            families: BTreeMap::new(),
            services_changed: false,
            told: BTreeSet::new(),
            room: Room::new(SHOWN_BYTES_MAX),
            metrics,
        }
    }

    /// The same with room for less.
    #[cfg(test)]
    pub(super) fn with_room(self, max: usize) -> Self {
        Self { room: Room::new(max), ..self }
    }

    /// Bytes that a part may take beside what is shown of the others.
    pub(super) fn room_for(&self, part: Part) -> usize {
        let shown = self.served.list(&part.resource(), None).map(|list| list.items).unwrap_or_default();
        let own: usize =
            shown.iter().filter(|one| !one.key.namespace().is_empty()).map(|one| weight(one)).sum();
        self.room.beside(self.room.shown().saturating_sub(own))
    }

    /// Whether anything of a namespace is shown.
    pub(super) fn shows(&self, namespace: &str) -> bool {
        !self.room.is_left_out(namespace)
    }

    /// Whether there is more than is shown.
    pub(super) fn is_crowded(&self) -> bool {
        self.room.left_out() > 0
    }

    /// Judges by what there is of all namespaces what is shown. Whether some are to be shown that were left out.
    pub(super) async fn judge(&mut self, all: Weights, affected: &mut Affected) -> bool {
        let (beyond, returns) = self.room.judge(all);
        self.leave_out(beyond, affected).await;
        returns
    }

    /// Leaves out, beside those that are, the namespaces that have most of all that there is, until the others fit.
    pub(super) async fn exclude(&mut self, all: Weights, affected: &mut Affected) {
        let beyond = self.room.exclude(all);
        self.leave_out(beyond, affected).await;
    }

    /// Shows nothing of these namespaces any more.
    async fn leave_out(&mut self, beyond: BTreeSet<String>, affected: &mut Affected) {
        for namespace in &beyond {
            warn!(
                namespace,
                shown = self.room.shown(),
                max = SHOWN_BYTES_MAX,
                "no Services and endpoints of this namespace are shown on this node, and its names are not resolved: all namespaces \
                 together have more bytes of them than fit, and this one has most. Delete some there, or make them smaller"
            );
            for part in Part::ALL {
                let shown = self.served.list(&part.resource(), Some(namespace)).map(|list| list.items);
                for object in shown.unwrap_or_default() {
                    self.remove(part, &object.key, affected).await;
                }
            }
        }
        self.metrics.left_out.set(i64::try_from(self.room.left_out()).unwrap_or(i64::MAX));
    }

    /// These are all objects of a part. What is as it was makes no event.
    pub(super) async fn reset(&mut self, part: Part, items: Vec<Arc<Stored>>) -> Affected {
        let mut affected = Affected::new();
        let present: BTreeSet<ObjectKey> = items.iter().map(|item| item.key.clone()).collect();
        let shown = self.served.list(&part.resource(), None).map(|list| list.items).unwrap_or_default();
        // What could not be shown is in the graph all the same.
        let known = self.known(part).into_iter().chain(shown.into_iter().map(|item| item.key.clone()));
        let gone: BTreeSet<ObjectKey> = known.filter(|key| !present.contains(key)).collect();
        for key in gone {
            self.remove(part, &key, &mut affected).await;
        }
        for (number, item) in items.into_iter().enumerate() {
            // Each body goes before the next one is copied: what is shown then fills the room of what was read.
            self.put(part, &item, &mut affected).await;
            drop(item);
            give_way(number).await;
        }
        affected
    }

    /// One change of the source.
    pub(super) async fn change(&mut self, part: Part, change: &Change, affected: &mut Affected) {
        let object = &change.object;
        if self.seen.get(&object.key).is_some_and(|seen| *seen >= object.revision) {
            return;
        }
        match change.kind {
            ChangeKind::Deleted => self.remove(part, &object.key, affected).await,
            ChangeKind::Added | ChangeKind::Modified => self.put(part, object, affected).await,
        }
    }

    /// This node has another address. What may lead to it.
    pub(super) fn set_address(&mut self, address: Option<IpAddr>) -> Affected {
        self.address = address;
        self.near_kubernetes()
    }

    /// What may have endpoints of the Service `default/kubernetes`.
    fn near_kubernetes(&self) -> Affected {
        self.seen.keys().filter(|key| key.namespace() == "default").cloned().collect()
    }

    /// Whether the Service `default/kubernetes` has endpoints of both families.
    fn has_two_families(&self) -> bool {
        let mut families = self.families.values();
        families.next().is_some_and(|first| families.any(|other| other != first))
    }

    /// Notes the family of a slice of the Service `default/kubernetes`, or that it is gone. What that changes for others.
    fn note_family(&mut self, key: &ObjectKey, family: Option<String>) -> Affected {
        let before = self.has_two_families();
        match family {
            Some(family) => self.families.insert(key.clone(), family),
            None => self.families.remove(key),
        };
        if self.has_two_families() == before { Affected::new() } else { self.near_kubernetes() }
    }

    /// The pods of this node are elsewhere. What may lead to them.
    pub(super) fn set_pods(&mut self, pods: Arc<OwnPods>) -> Affected {
        self.pods = pods;
        self.graph.mentioning(self.pods.node()).cloned().collect()
    }

    /// Shows objects with endpoints anew.
    ///
    /// # Errors
    /// What the source says when it cannot be asked; everything must be read again then.
    pub(super) async fn refresh(&mut self, mut affected: Affected) -> Result<(), StoreError> {
        while !affected.is_empty() {
            // The source may say of a slice of the Service `kubernetes` what its changes have not told yet.
            let mut more = Affected::new();
            for (number, key) in affected.into_iter().enumerate() {
                let Some(part) = Part::of(key.resource()) else { continue };
                // What is gone has a deletion on its way, behind changes that are older.
                if let Some(stored) = self.source.get(&key)? {
                    self.put(part, &stored, &mut more).await;
                }
                give_way(number).await;
            }
            affected = more;
        }
        self.count();
        Ok(())
    }

    /// Names in the graph.
    fn known(&self, part: Part) -> Vec<ObjectKey> {
        let resource = part.resource();
        match part {
            Part::Nodes => {
                self.graph.nodes().map(|name| ObjectKey::new(resource.clone(), "", name)).collect()
            }
            Part::Services => {
                let names = self.graph.services().map(|(name, _)| name);
                names.map(|name| ObjectKey::new(resource.clone(), &name.namespace, &name.name)).collect()
            }
            _ => self.seen.keys().filter(|key| *key.resource() == resource).cloned().collect(),
        }
    }

    async fn put(&mut self, part: Part, object: &Stored, affected: &mut Affected) {
        if !self.shows(object.key.namespace()) {
            return self.remove(part, &object.key, affected).await;
        }
        let body = object.body();
        let shown = match (part, part.carrier()) {
            (_, Some(carrier)) => {
                self.seen.insert(object.key.clone(), object.revision);
                if object.key.namespace() == "default" {
                    let family = family_of_kubernetes(carrier, &body).unwrap_or_default();
                    affected.extend(self.note_family(&object.key, family));
                }
                self.project(carrier, object)
            }
            (Part::Nodes, _) => Node::of(&body).map(|node| {
                affected.extend(self.graph.set_node(object.key.name(), Some(node)));
                body
            }),
            (Part::Services, _) => Reach::of(&body).map(|reach| {
                self.services_changed = true;
                affected.extend(self.graph.set_service(service_name(&object.key), Some(reach)));
                body
            }),
            _ => Ok(body),
        };
        match shown {
            Ok(body) => self.show(object, body).await,
            Err(error) => {
                self.metrics.unreadable.inc();
                warn!(object = %object.key, %error, "not shown by the wrapper");
                self.remove(part, &object.key, affected).await;
            }
        }
        let beyond = self.room.make_room();
        if !beyond.is_empty() {
            self.leave_out(beyond, affected).await;
        }
    }

    async fn remove(&mut self, part: Part, key: &ObjectKey, affected: &mut Affected) {
        match part {
            Part::Nodes => affected.extend(self.graph.set_node(key.name(), None)),
            Part::Services => {
                self.services_changed = true;
                affected.extend(self.graph.set_service(service_name(key), None));
            }
            Part::EndpointSlices | Part::Endpoints => {
                self.graph.set_link(key.clone(), None);
                self.seen.remove(key);
                affected.extend(self.note_family(key, None));
            }
            Part::ServiceCidrs | Part::Namespaces => {}
        }
        self.delete(key).await;
    }

    /// Says, once for each reason, that pods are led past the local API although they are to be led there.
    fn tell(&mut self, object: &ObjectKey, why: &Stays) {
        // Annotations may say something else every time.
        if self.told.len() < REASONS_MAX && self.told.insert(why.clone()) {
            warn!(
                %object, %why,
                "pods that ask for the Service kubernetes are led to the API servers of the cluster, as if \
                 wrapper.localRewrite were off: set localApi.pods to an address of this node that pods reach, or turn it off"
            );
        }
    }

    /// What this node sees of an object with endpoints.
    fn project(&mut self, carrier: Carrier, object: &Stored) -> Result<Bytes, BodyError> {
        let body = object.body();
        let link = Link::of(carrier, &body)?;
        if let Kubernetes::Local(listener) = self.kubernetes {
            let here = Kubernetes::reached(listener, self.address);
            match lead_to_local_api(carrier, &body, here, self.has_two_families())? {
                Lead::Here(led) => {
                    self.graph.set_link(object.key.clone(), Some(link));
                    return Ok(led.into());
                }
                Lead::There(why) => self.tell(&object.key, &why),
                Lead::Other => {}
            }
        }
        let body = match link.mentions(self.pods.node()) {
            true => kept(self.pods.relocate(carrier, &body)?, &body),
            false => body,
        };
        let shown = kept(prune(carrier, &body, &self.graph.verdict(&link))?, &body);
        self.graph.set_link(object.key.clone(), Some(link));
        Ok(shown)
    }

    /// Shows a body, unless it is shown already.
    async fn show(&mut self, object: &Stored, body: Bytes) {
        let key = &object.key;
        // Members come sorted from the cloud. Lists find the parts of a text whose head is first without reading it.
        let body = raw::head_first(&body).unwrap_or(body);
        if let Ok(Some(shown)) = self.served.get(key) {
            if shown.uid != object.uid {
                self.delete(key).await;
            } else if raw::with_revision(&body, shown.revision).is_ok_and(|text| text == shown.body()) {
                return;
            }
        }
        let write = Write::Put { uid: object.uid.clone(), body };
        self.commit(Mutation { key: key.clone(), expected: Expect::Any, write }).await;
    }

    async fn delete(&mut self, key: &ObjectKey) {
        if matches!(self.served.get(key), Ok(Some(_))) {
            self.commit(Mutation { key: key.clone(), expected: Expect::Any, write: Write::Delete }).await;
        }
    }

    async fn commit(&mut self, mutation: Mutation) {
        let key = mutation.key.clone();
        let before = self.weight_of(&key);
        // The store in memory refuses nothing but bodies that are no objects.
        if let Err(error) = self.served.commit(mutation).await {
            self.metrics.unreadable.inc();
            warn!(%error, "not shown by the wrapper");
        }
        self.room.change(key.namespace(), before, self.weight_of(&key));
    }

    /// What an object counts for as it is shown.
    fn weight_of(&self, key: &ObjectKey) -> usize {
        self.served.get(key).ok().flatten().map_or(0, |shown| weight(&shown))
    }

    fn count(&mut self) {
        if std::mem::take(&mut self.services_changed) {
            let closed = self.graph.services().filter(|(_, reach)| **reach == Reach::Nowhere).count();
            self.metrics.closed_services.set(i64::try_from(closed).unwrap_or(i64::MAX));
        }
        self.metrics.objects.set(i64::try_from(self.served.object_count()).unwrap_or(i64::MAX));
    }
}

/// The text itself, or what was made of it.
fn kept(text: Cow<'_, [u8]>, whole: &Bytes) -> Bytes {
    match text {
        Cow::Borrowed(_) => whole.clone(),
        Cow::Owned(other) => other.into(),
    }
}

fn service_name(key: &ObjectKey) -> ServiceName {
    ServiceName::new(key.namespace(), key.name())
}

async fn give_way(number: usize) {
    if number % TURN == TURN - 1 {
        tokio::task::yield_now().await;
    }
}
