//! The faults of one machine's cable.

use std::time::Duration;

use tombolo_link::mem::Way;

use crate::observation::Millis;
use crate::plan::LinkDirection;

/// A cable. Each fault is counted, so that overlapping ones end one by one.
#[derive(Debug, Clone, Default)]
pub(super) struct Cable {
    /// The replica to which new connections lead.
    pub(super) replica: u32,
    /// The machine has no power.
    pub(super) is_dark: bool,
    down: WayFaults,
    up: WayFaults,
}

/// The faults of one direction.
#[derive(Debug, Clone, Default)]
pub(super) struct WayFaults {
    cuts: u32,
    delays: Vec<Millis>,
    held: [u32; 3],
}

impl WayFaults {
    /// Time that each frame takes in addition.
    pub(super) fn delay(&self) -> Duration {
        Duration::from_millis(self.delays.iter().max().copied().unwrap_or(0))
    }

    /// Whether a lane carries nothing.
    pub(super) fn is_held(&self, lane: usize) -> bool {
        self.held.get(lane).is_some_and(|held| *held > 0)
    }
}

impl Cable {
    /// Whether a new connection can be made.
    pub(super) fn is_whole(&self) -> bool {
        [Way::Down, Way::Up].into_iter().all(|way| !self.is_silent(way))
    }

    /// Whether nothing gets through.
    pub(super) fn is_silent(&self, way: Way) -> bool {
        self.is_dark || self.way(way).cuts > 0
    }

    pub(super) fn way(&self, way: Way) -> &WayFaults {
        match way {
            Way::Down => &self.down,
            Way::Up => &self.up,
        }
    }

    pub(super) fn cut(&mut self, direction: LinkDirection, begins: bool) {
        self.each(direction, |faults| count(&mut faults.cuts, begins));
    }

    pub(super) fn delay(&mut self, direction: LinkDirection, millis: Millis, begins: bool) {
        self.each(direction, |faults| {
            if begins {
                faults.delays.push(millis);
            } else if let Some(index) = faults.delays.iter().position(|delay| *delay == millis) {
                faults.delays.swap_remove(index);
            }
        });
    }

    pub(super) fn hold(&mut self, lane: u8, direction: LinkDirection, begins: bool) {
        self.each(direction, |faults| {
            if let Some(held) = faults.held.get_mut(usize::from(lane)) {
                count(held, begins);
            }
        });
    }

    fn each(&mut self, direction: LinkDirection, change: impl Fn(&mut WayFaults)) {
        if direction != LinkDirection::Up {
            change(&mut self.down);
        }
        if direction != LinkDirection::Down {
            change(&mut self.up);
        }
    }
}

fn count(faults: &mut u32, begins: bool) {
    *faults = if begins { faults.saturating_add(1) } else { faults.saturating_sub(1) };
}
