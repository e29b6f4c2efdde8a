//! What the cloud of dialect `tombolo` says unasked about no object.

use super::{Difference, Matcher, Progress, at};
use crate::frame::Frame;
use crate::rules::Rule;

impl Matcher<'_> {
    pub(super) fn settle_notice(&mut self, index: usize, recorded: &Frame) -> Result<Progress, Difference> {
        if let Some(rule) = circumstance(recorded) {
            return Ok(self.excuse(index, rule));
        }
        let line = &self.transcript.lines[index];
        let candidates = self.candidates(line.conn, recorded);
        let mut first = None;
        for candidate in candidates {
            match self.try_push(index, recorded, candidate) {
                Ok(()) => return Ok(Progress::Done),
                Err(mismatch) => first = first.or(Some((candidate, mismatch))),
            }
        }
        match first {
            None => Ok(Progress::Waiting),
            Some((candidate, mismatch)) => {
                let live = &self.pushes[candidate].frame;
                Err(at(line, Some(live), format!("what the cloud says differs at {mismatch}")))
            }
        }
    }
}

/// The rule under which a recorded notice need not come.
fn circumstance(recorded: &Frame) -> Option<Rule> {
    match recorded.operation() {
        "ping" => Some(Rule::Keepalive),
        "goodbye" => {
            let reason = recorded.content()["reason"].as_str().unwrap_or_default();
            matches!(reason, "Draining" | "Overloaded" | "Timeout" | "Other").then_some(Rule::CloudLeft)
        }
        _ => None,
    }
}

/// Why a notice may come that was not recorded.
pub(super) fn reason_of(frame: &Frame) -> Option<Rule> {
    (frame.operation() == "ping").then_some(Rule::Keepalive)
}
