//! What a rule reports.

use std::fmt;

use crate::observation::{Millis, ObjectId};

/// A guarantee that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Name of the rule.
    pub rule: &'static str,
    /// When it was seen.
    pub at: Millis,
    /// The node concerned; empty if none.
    pub node: String,
    /// The object concerned.
    pub object: Option<ObjectId>,
    /// What was seen.
    pub seen: String,
    /// What should have been seen.
    pub expected: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} s: {}: ", self.at / 1000, self.at % 1000, self.rule)?;
        if !self.node.is_empty() {
            write!(f, "{}: ", self.node)?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        write!(f, "{}; expected {}", self.seen, self.expected)
    }
}
