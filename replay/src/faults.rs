//! Peers that misbehave, put between a recording and the product: a replay must find each of them.
//!
//! Where a fault applies, one message at a time is altered, which is harder to find than every message: the *sites* of a
//! fault are counted, and a test tries some or all of them.

mod cloud;
mod edge;
mod forms;
mod live;
mod positions;

pub use cloud::{FaultyRun, Site};
pub(crate) use edge::{FaultyEdge, acknowledgement};
pub use live::FaultyCloud;

/// How a peer misbehaves. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerFault {
    /// Loses a message. Site 0 loses one message in ten.
    Drop,
    /// Sends a message after the next one: of a cloud, the next about the same object.
    Swap,
    /// Sends a message ten times.
    TenTimes,
    /// Sends an older version of an object after a newer one.
    Older,
    /// Adds one to a version.
    Version,
    /// Leaves out the owners of an object.
    Owners,
    /// Answers a read wrongly, and correctly when it is asked again.
    WrongRead,
    /// Acknowledges before storing: a cloud a write, an edge a delivery.
    EarlyAck,
    /// Never acknowledges: a cloud a write, an edge a delivery.
    NoAck,
}

impl PeerFault {
    /// All faults.
    pub const ALL: [Self; 9] = [
        Self::Drop,
        Self::Swap,
        Self::TenTimes,
        Self::Older,
        Self::Version,
        Self::Owners,
        Self::WrongRead,
        Self::EarlyAck,
        Self::NoAck,
    ];

    /// The fault's name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Swap => "swap",
            Self::TenTimes => "ten-times",
            Self::Older => "older",
            Self::Version => "version",
            Self::Owners => "owners",
            Self::WrongRead => "wrong-read",
            Self::EarlyAck => "early-ack",
            Self::NoAck => "no-ack",
        }
    }

    /// Why the fault cannot occur where it has no site.
    #[must_use]
    pub fn reason(self, of_cloud: bool) -> &'static str {
        match (self, of_cloud) {
            (Self::Drop | Self::TenTimes, true) => "the cloud sends nothing",
            (Self::Drop | Self::Swap | Self::TenTimes, false) => "the edge sends nothing of its own",
            (Self::Swap, true) => "no connection delivers an object twice",
            (Self::Older, true) => "no object has an older version",
            (Self::Older, false) => "no two messages about one object differ",
            (Self::Version, true) => "no object arrives alone",
            (Self::Version, false) => "no message has a version",
            (Self::Owners, _) => "no object has an owner",
            (Self::WrongRead, true) => "no read is answered with an object",
            (Self::WrongRead, false) => "the cloud asks for no inventory",
            (Self::EarlyAck | Self::NoAck, true) => "the edge writes nothing",
            (Self::EarlyAck | Self::NoAck, false) => "the cloud delivers nothing",
        }
    }
}

/// How many messages there are for each that is lost at site 0 of [`PeerFault::Drop`].
const ONE_IN: usize = 10;

/// How often [`PeerFault::TenTimes`] sends a message.
const TIMES: usize = 10;
