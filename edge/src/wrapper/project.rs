//! Computes what this node sees from the objects of the source.

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
use tombolo_grid::{
    BodyError, Carrier, Graph, Lead, Link, Node, NotRedirected, OwnPods, Reach, ServiceName, prune,
};
use tombolo_proto::object::{KeyMap, ObjectKey};
use tracing::warn;

use super::projected_kind::ProjectedKind;
use super::room::{Room, SHOWN_BYTES_MAX, Weights, weight};
use super::{Kubernetes, WrapperMetrics, WrapperParts};

/// Objects that are processed before the task yields.
const TURN: usize = 32;

/// Keeps the shown objects up to date with the source, as this node sees them.
///
/// Bodies are kept once, in the shown form. The graph holds what determines this form; when it changes, the bodies are
/// read from the source again.
pub(super) struct Projector {
    source: Arc<dyn Store>,
    served: MemoryStore,
    graph: Graph<ObjectKey>,
    kubernetes: Kubernetes,
    /// Of this node.
    address: Option<IpAddr>,
    /// Of this node.
    pods: Arc<OwnPods>,
    /// Source revision at which objects with endpoints are shown. Reading the source again may be ahead of the changes
    /// that it reports.
    seen: KeyMap<Revision>,
    /// The address families of the slices of the Service `default/kubernetes`.
    families: BTreeMap<ObjectKey, String>,
    /// Whether Services changed since they were last counted.
    services_changed: bool,
    /// The logged reasons why pods are not led to the local API.
    logged: BTreeSet<NotRedirected>,
    room: Room,
    metrics: Arc<WrapperMetrics>,
}

/// Reasons that are logged, at most.
const REASONS_MAX: usize = 8;

