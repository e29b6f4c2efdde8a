//! What can go wrong.

use serde::{Deserialize, Serialize};

use crate::observation::{FaultScope, Millis, ObjectId};

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectedFault {
    /// The link of a node carries nothing, and neither end is told.
    Cut {
        /// The node.
        node: String,
        /// Which way.
        direction: LinkDirection,
    },
    /// The link of a node breaks, and both ends are told. The node connects again as it would.
    Reset {
        /// The node.
        node: String,
    },
    /// The link of a node is slow.
    Delay {
        /// The node.
        node: String,
        /// Which way.
        direction: LinkDirection,
        /// Time that each frame takes.
        millis: Millis,
    },
    /// One lane of a node's link carries nothing while the others go on.
    HoldLane {
        /// The node.
        node: String,
        /// The lane, from 0.
        lane: u8,
        /// Which way.
        direction: LinkDirection,
    },
    /// The node opens another connection while the one before still lives.
    DuplicateConnection {
        /// The node.
        node: String,
    },
    /// A copy of the node's disk runs on a second machine.
    CloneIdentity {
        /// The node.
        node: String,
    },
    /// The node's next connections lead to this replica.
    SwitchReplica {
        /// The node.
        node: String,
        /// The replica.
        replica: u32,
    },
    /// The agent of a node ends without warning.
    CrashAgent {
        /// The node.
        node: String,
        /// At which step.
        point: CrashPoint,
    },
    /// The machine of a node loses power: the agent ends, and what was not synced is lost or torn.
    PowerCut {
        /// The node.
        node: String,
        /// At which step.
        point: CrashPoint,
    },
    /// A replica ends without warning.
    CrashReplica {
        /// The replica.
        replica: u32,
        /// At which step.
        point: CrashPoint,
    },
    /// A replica's watches of a kind show nothing new.
    WatchLag {
        /// The replica.
        replica: u32,
        /// The kind.
        resource: String,
    },
    /// A replica's watches of a kind end with 410, and its next list begins anew.
    WatchGone {
        /// The replica.
        replica: u32,
        /// The kind.
        resource: String,
    },
    /// The connections under a replica's watches of a kind are dead, and the replica is not told.
    WatchHalfOpen {
        /// The replica.
        replica: u32,
        /// The kind.
        resource: String,
    },
    /// The API server answers calls about a kind with an error.
    ApiFailure {
        /// The kind.
        resource: String,
        /// The verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
        verb: String,
        /// Status: 403, 404 (of a whole kind), 409 (of a change), 429, 500, 503.
        code: u16,
    },
    /// The API server does not answer calls about a kind; writes are carried out nevertheless.
    ApiTimeout {
        /// The kind.
        resource: String,
        /// The verb.
        verb: String,
    },
    /// The API server is down; all its connections end.
    ApiDown {},
    /// The API server is restored from a backup.
    RestoreBackup {
        /// Time of the plan at which the backup was taken.
        taken_at: Millis,
    },
    /// A webhook for writes of a kind hangs until the API server gives up.
    WebhookHang {
        /// The kind.
        resource: String,
    },
    /// A clock is set.
    Clock {
        /// Whose.
        host: SimulatedHost,
        /// By how many milliseconds; negative is back.
        jump: i64,
    },
    /// The disk of a node misbehaves.
    Disk {
        /// The node.
        node: String,
        /// How.
        fault: DiskFault,
    },
    /// A node starts again with an empty disk.
    ReplaceDisk {
        /// The node.
        node: String,
    },
    /// Somebody with the certificate of this node breaks the rules, beside its agent.
    Hostile {
        /// The node.
        node: String,
        /// What is done.
        act: HostileAct,
    },
    /// A replica has other trimming rules than the others.
    TrimRules {
        /// The replica.
        replica: u32,
        /// Number of the rules.
        version: u32,
    },
}

/// Which way frames travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkDirection {
    /// From the edge to the cloud.
    Up,
    /// From the cloud to the edge.
    Down,
    /// Both.
    Both,
}

/// The step at which a process ends: the next time that it comes there, or at once if the simulation cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CrashPoint {
    /// At once.
    Now,
    /// With a delivery received and not written.
    BeforeWrite,
    /// With a delivery written and not synced.
    BeforeCommit,
    /// With a delivery on disk and not acknowledged.
    BeforeAcknowledgement,
    /// With a call to the API server decided and not sent.
    BeforeCall,
    /// With a call to the API server carried out and its answer not read.
    BeforeAnswer,
    /// With a delivery decided and not sent.
    BeforeDelivery,
}

/// What a disk does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskFault {
    /// The next power cut leaves a part of the last write.
    Tear,
    /// No write fits.
    Full,
    /// Each sync takes this long.
    Slow {
        /// Milliseconds.
        millis: Millis,
    },
    /// Every write is refused.
    ReadOnly,
    /// Each sync fails, as with EIO.
    SyncFails,
}

