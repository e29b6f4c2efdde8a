//! Unasked messages of a cloud of dialect `tombolo` that are about no object.

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
                Err(at(line, Some(live), format!("the message of the cloud differs at {mismatch}")))
            }
        }
    }
}

/// The rule that excuses a missing recorded notice.
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

/// The rule that allows a notice that was not recorded.
pub(super) fn reason_of(frame: &Frame) -> Option<Rule> {
    (frame.operation() == "ping").then_some(Rule::Keepalive)
}
