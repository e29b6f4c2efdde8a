//! One session against a scripted peer, for cases that never occur with a correct peer.

use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::{Frame, Hello, Inventory, features};
use tombolo_proto::session::{CloudConfig, CloudEvent, CloudSession, ProtocolVersion, SessionError};
use tombolo_proto::{Lane, Moment, Seq, StoreId, SubscriptionId};

use super::cloud::{Cloud, key};
use super::world::node;

/// A cloud session, its view and a clock.
pub struct Solo {
    pub session: CloudSession,
    pub view: Cloud,
    pub now: Moment,
}

impl Solo {
    /// A session that waits for the hello; area 0 contains `objects` small objects.
    pub fn new(objects: usize) -> Self {
        Self::with(objects, |_| {})
    }

    pub fn with(objects: usize, configure: impl FnOnce(&mut CloudConfig)) -> Self {
        let mut view = Cloud::new();
        for number in 0..objects {
            view.put(&key(0, number), 16);
            view.want(0, &key(0, number), true);
        }
        view.take_offers();
        view.subscriptions = [(SubscriptionId::NODE, 0)].into();
        let mut config = CloudConfig::new(node(), view.epoch(), view.trim_version, 1_700_000_000_000);
        configure(&mut config);
        Self { session: CloudSession::new(config, Moment::default()), view, now: Moment::default() }
    }

    pub fn hello(&self) -> Hello {
        Hello {
            versions: ProtocolVersion::range(),
            node: node(),
            store: StoreId([7; 16]),
            epoch: Some(self.view.epoch()),
            trim_version: self.view.trim_version,
            features: features::ALL,
            inventory: Inventory::Full(Vec::new()),
            agent: "a test".to_owned(),
            instance: 0,
            attestation: Bytes::new(),
        }
    }

    /// The same session after an accepted hello.
    pub fn greeted(mut self) -> Self {
        let hello = Frame::Hello(self.hello());
        self.feed(Lane::Control, hello).expect("a good hello");
        self
    }

    pub fn feed(&mut self, lane: Lane, frame: Frame) -> Result<(), SessionError> {
        self.session.handle_frame(self.now, lane, frame, &self.view)
    }

    pub fn ack(&mut self, lane: Lane, seq: u64) {
        self.feed(Lane::Control, Frame::Ack { lanes: vec![(lane, Seq(seq))] }).expect("was sent");
    }

    /// Everything that one lane sends now.
    pub fn sent(&mut self, lane: Lane) -> Vec<Frame> {
        std::iter::from_fn(|| self.session.poll_transmit(self.now, lane, &self.view)).collect()
    }

    pub fn events(&mut self) -> Vec<CloudEvent> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    /// Time passes; due timers fire.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.session.next_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.session.handle_timeout(self.now);
        }
        self.now = end;
    }

    /// Changes the view and offers the changed keys.
    pub fn change(&mut self, change: impl FnOnce(&mut Cloud)) {
        change(&mut self.view);
        for key in self.view.take_offers() {
            self.session.offer(SubscriptionId::NODE, key, &self.view);
        }
    }
}

/// Position and object name of each delivery.
pub fn deliveries(frames: &[Frame]) -> Vec<(u64, String)> {
    let delivery = |frame: &Frame| match frame {
        Frame::Deliver(deliver) => Some((deliver.seq.0, deliver.change.key().name().to_owned())),
        _ => None,
    };
    frames.iter().filter_map(delivery).collect()
}
