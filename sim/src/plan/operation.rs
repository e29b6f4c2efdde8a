//! The operations of a plan.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::fault::InjectedFault;
use super::manifest::ObjectContent;
use crate::observation::{Millis, ObjectId, Selection};

/// An operation with its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedOperation {
    /// When it begins.
    pub at: Millis,
    /// What is done.
    #[serde(flatten)]
    pub operation: PlanOperation,
}

/// What is done. Operations that have no effect, such as the deletion of an object that does not exist, are lawful.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanOperation {
    /// A user creates an object, or replaces it.
    Put {
        /// The object.
        object: ObjectId,
        /// What it says.
        #[serde(default)]
        content: ObjectContent,
    },
    /// A user writes an object without changing what an edge receives of it: another revision, equal content.
    Touch {
        /// The object.
        object: ObjectId,
    },
    /// A user deletes an object.
    Delete {
        /// The object.
        object: ObjectId,
        /// Time that a pod gets to terminate; the object exists until its node has reported that. 0: at once.
        #[serde(default, skip_serializing_if = "is_zero")]
        grace_seconds: u32,
    },
    /// A user deletes an object at once and creates it anew: same name, another UID.
    Recreate {
        /// The object.
        object: ObjectId,
        /// What the new one says.
        #[serde(default)]
        content: ObjectContent,
    },
    /// A user creates many objects, named `NAME-0`, `NAME-1` and so on, with the content of each made different by its
    /// number.
    Flood {
        /// The first part of the names, with kind and namespace.
        object: ObjectId,
        /// How many.
        count: u32,
        /// What each says.
        #[serde(default)]
        content: ObjectContent,
    },
    /// A user deletes what a flood has created.
    Ebb {
        /// As in the flood.
        object: ObjectId,
        /// How many.
        count: u32,
    },
    /// A local client of a node writes what a kubelet would: the status of a pod or of the Node, an event, a lease.
    Report {
        /// The node.
        node: String,
        /// The object.
        object: ObjectId,
        /// The marker of the report.
        text: String,
    },
    /// A local client of a node deletes a pod that has terminated.
    Terminated {
        /// The node.
        node: String,
        /// The pod.
        object: ObjectId,
    },
    /// A local client of a node reads an object.
    Read {
        /// The node.
        node: String,
        /// The object.
        object: ObjectId,
        /// Account whose token it shows, `NAMESPACE/NAME`; empty for the node's own credentials.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        account: String,
    },
    /// A local client of a node begins to follow a selection.
    Follow {
        /// The node.
        node: String,
        /// Name of the client.
        client: String,
        /// What it follows.
        selection: Selection,
        /// As for a read.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        account: String,
    },
    /// A local client ends what it follows.
    Unfollow {
        /// The node.
        node: String,
        /// Name of the client.
        client: String,
    },
    /// Something goes wrong.
    Fault(TimedFault),
}

/// A fault with its duration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedFault {
    /// What goes wrong.
    #[serde(flatten)]
    pub fault: InjectedFault,
    /// How long. A crashed process starts again after this time. 0 for what only happens once.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lasts: Millis,
}

pub(super) fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn is_none(value: &Millis) -> bool {
    *value == 0
}

impl TimedOperation {
    /// When it is over.
    #[must_use]
    pub fn end(&self) -> Millis {
        match &self.operation {
            PlanOperation::Fault(fault) => self.at.saturating_add(fault.lasts),
            PlanOperation::Delete { grace_seconds, .. } => {
                self.at.saturating_add(u64::from(*grace_seconds).saturating_mul(1000))
            }
            _ => self.at,
        }
    }
}

impl PlanOperation {
    /// The node at which this is done, or whose link, disk or process has a fault.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Report { node, .. }
            | Self::Terminated { node, .. }
            | Self::Read { node, .. }
            | Self::Follow { node, .. }
            | Self::Unfollow { node, .. } => Some(node),
            Self::Fault(fault) => fault.fault.node(),
            Self::Put { object, content } | Self::Recreate { object, content } => {
                let is_node = object.resource == "nodes";
                let name = if is_node { &object.name } else { &content.node };
                Some(&**name).filter(|name| !name.is_empty())
            }
            Self::Touch { object } | Self::Delete { object, .. } => {
                (object.resource == "nodes").then_some(&*object.name)
            }
            Self::Flood { content, .. } => Some(&*content.node).filter(|name| !name.is_empty()),
            Self::Ebb { .. } => None,
        }
    }

    /// The replica that has a fault.
    #[must_use]
    pub fn replica(&self) -> Option<u32> {
        match self {
            Self::Fault(fault) => fault.fault.replica(),
            _ => None,
        }
    }

    /// Whether something goes wrong.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Fault(_))
    }
}

/// One line, for a trace.
impl fmt::Display for PlanOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan       {}", super::text(self))
    }
}
