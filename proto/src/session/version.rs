//! Versions of dialect `tombolo`, and how two peers agree on one.

/// A protocol version that this build speaks. Closed: an unknown number never becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolVersion {
    /// First version: frames as in `frame` of release 0.1.
    V1 = 1,
}

impl ProtocolVersion {
    /// Oldest version that this build speaks.
    pub const OLDEST: Self = Self::V1;
    /// Newest version that this build speaks.
    pub const NEWEST: Self = Self::V1;

    /// The range that a hello of this build carries.
    #[must_use]
    pub fn range() -> (u32, u32) {
        (Self::OLDEST.number(), Self::NEWEST.number())
    }

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The version with this number, when this build speaks it.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            _ => None,
        }
    }

    /// The newest version that is also in the peer's range (lowest, highest); none when the ranges do not overlap.
    #[must_use]
    pub fn negotiate(peer: (u32, u32)) -> Option<Self> {
        let (lowest, highest) = peer;
        let newest = highest.min(Self::NEWEST.number());
        (lowest <= newest).then(|| Self::from_number(newest)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiation_chooses_the_newest_common_version() {
        for (peer, chosen) in [
            ((1, 1), Some(ProtocolVersion::V1)),
            ((1, 9), Some(ProtocolVersion::V1)),
            ((0, 1), Some(ProtocolVersion::V1)),
            ((2, 9), None),
            ((0, 0), None),
            ((9, 1), None),
            ((u32::MAX, u32::MAX), None),
        ] {
            assert_eq!(ProtocolVersion::negotiate(peer), chosen, "peer range {peer:?}");
        }
    }

    #[test]
    fn version_numbers_are_stable() {
        assert_eq!(ProtocolVersion::V1.number(), 1);
        let (oldest, newest) = ProtocolVersion::range();
        for number in oldest..=newest {
            let version = ProtocolVersion::from_number(number).expect("no hole between oldest and newest");
            assert_eq!(version.number(), number);
        }
    }
}
