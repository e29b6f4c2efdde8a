//! Faults that fall into any burst.

use super::PlanGenerator;
use crate::observation::Millis;
use crate::plan::{CrashPoint, DiskFault, InjectedFault, LinkDirection, SimulatedHost};

/// The kinds whose watches and calls fail.
const KINDS: [&str; 6] =
    ["pods", "configmaps", "secrets", "nodes", "services", "endpointslices.discovery.k8s.io"];

const HOUR: i64 = 3_600_000;

impl PlanGenerator<'_> {
    /// Up to so many faults around this node, within the burst.
    pub(super) fn some_faults(&mut self, node: &str) {
        let count = self.random.below(self.size.faults + 1);
        for _ in 0..count {
            let (after, lasts) = (self.moment(), self.duration());
            match self.random.below(10) {
                0..=3 => self.link_fault(node, after, lasts),
                4..=5 => self.host_fault(node, after, lasts),
                6..=7 => self.watch_fault(after, lasts),
                _ => self.api_fault(after, lasts),
            }
        }
    }

    pub(super) fn any_kind(&mut self) -> String {
        (*self.random.pick(&KINDS)).to_owned()
    }

    pub(super) fn direction(&mut self) -> LinkDirection {
        *self.random.pick(&[LinkDirection::Up, LinkDirection::Down, LinkDirection::Both])
    }

    pub(super) fn crash_point(&mut self) -> CrashPoint {
        *self.random.pick(&[
            CrashPoint::Now,
            CrashPoint::BeforeWrite,
            CrashPoint::BeforeCommit,
            CrashPoint::BeforeAcknowledgement,
            CrashPoint::BeforeCall,
            CrashPoint::BeforeAnswer,
            CrashPoint::BeforeDelivery,
        ])
    }

    pub(super) fn link_fault(&mut self, node: &str, after: Millis, lasts: Millis) {
        let (node, direction) = (node.to_owned(), self.direction());
        let replica = self.any_replica();
        let fault = match self.random.below(12) {
            0..=2 => InjectedFault::Cut { node, direction },
            3..=4 => InjectedFault::Reset { node },
            5..=6 => InjectedFault::Delay { node, direction, millis: self.random.between(20, 4_000) },
            7 => InjectedFault::HoldLane {
                node,
                direction,
                lane: u8::try_from(self.random.below(3)).unwrap_or(0),
            },
            8..=10 => InjectedFault::SwitchReplica { node, replica },
            _ => InjectedFault::DuplicateConnection { node },
        };
        let is_once = matches!(
            fault,
            InjectedFault::Reset { .. }
                | InjectedFault::SwitchReplica { .. }
                | InjectedFault::DuplicateConnection { .. }
        );
        self.fault_at(after, if is_once { 0 } else { lasts }, fault);
    }

    pub(super) fn host_fault(&mut self, node: &str, after: Millis, lasts: Millis) {
        let (point, replica) = (self.crash_point(), self.any_replica());
        let node = node.to_owned();
        match self.random.below(10) {
            0..=2 => self.fault_at(after, lasts.min(20_000), InjectedFault::CrashAgent { node, point }),
            3..=4 => self.fault_at(after, lasts.min(20_000), InjectedFault::PowerCut { node, point }),
            5..=6 => self.fault_at(after, lasts.min(60_000), InjectedFault::CrashReplica { replica, point }),
            7..=8 => {
                let fault = self.disk_fault();
                self.fault_at(after, lasts, InjectedFault::Disk { node: node.clone(), fault });
                if fault == DiskFault::Tear {
                    self.fault_at(after + 500, 1_000, InjectedFault::PowerCut { node, point });
                }
            }
            _ => {
                let jump = *self.random.pick(&[-7 * HOUR, -HOUR, -60_000, 60_000, HOUR, 9 * HOUR]);
                let host = match self.random.below(3) {
                    0 => SimulatedHost::Node(node),
                    1 => SimulatedHost::Replica(replica),
                    _ => SimulatedHost::Api,
                };
                self.fault_at(after, lasts, InjectedFault::Clock { host, jump });
            }
        }
    }

    pub(super) fn disk_fault(&mut self) -> DiskFault {
        match self.random.below(5) {
            0 => DiskFault::Tear,
            1 => DiskFault::Full,
            2 => DiskFault::Slow { millis: self.random.between(100, 5_000) },
            3 => DiskFault::ReadOnly,
            _ => DiskFault::SyncFails,
        }
    }

    pub(super) fn watch_fault(&mut self, after: Millis, lasts: Millis) {
        let (replica, resource) = (self.any_replica(), self.any_kind());
        match self.random.below(5) {
            0..=2 => self.fault_at(after, lasts, InjectedFault::WatchLag { replica, resource }),
            3 => self.fault_at(after, 0, InjectedFault::WatchGone { replica, resource }),
            _ => self.fault_at(after, lasts, InjectedFault::WatchHalfOpen { replica, resource }),
        }
    }

    pub(super) fn api_fault(&mut self, after: Millis, lasts: Millis) {
        let resource = self.any_kind();
        let verb =
            (*self.random.pick(&["get", "list", "watch", "patch", "update", "create", "delete"])).to_owned();
        match self.random.below(10) {
            0..=3 => {
                let code = self.failure_of(&verb);
                self.fault_at(after, lasts, InjectedFault::ApiFailure { resource, verb, code });
            }
            4..=6 => self.fault_at(after, lasts, InjectedFault::ApiTimeout { resource, verb }),
            7..=8 => self.fault_at(after, lasts.min(60_000), InjectedFault::ApiDown {}),
            _ => self.fault_at(after, lasts, InjectedFault::WebhookHang { resource }),
        }
    }

    /// A status with which an API server refuses such a call. A false 404 of one object, or a false 409 of a creation,
    /// would be a lie about the object, and not a failure.
    pub(super) fn failure_of(&mut self, verb: &str) -> u16 {
        let codes: &[u16] = match verb {
            "list" | "watch" => &[403, 404, 429, 500, 503],
            "patch" | "update" => &[403, 409, 429, 500, 503],
            _ => &[403, 429, 500, 503],
        };
        *self.random.pick(codes)
    }
}