/// Objects that may have to be shown differently and are not updated yet.
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
            logged: BTreeSet::new(),
            room: Room::new(SHOWN_BYTES_MAX),
            metrics,
        }
    }

    /// The projector with another bound.
    #[cfg(test)]
    pub(super) fn with_room(self, max: usize) -> Self {
        Self { room: Room::new(max), ..self }
    }

    /// Bytes that a part may take beside the shown objects of the other parts.
    pub(super) fn room_for(&self, part: ProjectedKind) -> usize {
        let shown = self.served.list(&part.resource(), None).map(|list| list.items).unwrap_or_default();
        let own: usize =
            shown.iter().filter(|one| !one.key.namespace().is_empty()).map(|one| weight(one)).sum();
        self.room.beside(self.room.shown().saturating_sub(own))
    }

    /// Whether objects of a namespace are shown.
    pub(super) fn shows(&self, namespace: &str) -> bool {
        !self.room.is_left_out(namespace)
    }

    /// Whether namespaces are left out.
    pub(super) fn is_crowded(&self) -> bool {
        self.room.left_out() > 0
    }

    /// Decides which namespaces are left out, given the weights of all. Returns whether some are no longer left out.
    pub(super) async fn judge(&mut self, all: Weights, affected: &mut Affected) -> bool {
        let (beyond, returns) = self.room.judge(all);
        self.leave_out(beyond, affected).await;
        returns
    }

    /// Leaves out the largest of all namespaces, in addition to those that are left out already, until the others fit.
    pub(super) async fn exclude(&mut self, all: Weights, affected: &mut Affected) {
        let beyond = self.room.exclude(all);
        self.leave_out(beyond, affected).await;
    }

    /// Removes all objects of these namespaces.
    async fn leave_out(&mut self, beyond: BTreeSet<String>, affected: &mut Affected) {
        for namespace in &beyond {
            warn!(
                namespace,
                shown = self.room.shown(),
                max = SHOWN_BYTES_MAX,
                "Services and endpoints of this namespace are not shown on this node, and its names are not resolved: \
                 those of all namespaces together do not fit, and this one has most of them; delete some there, or make \
                 them smaller"
            );
            for part in ProjectedKind::ALL {
                let shown = self.served.list(&part.resource(), Some(namespace)).map(|list| list.items);
                for object in shown.unwrap_or_default() {
                    self.remove(part, &object.key, affected).await;
                }
            }
        }
        self.metrics.left_out.set(i64::try_from(self.room.left_out()).unwrap_or(i64::MAX));
    }

    /// Replaces all objects of a part. Unchanged objects cause no event.
    pub(super) async fn reset(&mut self, part: ProjectedKind, items: Vec<Arc<Stored>>) -> Affected {
        let mut affected = Affected::new();
        let present: BTreeSet<ObjectKey> = items.iter().map(|item| item.key.clone()).collect();
        let shown = self.served.list(&part.resource(), None).map(|list| list.items).unwrap_or_default();
        // Objects that could not be shown may still be in the graph.
        let known = self.known(part).into_iter().chain(shown.into_iter().map(|item| item.key.clone()));
        let gone: BTreeSet<ObjectKey> = known.filter(|key| !present.contains(key)).collect();
        for key in gone {
            self.remove(part, &key, &mut affected).await;
        }
        for (number, item) in items.into_iter().enumerate() {
            // Each body is freed before the next one is copied, so that the shown bodies take the place of those that
            // were read.
            self.put(part, &item, &mut affected).await;
            drop(item);
            give_way(number).await;
        }
        affected
    }

    /// Applies one change of the source.
    pub(super) async fn change(&mut self, part: ProjectedKind, change: &Change, affected: &mut Affected) {
        let object = &change.object;
        if self.seen.get(&object.key).is_some_and(|seen| *seen >= object.revision) {
            return;
        }
        match change.kind {
            ChangeKind::Deleted => self.remove(part, &object.key, affected).await,
            ChangeKind::Added | ChangeKind::Modified => self.put(part, object, affected).await,
        }
    }

    /// Sets the address of this node, and returns the objects that may lead to it.
    pub(super) fn set_address(&mut self, address: Option<IpAddr>) -> Affected {
        self.address = address;
        self.near_kubernetes()
    }

    /// Objects that may have endpoints of the Service `default/kubernetes`.
    fn near_kubernetes(&self) -> Affected {
        self.seen.keys().filter(|key| key.namespace() == "default").cloned().collect()
    }

    /// Whether the Service `default/kubernetes` has endpoints of both families.
    fn has_two_families(&self) -> bool {
        let mut families = self.families.values();
        families.next().is_some_and(|first| families.any(|other| other != first))
    }

    /// Records the family of a slice of the Service `default/kubernetes`, or that the slice is gone. Returns the
    /// objects that this affects.
    fn note_family(&mut self, key: &ObjectKey, family: Option<String>) -> Affected {
        let before = self.has_two_families();
        match family {
            Some(family) => self.families.insert(key.clone(), family),
            None => self.families.remove(key),
        };
        if self.has_two_families() == before { Affected::new() } else { self.near_kubernetes() }
    }

    /// Sets the addresses of this node's pods, and returns the objects that may lead to them.
    pub(super) fn set_pods(&mut self, pods: Arc<OwnPods>) -> Affected {
        self.pods = pods;
        self.graph.mentioning(self.pods.node()).cloned().collect()
    }

    /// Updates objects with endpoints.
    ///
    /// # Errors
    /// The error of the source when it cannot be read; everything must then be read again.
    pub(super) async fn refresh(&mut self, mut affected: Affected) -> Result<(), StoreError> {
        while !affected.is_empty() {
            // The source may already have changes to a slice of the Service `kubernetes` that it has not reported yet.
            let mut more = Affected::new();
            for (number, key) in affected.into_iter().enumerate() {
                let Some(part) = ProjectedKind::of(key.resource()) else { continue };
                // The deletion of a missing object will be reported, after older changes.
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

    /// Keys of the part's objects in the graph.
    fn known(&self, part: ProjectedKind) -> Vec<ObjectKey> {
        let resource = part.resource();
        match part {
            ProjectedKind::Nodes => {
                self.graph.nodes().map(|name| ObjectKey::new(resource.clone(), "", name)).collect()
            }
            ProjectedKind::Services => {
                let names = self.graph.services().map(|(name, _)| name);
                names.map(|name| ObjectKey::new(resource.clone(), &name.namespace, &name.name)).collect()
            }
            _ => self.seen.keys().filter(|key| *key.resource() == resource).cloned().collect(),
        }
    }

    async fn put(&mut self, part: ProjectedKind, object: &Stored, affected: &mut Affected) {
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
            (ProjectedKind::Nodes, _) => Node::of(&body).map(|node| {
                affected.extend(self.graph.set_node(object.key.name(), Some(node)));
                body
            }),
            (ProjectedKind::Services, _) => Reach::of(&body).map(|reach| {
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
                warn!(object = %object.key, %error, "the wrapper cannot show an object");
                self.remove(part, &object.key, affected).await;
            }
        }
        let beyond = self.room.make_room();
        if !beyond.is_empty() {
            self.leave_out(beyond, affected).await;
        }
    }

    async fn remove(&mut self, part: ProjectedKind, key: &ObjectKey, affected: &mut Affected) {
        match part {
            ProjectedKind::Nodes => affected.extend(self.graph.set_node(key.name(), None)),
            ProjectedKind::Services => {
                self.services_changed = true;
                affected.extend(self.graph.set_service(service_name(key), None));
            }
            ProjectedKind::EndpointSlices | ProjectedKind::Endpoints => {
                self.graph.set_link(key.clone(), None);
                self.seen.remove(key);
                affected.extend(self.note_family(key, None));
            }
            ProjectedKind::ServiceCidrs | ProjectedKind::Namespaces => {}
        }
        self.delete(key).await;
    }

    /// Logs once for each reason that pods are not directed to the local API although the settings require it.
    fn log_not_redirected(&mut self, object: &ObjectKey, why: &NotRedirected) {
        // Annotations can produce any number of reasons.
        if self.logged.len() < REASONS_MAX && self.logged.insert(why.clone()) {
            warn!(
                %object, %why,
                "the Service kubernetes directs pods to the API servers of the cluster, as if wrapper.localRewrite were \
                 off: set localApi.pods to an address of this node that pods reach, or turn wrapper.localRewrite off"
            );
        }
    }

    /// The body of an object with endpoints as this node sees it.
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
                Lead::There(why) => self.log_not_redirected(&object.key, &why),
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
        // The cloud sends members in sorted order. With the head first, lists find the parts of a body without parsing
        // all of it.
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
        // The store in memory refuses only bodies that are not objects.
        if let Err(error) = self.served.commit(mutation).await {
            self.metrics.unreadable.inc();
            warn!(%error, "the wrapper cannot show an object");
        }
        self.room.change(key.namespace(), before, self.weight_of(&key));
    }

    /// The weight of an object in its shown form.
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

/// The original body if it is unchanged, else the new one.
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
