//! One connection, and what is observed of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_link::mem::{Crossing, Faults, Way};
use tombolo_proto::Lane;

use super::NetworkObserver;
use super::cable::Cable;
use crate::observation::Seen;
use crate::oracle::wire::PackageReader;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The machine at its edge's end.
    pub(super) machine: String,
    pub(super) faults: Faults,
    ends: Arc<Mutex<ConnectionEnds>>,
}

/// Which ends of a connection live.
#[derive(Debug, Default)]
struct ConnectionEnds {
    is_cut: bool,
    cloud_ended: bool,
    edge_ended: bool,
}

impl ConnectionEnds {
    fn has_ended(&self) -> bool {
        self.is_cut || self.cloud_ended || self.edge_ended
    }
}

impl Connection {
    /// A new connection. It is observed from the first byte on.
    pub(super) fn new(machine: &str, faults: Faults, (number, tell): (u64, NetworkObserver)) -> Self {
        let ends = Arc::<Mutex<ConnectionEnds>>::default();
        let mut watch =
            Watch { number, tell, ends: Arc::clone(&ends), down: <_>::default(), up: <_>::default() };
        faults.observe(move |crossing| watch.see(crossing));
        Self { machine: machine.to_owned(), faults, ends }
    }

    /// Whether neither end is used any more.
    pub(super) fn is_over(&self) -> bool {
        let ends = self.ends.lock();
        ends.is_cut || (ends.cloud_ended && ends.edge_ended)
    }

    pub(super) fn lives_at_both_ends(&self) -> bool {
        !self.ends.lock().has_ended()
    }

    /// Gives the connection the faults of its cable.
    pub(super) fn apply(&self, cable: &Cable, latency: Duration) {
        for way in [Way::Down, Way::Up] {
            let faults = cable.way(way);
            for lane in Lane::ALL {
                self.faults.set_delay(way, lane, latency + faults.delay());
                self.faults.hold(way, lane, faults.is_held(lane.index()));
            }
            self.faults.silence(way, cable.is_silent(way));
        }
    }
}

/// The observer of one connection.
struct Watch {
    number: u64,
    tell: NetworkObserver,
    ends: Arc<Mutex<ConnectionEnds>>,
    down: PackageReader,
    up: PackageReader,
}

impl Watch {
    fn see(&mut self, crossing: Crossing) {
        match crossing {
            Crossing::Package(way, bytes) => {
                let up = way == Way::Up;
                let reader = if up { &mut self.up } else { &mut self.down };
                for (lane, bytes, frame) in reader.read(&bytes) {
                    (self.tell)(Seen::Sent { connection: self.number, up, lane, bytes, frame });
                }
            }
            Crossing::Finished(Way::Down) => self.end("by the replica", |ends| ends.cloud_ended = true),
            Crossing::Finished(Way::Up) => self.end("by the edge", |ends| ends.edge_ended = true),
            Crossing::Cut => self.end("broken", |ends| ends.is_cut = true),
        }
    }

    /// The first end of a connection is observed.
    fn end(&self, why: &str, change: impl FnOnce(&mut ConnectionEnds)) {
        let mut ends = self.ends.lock();
        let is_news = !ends.has_ended();
        change(&mut ends);
        drop(ends);
        if is_news {
            (self.tell)(Seen::Closed { connection: self.number, why: why.to_owned() });
        }
    }
}
