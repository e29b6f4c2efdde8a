//! The cloud, the edge, a connection between them, and the clock.

use std::time::Duration;

use tombolo_proto::frame::{
    ApiRequest, Frame, Goodbye, GoodbyeReason, Inventory, Refusal, RefusalReason, RequestBody, Subscribe,
    features,
};
use tombolo_proto::session::{
    CloudConfig, CloudEvent, CloudSession, EdgeConfig, EdgeEvent, EdgeSession, EdgeView, SubscribeError,
};
use tombolo_proto::{Lane, Moment, NodeId, Resource, SubscriptionId, limits};

use super::cloud::{AREAS, Cloud};
use super::edge::{Pending, Store};
use super::oracle::{Oracle, wanted_rows};
use super::wire::Wire;

/// One connection: both ends and everything between them.
#[derive(Debug)]
pub struct Connection {
    pub cloud: CloudSession,
    pub edge: EdgeSession,
    pub down: Wire,
    pub up: Wire,
    generation: u64,
    /// Frames that reached one of the two ends.
    pub arrived: u64,
}

/// Settings that do not change by themselves.
#[derive(Debug, Clone)]
pub struct Settings {
    pub window_count: usize,
    pub window_bytes: usize,
    pub delays: [Duration; 3],
    pub commit_delay: Duration,
    /// Features that the edge supports.
    pub features: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            window_count: limits::WINDOW_COUNT,
            window_bytes: limits::WINDOW_BYTES,
            delays: [Duration::from_millis(10); 3],
            commit_delay: Duration::from_millis(5),
            features: features::ALL,
        }
    }
}

/// The whole simulated system.
#[derive(Debug)]
pub struct World {
    pub now: Moment,
    pub settings: Settings,
    pub cloud: Cloud,
    pub store: Store,
    pub oracle: Oracle,
    pub connection: Option<Connection>,
    /// Areas that the edge follows; always includes the pushed set.
    pub followed: [bool; AREAS],
    /// Whether subscriptions are accepted when they arrive, or later by `accept_subscriptions`.
    pub accept_at_once: bool,
    pub undecided: Vec<SubscriptionId>,
    /// Number of next deliveries that are refused.
    pub refuse_next: usize,
    /// Nothing arrives at either side.
    pub blackhole: bool,
    /// Cuts the connection after this many arrived frames, once.
    pub cut_after: Option<u64>,
    pub cloud_events: Vec<CloudEvent>,
    pub edge_events: Vec<EdgeEvent>,
    /// Keeps the events for the test.
    pub keep_events: bool,
    /// A request is answered at once unless this is set.
    pub mute: bool,
    lease_clock: i64,
    /// The serial number of the present session, or of the last one.
    began: u64,
    /// Frames that passed, with their direction, for exact scenarios.
    pub trace: Vec<(bool, Lane, Frame)>,
    pub keep_trace: bool,
}

pub fn node() -> NodeId {
    NodeId::parse("edge-1").expect("valid")
}

/// A subscription to an area by an edge that holds nothing of it.
pub fn subscribe_to(subscription: SubscriptionId, area: usize) -> Subscribe {
    Subscribe {
        subscription,
        resource: Resource::new("", "v1", "configmaps"),
        namespace: format!("area{area}"),
        label_selector: String::new(),
        field_selector: String::new(),
        caller_token: None,
        epoch: None,
        inventory: Inventory::Full(Vec::new()),
    }
}

impl World {
    pub fn new(settings: Settings) -> Self {
        Self {
            now: Moment::default(),
            settings,
            cloud: Cloud::new(),
            store: Store::new(1),
            oracle: Oracle::default(),
            connection: None,
            followed: std::array::from_fn(|area| area == 0),
            accept_at_once: true,
            undecided: Vec::new(),
            refuse_next: 0,
            blackhole: false,
            cut_after: None,
            cloud_events: Vec::new(),
            edge_events: Vec::new(),
            keep_events: false,
            mute: false,
            lease_clock: 0,
            began: 0,
            trace: Vec::new(),
            keep_trace: false,
        }
    }

    pub fn cloud_config(&self) -> CloudConfig {
        let mut config =
            CloudConfig::new(node(), self.cloud.epoch(), self.cloud.trim_version, 1_700_000_000_000);
        config.window_count = self.settings.window_count;
        config.window_bytes = self.settings.window_bytes;
        config
    }

