//! One connection of either dialect, and what is observed of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_link::mem::{Crossing, Faults, Way};
use tombolo_proto::Lane;

use super::NetworkObserver;
use super::cable::Cable;
use super::documents::DocumentFaults;
use crate::observation::Seen;
use crate::oracle::wire::PackageReader;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The machine at its edge's end.
    pub(super) machine: String,
    wire: ConnectionWire,
    ends: ConnectionEnds,
}

/// What carries a connection.
#[derive(Debug)]
pub(super) enum ConnectionWire {
    /// Dialect `tombolo`.
    Frames(Faults),
    /// Dialect `kubeedge`, which has no lanes.
    Documents(DocumentFaults),
}

/// Which ends of a connection live. Clones are of the same connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionEnds {
    number: u64,
    ended: Arc<Mutex<EndedParts>>,
}

#[derive(Debug, Default)]
struct EndedParts {
    is_cut: bool,
    cloud: bool,
    edge: bool,
}

impl ConnectionEnds {
    pub(super) fn new(number: u64) -> Self {
        Self { number, ended: Arc::default() }
    }

    fn has_ended(&self) -> bool {
        let ended = self.ended.lock();
        ended.is_cut || ended.cloud || ended.edge
    }

    /// Notes that an end or all of the connection is gone. The first is observed.
    pub(super) fn end(&self, crossing: &Crossing, tell: &NetworkObserver) {
        let is_news = !self.has_ended();
        let mut ended = self.ended.lock();
        let why = match crossing {
            Crossing::Package(..) => return,
            Crossing::Finished(Way::Down) => {
                ended.cloud = true;
                "by the replica"
            }
            Crossing::Finished(Way::Up) => {
                ended.edge = true;
                "by the edge"
            }
            Crossing::Cut => {
                ended.is_cut = true;
                "broken"
            }
        };
        drop(ended);
        if is_news {
            tell(Seen::Closed { connection: self.number, why: why.to_owned() });
        }
    }
}

impl Connection {
    pub(super) fn new(machine: &str, wire: ConnectionWire, ends: ConnectionEnds) -> Self {
        Self { machine: machine.to_owned(), wire, ends }
    }

    /// Whether neither end is used any more.
    pub(super) fn is_over(&self) -> bool {
        let ended = self.ends.ended.lock();
        ended.is_cut || (ended.cloud && ended.edge)
    }

    pub(super) fn lives_at_both_ends(&self) -> bool {
        !self.ends.has_ended()
    }

    /// Breaks the connection.
    pub(super) fn cut(&self) {
        match &self.wire {
            ConnectionWire::Frames(faults) => faults.cut(),
            ConnectionWire::Documents(faults) => faults.cut(),
        }
    }

    /// Gives the connection the faults of its cable.
    pub(super) fn apply(&self, cable: &Cable, latency: Duration) {
        for way in [Way::Down, Way::Up] {
            let (faults, is_silent) = (cable.way(way), cable.is_silent(way));
            let delay = latency + faults.delay();
            match &self.wire {
                ConnectionWire::Documents(wire) => wire.set(way, delay, is_silent),
                ConnectionWire::Frames(wire) => {
                    for lane in Lane::ALL {
                        wire.set_delay(way, lane, delay);
                        wire.hold(way, lane, faults.is_held(lane.index()));
                    }
                    wire.silence(way, is_silent);
                }
            }
        }
    }
}

/// Observes the packages of a connection.
pub(super) struct SentPackages {
    tell: NetworkObserver,
    ends: ConnectionEnds,
    down: PackageReader,
    up: PackageReader,
}

impl SentPackages {
    pub(super) fn new(ends: ConnectionEnds, tell: NetworkObserver) -> Self {
        Self { tell, ends, down: PackageReader::default(), up: PackageReader::default() }
    }

    pub(super) fn see(&mut self, crossing: &Crossing) {
        if let Crossing::Package(way, bytes) = crossing {
            let (connection, up) = (self.ends.number, *way == Way::Up);
            let reader = if up { &mut self.up } else { &mut self.down };
            for (lane, bytes, frame) in reader.read(bytes) {
                (self.tell)(Seen::Sent { connection, up, lane, bytes, frame });
            }
        }
        self.ends.end(crossing, &self.tell);
    }
}
