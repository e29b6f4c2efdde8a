//! A cloud session, a KubeEdge edge, the link between them and the ledger's store, on a virtual clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tombolo_proto::frame::{Reply, ReplyBody, Request, RequestBody};
use tombolo_proto::message::{Content, Message, MessageId, Operation, Outcome, ResourceType, StatusError};
use tombolo_proto::session::kubeedge::{
    CloudConfig, CloudSession, LedgerWrite, RESEND_AFTER, RESENDS_MAX, resource_of,
};
use tombolo_proto::session::{CloudEvent, NodeView as _};
use tombolo_proto::{Moment, ObjectKey, SubscriptionId, Uid, kubeedge};

use super::cluster::{Cluster, LedgerStore, epoch, node, node_key, wire_path};
use super::edgecore::KubeEdge;

pub const KEEPALIVE: Duration = Duration::from_secs(15);

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub session: CloudSession,
    /// Documents in transit, with the times when they leave the socket and arrive.
    down: VecDeque<(Moment, Moment, u64, Bytes)>,
    up: VecDeque<(Moment, Bytes)>,
    write: Option<(Moment, u64, LedgerWrite)>,
    /// Answers of the API that have not reached the session yet.
    answers: Vec<(Moment, Reply)>,
    keepalive_at: Moment,
    /// Unacknowledged pushes: path and time of the first copy, by id.
    open: BTreeMap<String, (String, Moment)>,
}

/// How often the link and the store misbehave, per thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A document is dropped by the edge's full queue.
    pub dropped: u32,
    /// MetaManager stalls for up to 40 s.
    pub stalls: u32,
    /// A ledger write fails.
    pub failed_writes: u32,
    /// Another cloudcore writes the ledger.
    pub conflicts: u32,
}