/// Whose clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimulatedHost {
    /// A node.
    Node(String),
    /// A replica.
    Replica(u32),
    /// The API server.
    Api,
}

/// What a hostile node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostileAct {
    /// Frames that are valid in themselves, at the wrong time.
    FramesOutOfOrder,
    /// Bytes that are no frame.
    Garbage,
    /// One frame of this length.
    OversizedFrame {
        /// Bytes.
        bytes: u32,
    },
    /// A read of an object that its pods do not refer to.
    ReadObject {
        /// The object.
        object: ObjectId,
    },
    /// A report about an object of another node.
    ReportObject {
        /// The object.
        object: ObjectId,
    },
    /// A subscription to a kind that it has no right to.
    Subscribe {
        /// The kind.
        resource: String,
    },
    /// Acknowledgements of what was never sent.
    FalseAcknowledgement,
    /// An inventory of objects that do not exist.
    FalseInventory {
        /// How many.
        entries: u32,
    },
    /// A hello in the name of another node.
    FalseName {
        /// The other node.
        name: String,
    },
    /// Many connections, one after the other.
    Reconnects {
        /// How many.
        count: u32,
    },
    /// Nothing is read any more.
    ReadsNothing,
}

impl InjectedFault {
    /// The node that it is about.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Cut { node, .. }
            | Self::Reset { node }
            | Self::Delay { node, .. }
            | Self::HoldLane { node, .. }
            | Self::DuplicateConnection { node }
            | Self::CloneIdentity { node }
            | Self::SwitchReplica { node, .. }
            | Self::CrashAgent { node, .. }
            | Self::PowerCut { node, .. }
            | Self::Disk { node, .. }
            | Self::ReplaceDisk { node }
            | Self::Hostile { node, .. }
            | Self::Clock { host: SimulatedHost::Node(node), .. } => Some(node),
            _ => None,
        }
    }

    /// What it may delay.
    #[must_use]
    pub fn scope(&self) -> FaultScope {
        match self {
            Self::CloneIdentity { node } | Self::DuplicateConnection { node } => {
                FaultScope::Identity(node.clone())
            }
            Self::Hostile { node, .. } => FaultScope::Hostile(node.clone()),
            Self::ApiFailure { resource, verb, .. } | Self::ApiTimeout { resource, verb }
                if matches!(&**resource, "configmaps" | "secrets") && matches!(&**verb, "list" | "watch") =>
            {
                FaultScope::Lists(resource.clone())
            }
            // What a node has depends on its pods.
            Self::WatchLag { resource, .. }
            | Self::WatchGone { resource, .. }
            | Self::WatchHalfOpen { resource, .. }
            | Self::ApiFailure { resource, .. }
            | Self::ApiTimeout { resource, .. }
            | Self::WebhookHang { resource }
                if resource != "pods" && resource != "nodes" =>
            {
                FaultScope::Kind(resource.clone())
            }
            _ => match self.node() {
                Some(node) => FaultScope::Node(node.to_owned()),
                None => FaultScope::Everything,
            },
        }
    }

    /// The replica that it is about.
    #[must_use]
    pub fn replica(&self) -> Option<u32> {
        match self {
            Self::SwitchReplica { replica, .. }
            | Self::CrashReplica { replica, .. }
            | Self::WatchLag { replica, .. }
            | Self::WatchGone { replica, .. }
            | Self::WatchHalfOpen { replica, .. }
            | Self::TrimRules { replica, .. }
            | Self::Clock { host: SimulatedHost::Replica(replica), .. } => Some(*replica),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_excuses_what_it_can_delay_and_no_more() {
        let (verb, code, replica) = ("get".to_owned(), 500, 0);
        let failure = |resource: &str| {
            let (resource, verb) = (resource.to_owned(), verb.clone());
            InjectedFault::ApiFailure { resource, verb, code }.scope()
        };
        assert_eq!(failure("secrets"), FaultScope::Kind("secrets".to_owned()));
        assert_eq!(failure("pods"), FaultScope::Everything);
        let node = "n".to_owned();
        assert_eq!(
            InjectedFault::SwitchReplica { node: node.clone(), replica }.scope(),
            FaultScope::Node(node.clone())
        );
        assert_eq!(InjectedFault::CloneIdentity { node: node.clone() }.scope(), FaultScope::Identity(node));
        assert_eq!(InjectedFault::ApiDown {}.scope(), FaultScope::Everything);
        let host = SimulatedHost::Replica(0);
        assert_eq!(InjectedFault::Clock { host, jump: 1 }.scope(), FaultScope::Everything);
    }
}
