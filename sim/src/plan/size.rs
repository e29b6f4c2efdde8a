//! How large a generated plan is.

use super::random::SeededRandom;
use crate::observation::Millis;

/// How large a generated plan is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanSize {
    /// Replicas of cloudcore.
    pub replicas: u32,
    /// Nodes.
    pub nodes: u32,
    /// Namespaces with the same names in them.
    pub namespaces: u32,
    /// Groups of operations about the same objects.
    pub bursts: u32,
    /// Longest time between two of them.
    pub pause: Millis,
    /// Most faults in one of them.
    pub faults: u64,
    /// With objects of the application grid.
    pub grids: bool,
    /// With agents of dialect `kubeedge`.
    pub kubeedge: bool,
    /// With floods, objects of a mebibyte, and more bytes than shares have.
    pub large: bool,
}

impl PlanSize {
    /// One replica and one node.
    #[must_use]
    pub fn tiny() -> Self {
        Self {
            replicas: 1,
            nodes: 1,
            namespaces: 1,
            bursts: 4,
            pause: 4_000,
            faults: 2,
            grids: false,
            kubeedge: false,
            large: false,
        }
    }

    /// Two replicas and three nodes: most combinations of faults need no more.
    #[must_use]
    pub fn small() -> Self {
        Self { replicas: 2, nodes: 3, namespaces: 2, bursts: 8, faults: 3, ..Self::tiny() }
    }

    /// Three replicas and eight nodes.
    #[must_use]
    pub fn medium() -> Self {
        let (grids, large) = (true, true);
        Self { replicas: 3, nodes: 8, namespaces: 3, bursts: 16, grids, large, ..Self::small() }
    }

    /// Three replicas and twenty nodes.
    #[must_use]
    pub fn full() -> Self {
        Self { nodes: 20, namespaces: 4, bursts: 40, ..Self::medium() }
    }

    /// The size for a seed: mostly small, sometimes full.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed ^ 0x5157_4531);
        match random.weighted(&[(30, 0), (50, 1), (15, 2), (5, 3)]) {
            0 => Self::tiny(),
            1 => Self::small(),
            2 => Self::medium(),
            _ => Self::full(),
        }
    }
}

impl Default for PlanSize {
    fn default() -> Self {
        Self::small()
    }
}
