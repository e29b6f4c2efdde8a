//! Windows and bounds of the rules.

use super::needs::NodeShare;
use crate::observation::Millis;

/// Windows and bounds. The windows are upper bounds of the simulated network: with too small ones, lawful runs fail.
#[derive(Debug, Clone)]
pub struct OracleLimits {
    /// Longest time between the decision of a replica and the moment at which it hands the frame to the network.
    pub sending: Millis,
    /// Longest time between the decision of a replica and its effect at the local API: sending, delays and held lanes,
    /// half-open connections, the disk.
    pub flight: Millis,
    /// After the faults, everything has to be right within this time: back-off, retries of reads and refusals.
    pub converge: Millis,
    /// Longest time in which an undisturbed node gets what it needs: the longest back-off of a connection, and reads
    /// that fail until they count as unreadable.
    pub late: Millis,
    /// The same after a fault of watches or of the API server: a watch whose connection is dead is noticed after 300 s.
    pub late_of_watches: Millis,
    /// The same after two processes had the node's identity: the longest wait of the one that was replaced, twice.
    pub late_after_contest: Millis,
    /// Most connections of one node in a minute.
    pub connections: usize,
    /// Longest time for which a right that has ended may still be used: reviews are repeated in this interval.
    pub review: Millis,
    /// Most deliveries of one lane under way (docs/protocol.md).
    pub window_count: usize,
    /// Most bytes of one lane under way, unless it is one delivery alone; names and frames around bodies included.
    pub window_bytes: usize,
    /// What one node may need (docs/security.md, "Bounds").
    pub share: NodeShare,
}

impl Default for OracleLimits {
    fn default() -> Self {
        Self {
            sending: 2_000,
            flight: 180_000,
            converge: 900_000,
            late: 200_000,
            late_of_watches: 340_000,
            late_after_contest: 1_200_000,
            connections: 30,
            review: 330_000,
            window_count: 64,
            window_bytes: 1024 * 1024 + 64 * 1024,
            share: NodeShare { references: 192 * 1024, pods: 2 * 1024 * 1024 },
        }
    }
}