    pub fn edge_config(&self) -> EdgeConfig {
        let mut config = EdgeConfig::new(node(), self.store.id);
        config.epoch = self.store.areas[0].epoch.clone();
        config.trim_version = self.store.trim_version;
        config.features = self.settings.features;
        config
    }

    /// Opens a new connection with new sessions. As the edge must, it first finishes the writes of the old session.
    pub fn connect(&mut self) {
        self.cut();
        self.finish_writes();
        self.cloud.begin_session();
        self.cloud.take_offers();
        self.began = self.cloud.serial();
        self.cloud.subscriptions = [(SubscriptionId::NODE, 0)].into();
        self.store.subscriptions = [(SubscriptionId::NODE, 0)].into();
        self.store.areas[0].caught_up = false;
        let cloud = CloudSession::new(self.cloud_config(), self.now);
        let edge = EdgeSession::new(self.edge_config(), self.now, &self.store);
        let wire = || Wire::new(self.settings.delays);
        self.oracle.coverage.connections += 1;
        let generation = self.cloud.generation;
        self.connection = Some(Connection { cloud, edge, down: wire(), up: wire(), generation, arrived: 0 });
        self.pump();
    }

    /// Ends the connection and loses everything in transit.
    pub fn cut(&mut self) {
        self.connection = None;
        self.undecided.clear();
        self.oracle.session_over();
    }

    /// The edge crashes: everything that is not on disk is lost.
    pub fn crash_edge(&mut self) {
        self.cut();
        self.store.pending.clear();
    }

    /// The disk is lost as well: a new store with a new id.
    pub fn wipe_store(&mut self) {
        self.crash_edge();
        self.store = Store::new(self.store.id.0[0].wrapping_add(1));
        self.oracle.forget_store();
    }

    /// Offers the changed keys to the cloud session.
    pub fn offer_changes(&mut self) {
        let keys = self.cloud.take_offers();
        let Some(connection) = &mut self.connection else { return };
        for key in keys {
            let area = Cloud::area_of(&key);
            let subscriptions = self.cloud.subscriptions.iter().filter(|(_, of)| **of == area);
            for (subscription, _) in subscriptions {
                connection.cloud.offer(*subscription, key.clone(), &self.cloud);
            }
        }
        self.pump();
    }

    pub fn fetched(&mut self) {
        self.cloud.fetched();
        self.offer_changes();
    }

    /// The API server answers the view's doubts. Returns whether there were any.
    pub fn answer_doubts(&mut self) -> bool {
        let (confirmed, denied) = self.cloud.answer_doubts();
        self.oracle.coverage.confirmed += confirmed;
        self.oracle.coverage.denied += denied;
        self.offer_changes();
        confirmed + denied > 0
    }

    /// Begins or stops following an area.
    pub fn follow(&mut self, area: usize, follow: bool) {
        if area == 0 || std::mem::replace(&mut self.followed[area], follow) == follow {
            return;
        }
        if follow {
            self.subscribe(area);
        } else if let Some(connection) = &mut self.connection {
            let subscriptions: Vec<_> =
                self.store.subscriptions.iter().filter(|(_, of)| **of == area).map(|(s, _)| *s).collect();
            for subscription in subscriptions {
                connection.edge.unsubscribe(subscription);
                self.store.subscriptions.remove(&subscription);
            }
        }
        self.pump();
    }

    pub fn subscribe(&mut self, area: usize) {
        self.finish_writes();
        let Some(connection) = &mut self.connection else { return };
        let subscription = connection.edge.next_subscription();
        self.store.subscriptions.insert(subscription, area);
        self.store.areas[area].caught_up = false;
        let mut subscribe = subscribe_to(subscription, area);
        subscribe.epoch = self.store.areas[area].epoch.clone();
        subscribe.inventory = Inventory::Full(self.store.inventory(subscription));
        match connection.edge.subscribe(subscribe) {
            Ok(()) | Err(SubscribeError::Closed) => {}
            Err(error) => panic!("too many subscriptions: {error}"),
        }
    }

    pub fn accept_subscriptions(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        for subscription in std::mem::take(&mut self.undecided) {
            connection.cloud.open_subscription(subscription, &self.cloud);
        }
        self.pump();
    }

