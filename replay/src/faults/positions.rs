//! LanePositions of deliveries of dialect `tombolo` behind a faulty cloud.

use std::collections::HashMap;

use super::forms::with_id;
use crate::frame::Frame;

/// Numbers deliveries anew: a cloud that loses, repeats or swaps messages leaves no gap in a lane. By connection and lane.
#[derive(Default)]
pub(super) struct LanePositions(HashMap<String, u64>);

impl LanePositions {
    /// The frame with the next position of its lane, if it has one.
    pub(super) fn numbered(&mut self, frame: Frame) -> Frame {
        if !frame.is_tombolo() || !frame.is_push() {
            return frame;
        }
        let Some((lane, _)) = frame.id().rsplit_once('/') else { return frame };
        let position = self.0.entry(lane.to_owned()).or_default();
        *position += 1;
        with_id(&frame, &format!("{lane}/{position}"))
    }
}