/// The whole simulated system.
pub struct World {
    pub now: Moment,
    pub rng: StdRng,
    pub cluster: Cluster,
    pub store: LedgerStore,
    pub kubeedge: KubeEdge,
    pub connection: Option<Connection>,
    pub faults: Faults,
    pub window: usize,
    pub events: Vec<CloudEvent>,
    /// Pushes that were sent, by path: operation and source.
    pub pushes: Vec<(String, Operation, String)>,
    /// Documents that arrived at either side.
    pub arrived: u64,
    pub cut_after: Option<u64>,
    pub silent: bool,
    /// Path whose documents are printed, to debug a failure.
    pub traced: Option<String>,
    /// The largest number of pushes in flight at once.
    pub most_in_flight: usize,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut cluster = Cluster::default();
        cluster.put(&node_key());
        cluster.want(&node_key(), true);
        Self {
            now: Moment::after_origin(Duration::from_secs(1)),
            rng: StdRng::seed_from_u64(seed),
            cluster,
            store: LedgerStore::default(),
            kubeedge: KubeEdge::default(),
            connection: None,
            faults: Faults::default(),
            window: 16,
            events: Vec::new(),
            pushes: Vec::new(),
            arrived: 0,
            cut_after: None,
            silent: false,
            traced: std::env::var("TOMBOLO_TRACE").ok(),
            most_in_flight: 0,
        }
    }

    fn millis(&mut self, max: u64) -> Duration {
        Duration::from_micros(self.rng.random_range(0..=max * 1000))
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_ratio(per_mille, 1000)
    }

    /// Opens a new connection. A process of the edge that has not registered its node does so.
    pub fn connect(&mut self) {
        self.cut(true);
        let mut config = CloudConfig::new(node(), epoch(), 1_700_000_000_000, self.rng.random());
        config.window = self.window;
        let session = CloudSession::new(config, self.store.stored.clone(), self.now, &self.cluster);
        self.connection = Some(Connection {
            session,
            down: VecDeque::new(),
            up: VecDeque::new(),
            write: None,
            answers: Vec::new(),
            keepalive_at: self.now,
            open: BTreeMap::new(),
        });
        self.kubeedge.register();
        self.pump();
    }

    /// Ends the connection. If `orderly`, the cloud's owner stores the last state of the ledger.
    pub fn cut(&mut self, orderly: bool) {
        let Some(connection) = self.connection.take() else { return };
        trace(self.traced.as_ref().filter(|_| true), self.now, "the connection ends", &Bytes::new());
        self.kubeedge.disconnected();
        if let Some((_, version, write)) = connection.write
            && self.rng.random()
        {
            // The write was in progress, so it may have been stored.
            self.swap(version, write.ledger);
        }
        if orderly && let Some(ledger) = connection.session.final_ledger() {
            self.swap(self.store.version, ledger.clone());
        }
    }

    fn swap(&mut self, version: u64, ledger: tombolo_proto::session::kubeedge::Ledger) -> bool {
        let free = self.store.version == version;
        if free {
            self.store.version += 1;
            self.store.stored = ledger;
        }
        free
    }

    /// The state under a key has changed.
    pub fn offer(&mut self, key: &ObjectKey) {
        if let Some(connection) = &mut self.connection {
            connection.session.offer(SubscriptionId::NODE, key.clone(), &self.cluster);
        }
        self.pump();
    }

    /// The cloud's knowledge is complete again.
    pub fn see(&mut self) {
        for key in self.cluster.see() {
            self.offer(&key);
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Moment> {
        let edge = self.kubeedge.next_event(self.now).filter(|_| !self.silent);
        let Some(connection) = &self.connection else { return edge };
        let wire = connection.down.front().map(|(left, arrives, ..)| *left.min(arrives));
        let others = [
            edge,
            wire,
            connection.up.front().map(|(arrives, _)| *arrives),
            connection.write.as_ref().map(|(done, ..)| *done),
            connection.answers.iter().map(|(at, _)| *at).min(),
            Some(connection.keepalive_at).filter(|_| !self.silent),
            connection.session.next_timeout(),
        ];
        others.into_iter().flatten().min()
    }

    fn step(&mut self) {
        let written = if self.silent { Vec::new() } else { self.kubeedge.step(self.now) };
        for path in written {
            self.check_recorded(&path);
        }
        self.receive();
        self.finish_work();
        let now = self.now;
        if let Some(connection) = &mut self.connection {
            if connection.keepalive_at <= now && !self.silent {
                self.kubeedge.keepalive();
                self.kubeedge.register();
                connection.keepalive_at = now + KEEPALIVE;
            }
            if connection.session.next_timeout().is_some_and(|due| due <= now) {
                connection.session.handle_timeout(now);
            }
        }
        self.pump();
        if self.connection.as_ref().is_some_and(|connection| connection.session.is_closed()) {
            self.cut(true);
        }
    }

    /// The ledger contains every row that the edge has stored and not deleted, which makes crashes harmless.
    fn check_recorded(&self, path: &str) {
        // A deletion may have followed in the same step.
        let Some(uid) = self.kubeedge.rows.get(path).map(|row| &row.uid) else { return };
        let named = self.store.stored.entries().any(|(key, entry)| {
            // An empty object has no UID; the ledger has a special name for it.
            let same = |known: &Uid| known.as_str() == uid || uid.is_empty();
            wire_path(key) == path && entry.uid.as_ref().is_none_or(same)
        });
        assert!(named, "{path} ({uid}) was stored at the edge, but the ledger does not contain it");
    }

    fn receive(&mut self) {
        let now = self.now;
        let dropped = self.faults.dropped;
        loop {
            let Some(connection) = &mut self.connection else { return };
            let Some((left, arrives, number, _)) = connection.down.front() else { break };
            if *left <= now {
                connection.session.transmitted(now, *number);
            }
            if *arrives > now {
                if let Some(front) = connection.down.front_mut().filter(|front| front.0 <= now) {
                    front.0 = front.1;
                }
                break;
            }
            let Some((_, _, _, document)) = connection.down.pop_front() else { break };
            trace(self.traced.as_ref(), now, "down", &document);
            self.arrived += 1;
            if !self.silent && !self.chance(dropped) {
                let jitter = self.jitter(&document);
                self.kubeedge.receive(now, &document, jitter);
                if self.chance(self.faults.stalls) {
                    self.kubeedge.stalled_until = now + self.millis(40_000);
                }
            }
            self.cut_if_due();
        }
        loop {
            let Some(connection) = &mut self.connection else { return };
            let Some((_, document)) = connection.up.pop_front_if(|(arrives, _)| *arrives <= now) else {
                return;
            };
            trace(self.traced.as_ref(), now, "up", &document);
            self.arrived += 1;
            note_ack(&mut connection.open, &document);
            connection.session.handle_document(now, &document).expect("a KubeEdge edge keeps the protocol");
            self.cut_if_due();
        }
    }

    fn cut_if_due(&mut self) {
        if self.cut_after.take_if(|after| *after <= self.arrived).is_some() {
            self.cut(false);
        }
    }

    /// Requesters process replies within a second; deliveries reach MetaManager in any order.
    fn jitter(&mut self, document: &Bytes) -> Duration {
        let is_reply = kubeedge::decode(document).expect("a message").header.parent.is_some();
        self.millis(if is_reply { 1000 } else { 20 })
    }

    fn finish_work(&mut self) {
        let now = self.now;
        if let Some(connection) = &mut self.connection {
            while let Some(index) = connection.answers.iter().position(|(at, _)| *at <= now) {
                let (_, reply) = connection.answers.swap_remove(index);
                connection.session.reply(reply);
            }
        }
        let due = |write: &mut (Moment, u64, LedgerWrite)| write.0 <= now;
        let finished = self.connection.as_mut().and_then(|connection| connection.write.take_if(due));
        let Some((_, version, LedgerWrite { number, ledger })) = finished else { return };
        if self.chance(self.faults.conflicts) {
            let name = format!("c{}", self.rng.random_range(0..4));
            self.store.foreign_write(super::cluster::key("configmaps", &name));
        }
        let failed = self.chance(self.faults.failed_writes);
        let stored = !failed && self.swap(version, ledger);
        let Some(connection) = &mut self.connection else { return };
        match (failed, stored) {
            (true, _) => connection.session.ledger_failed(number),
            (false, true) => connection.session.ledger_saved(number),
            (false, false) => connection.session.ledger_conflict(number, &self.store.stored),
        }
    }

    /// Moves the outgoing messages of both sides onto the link.
    pub fn pump(&mut self) {
        let now = self.now;
        loop {
            let (out, lag) = (self.millis(3), self.millis(30));
            let Some(connection) = &mut self.connection else { return };
            while let Some(document) = self.kubeedge.up.pop_front() {
                let after = connection.up.back().map_or(now, |(at, _)| *at).max(now + lag);
                connection.up.push_back((after, document));
            }
            if connection.write.is_none()
                && let Some(write) = connection.session.poll_ledger(now, &self.cluster)
            {
                let takes = Duration::from_millis(self.rng.random_range(1..200));
                connection.write = Some((now + takes, self.store.version, write));
            }
            while let Some(event) = connection.session.poll_event() {
                if let CloudEvent::Request(request) = &event {
                    let answer = answer(&mut self.cluster, &connection.session, request);
                    let at = now + Duration::from_millis(self.rng.random_range(0..300));
                    connection.answers.extend(answer.map(|answer| (at, answer)));
                }
                self.events.push(event);
            }
            let Some(outgoing) = connection.session.poll_transmit(now, &self.cluster) else {
                self.events.extend(std::iter::from_fn(|| connection.session.poll_event()));
                return;
            };
            assert_eq!(outgoing.pieces().concat().len(), outgoing.len());
            let document = outgoing.to_bytes();
            let last = connection.down.back().map_or((now, now), |(left, arrives, ..)| (*left, *arrives));
            let left = last.0.max(now + out);
            let arrives = last.1.max(left + lag);
            note_push(connection, &mut self.pushes, now, &document);
            self.most_in_flight = self.most_in_flight.max(connection.open.len());
            connection.down.push_back((left, arrives, outgoing.number, document));
        }
    }

    /// Ends all faults for long enough; then the edge must hold the truth.
    pub fn heal(&mut self) {
        self.faults = Faults::default();
        self.kubeedge.stalled_until = Moment::default();
        self.kubeedge.failing = None;
        self.silent = false;
        self.see();
        self.run_for(Duration::from_secs(3));
        if self.connection.is_none() {
            self.connect();
        }
        self.run_for(Duration::from_secs(400));
        self.check();
    }

    pub fn check(&self) {
        let rows = self.kubeedge.rows.iter();
        let rows: BTreeMap<_, _> =
            rows.map(|(path, row)| (path.clone(), (row.uid.clone(), row.revision))).collect();
        let truth = self.cluster.truth();
        let good = |(path, (uid, revision)): (&String, &(String, u64))| {
            self.cluster.is_served_by(path, uid, *revision)
        };
        let complete = truth.keys().all(|path| rows.contains_key(path));
        assert!(complete && rows.iter().all(good), "rows of the edge: {rows:?}; they should be {truth:?}");
    }
}

fn trace(path: Option<&String>, now: Moment, way: &str, document: &Bytes) {
    if path.is_some_and(|path| String::from_utf8_lossy(document).contains(path)) {
        println!("{now:?} {way} {}", String::from_utf8_lossy(document));
    }
}

pub fn object(text: &str) -> Content {
    Content::from_json(&Bytes::copy_from_slice(text.as_bytes())).expect(text)
}

/// Only one version of an object at a time: the next is sent only after the acknowledgement, or when the first was
/// given up.
fn note_push(
    connection: &mut Connection,
    pushes: &mut Vec<(String, Operation, String)>,
    now: Moment,
    document: &Bytes,
) {
    let message = kubeedge::decode(document).expect("a message");
    if message.header.parent.is_some() {
        return;
    }
    let (id, path) = (message.header.id.to_string(), message.route.resource.to_wire());
    if connection.open.contains_key(&id) {
        return;
    }
    let given_up = RESEND_AFTER * u32::from(RESENDS_MAX);
    connection.open.retain(|_, (open, since)| *open != path || now.since(*since) < given_up);
    let busy = connection.open.values().any(|(open, _)| *open == path);
    assert!(!busy, "two versions of {path} are in flight");
    connection.open.insert(id, (path.clone(), now));
    pushes.push((path, message.route.operation, message.route.source.to_string()));
}

fn note_ack(open: &mut BTreeMap<String, (String, Moment)>, document: &Bytes) {
    let message = kubeedge::decode(document).expect("a message");
    if let Some(parent) = message.header.parent {
        open.remove(&parent.to_string());
    }
}

/// The cluster's API: it answers with its present state, whenever the answer arrives.
fn answer(cluster: &mut Cluster, _session: &CloudSession, request: &Request) -> Option<Reply> {
    let RequestBody::Message(message) = &request.body else { panic!("KubeEdge edges send messages") };
    let path = message.route.resource.as_object()?;
    let word = match path.resource_type {
        ResourceType::PodPatch => ResourceType::Pod,
        ResourceType::NodePatch => ResourceType::Node,
        ref other => other.clone(),
    };
    let key = ObjectKey::new(resource_of(&word)?, path.namespace(), path.name.as_deref()?);
    if message.route.operation == Operation::Patch && cluster.objects.contains_key(&key) {
        cluster.report(&key);
    }
    let id = MessageId::parse("draft").expect("printable");
    let missing = || StatusError::new(404, "NotFound", "not found");
    let exists = message.route.operation == Operation::Insert;
    let json = cluster.json(&key).map(|json| object(&json));
    let content = match (message.route.operation.clone(), json) {
        (Operation::Query, Some(json)) => json,
        (Operation::Query, None) if !cluster.blind && cluster.is_optional(&key) => {
            object(&format!(r#"{{"metadata":{{"name":"{}","namespace":"default"}}}}"#, key.name()))
        }
        (Operation::Query, None) => missing().to_content(),
        (_, Some(_)) if exists => {
            Outcome::Failed(StatusError::new(409, "AlreadyExists", "exists")).to_content()
        }
        (_, Some(json)) => Outcome::Done(json).to_content(),
        (_, None) => Outcome::Failed(missing()).to_content(),
    };
    let body: Message = message.controller_reply(id, 0, message.route.resource.clone(), content);
    Some(Reply { id: request.id, body: ReplyBody::Message(Box::new(body)) })
}