    pub fn ask(&mut self, timeout: Duration, len: usize) {
        let Some(connection) = &mut self.connection else { return };
        let body = RequestBody::Api(ApiRequest {
            content_type: "application/json".to_owned(),
            body: vec![b'x'; len].into(),
            ..ApiRequest::new("POST", "/api/v1/namespaces/default/events")
        });
        if let Ok(id) = connection.edge.request(self.now, timeout, body, None) {
            self.oracle.asked(id);
        }
        self.pump();
    }

    pub fn renew_lease(&mut self) {
        self.lease_clock += 1;
        if let Some(connection) = &mut self.connection {
            connection.edge.renew_lease(self.lease_clock);
            self.pump();
        }
    }

    pub fn say_goodbye(&mut self) {
        if let Some(connection) = &mut self.connection {
            let message = "the process stops".to_owned();
            let retry_after = Duration::from_secs(1);
            connection.cloud.say_goodbye(Goodbye { reason: GoodbyeReason::Draining, message, retry_after });
            self.pump();
        }
    }

    /// Processes all events until `end`, in the order of their times.
    pub fn run_until(&mut self, end: Moment) {
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = self.now.max(end);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<Moment> {
        let commit = self.store.pending.front().map(|pending| pending.due);
        let Some(connection) = &self.connection else { return commit };
        let timers = [connection.cloud.next_timeout(), connection.edge.next_timeout()];
        let arrivals = [connection.down.next_arrival(), connection.up.next_arrival()];
        let arrivals = arrivals.into_iter().filter(|_| !self.blackhole);
        timers.into_iter().chain(arrivals).chain([commit]).flatten().min()
    }

    /// Processes one event: a commit, one frame in each direction, or a timer.
    pub fn step(&mut self) {
        self.commit_due();
        self.receive();
        let now = self.now;
        if let Some(connection) = &mut self.connection {
            if connection.cloud.next_timeout().is_some_and(|due| due <= now) {
                connection.cloud.handle_timeout(now);
            }
            if connection.edge.next_timeout().is_some_and(|due| due <= now) {
                connection.edge.handle_timeout(now);
            }
        }
        self.pump();
    }

    fn receive(&mut self) {
        let now = self.now;
        let Some(connection) = self.connection.as_mut().filter(|_| !self.blackhole) else { return };
        if let Some((lane, frame)) = connection.down.receive(now) {
            connection.arrived += 1;
            let outcome = connection.edge.handle_frame(now, lane, frame, &self.store);
            outcome.expect("the cloud session keeps the protocol");
        }
        if self.cut_after.take_if(|after| *after <= connection.arrived).is_some() {
            return self.cut();
        }
        if let Some((lane, frame)) = connection.up.receive(now) {
            connection.arrived += 1;
            let outcome = connection.cloud.handle_frame(now, lane, frame, &self.cloud);
            outcome.expect("the edge session keeps the protocol");
        }
        if self.cut_after.take_if(|after| *after <= connection.arrived).is_some() {
            self.cut();
        }
    }

    /// Moves frames to the wires and events to their owners until nothing is left to do.
    pub fn pump(&mut self) {
        loop {
            let mut moved = false;
            let Some(connection) = &mut self.connection else { return };
            for lane in Lane::ALL {
                while connection.down.can_send(lane)
                    && let Some(frame) = connection.cloud.poll_transmit(self.now, lane, &self.cloud)
                {
                    let zstd = connection.cloud.features() & features::ZSTD != 0;
                    connection.down.send(self.now, lane, &frame, zstd);
                    moved = true;
                    if self.keep_trace {
                        self.trace.push((true, lane, frame));
                    }
                }
                while connection.up.can_send(lane)
                    && let Some(frame) = connection.edge.poll_transmit(self.now, lane)
                {
                    connection.up.send(self.now, lane, &frame, false);
                    moved = true;
                    if self.keep_trace {
                        self.trace.push((false, lane, frame));
                    }
                }
            }
            moved |= self.drain_cloud_events();
            moved |= self.drain_edge_events();
            if !moved {
                break;
            }
        }
        let over = |connection: &Connection| {
            connection.cloud.is_closed() && connection.edge.is_closed() && connection.down.is_empty()
        };
        if self.connection.as_ref().is_some_and(over) {
            self.cut();
        }
    }

    fn commit_due(&mut self) {
        while self.store.pending.front().is_some_and(|pending| pending.due <= self.now) {
            self.commit_first();
        }
    }

    /// The steps of a correct edge before it creates an inventory.
    pub fn finish_writes(&mut self) {
        while !self.store.pending.is_empty() {
            self.commit_first();
        }
    }

    fn commit_first(&mut self) {
        let Some(Pending { lane, seq, area, change, .. }) = self.store.pending.pop_front() else { return };
        let generation =
            self.connection.as_ref().map_or(self.cloud.generation, |connection| connection.generation);
        let refusal = |reason, message: &str| Refusal { lane, seq, reason, message: message.to_owned() };
        let refused = if self.store.disk_full {
            Some(refusal(RefusalReason::StorageFull, "the disk is full"))
        } else if self.refuse_next > 0 {
            self.refuse_next -= 1;
            Some(refusal(RefusalReason::Storage, "the write failed"))
        } else {
            self.oracle.check_apply(&self.store, area, &change, generation);
            Oracle::check_loss(&self.cloud, &self.store, area, &change, self.began);
            let stored = self.store.apply(area, &change);
            (!stored).then(|| refusal(RefusalReason::Malformed, "other content is held"))
        };
        if refused.is_some() && matches!(change, tombolo_proto::frame::Change::Adopt { .. }) {
            self.oracle.adoption_refused.insert(change.key().clone());
        }
        let Some(connection) = &mut self.connection else { return };
        self.oracle.coverage.refusals += u64::from(refused.is_some());
        match refused {
            Some(refusal) => connection.edge.refused(refusal),
            None => connection.edge.committed(lane, seq),
        }
    }

    /// Puts everything that the edge should hold on disk, as if it had been delivered long ago.
    pub fn assume_synced(&mut self) {
        self.cloud.take_offers();
        self.store.trim_version = self.cloud.trim_version;
        self.store.history = Some(self.cloud.epoch());
        for number in 0..AREAS {
            let area = &mut self.store.areas[number];
            area.rows = wanted_rows(&self.cloud.truth, number, self.cloud.trim_version);
            area.epoch = Some(self.cloud.epoch());
        }
    }

    /// Whether nothing is in transit between the two ends.
    fn is_quiet(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.down.is_empty() && connection.up.is_empty())
    }

    /// Ends all faults; then the edge must come to hold exactly what it should. Unreadable objects do not delay the
    /// others, and the edge holds them once they become readable.
    ///
    /// # Panics
    /// When it does not within an hour of virtual time.
    pub fn heal(&mut self) {
        let told = features::UNREADABLE | features::UNREADABLE_FOLLOWED;
        if self.settings.features & told != told {
            self.make_all_readable();
        }
        self.end_faults();
        self.converge();
        if self.make_all_readable() {
            self.offer_changes();
            self.converge();
        }
    }

    fn make_all_readable(&mut self) -> bool {
        let locked = self.cloud.unreadable.clone();
        locked.iter().for_each(|key| self.cloud.set_readable(key, true));
        !locked.is_empty()
    }

    fn end_faults(&mut self) {
        self.blackhole = false;
        self.cut_after = None;
        self.store.disk_full = false;
        self.refuse_next = 0;
        self.mute = false;
        self.accept_at_once = true;
        self.cloud.stalled.fill(false);
        self.offer_changes();
        self.fetched();
        self.accept_subscriptions();
    }

    fn converge(&mut self) {
        let end = self.now + Duration::from_secs(3600);
        loop {
            if self.connection.is_none() {
                self.connect();
            }
            if self.answer_doubts() {
                continue;
            }
            let settled = self.store.pending.is_empty() && self.is_quiet();
            let why = match settled.then(|| Oracle::difference(&self.cloud, &self.store, &self.followed)) {
                None => "frames are under way for ever".to_owned(),
                Some(Some(difference)) => difference,
                Some(None) if self.oracle.open_requests() == 0 => return,
                Some(None) => "a request has no answer".to_owned(),
            };
            let next = self.next_event().filter(|next| *next <= end);
            self.now = self.now.max(next.unwrap_or_else(|| panic!("an hour after the faults ended: {why}")));
            self.step();
        }
    }
}
