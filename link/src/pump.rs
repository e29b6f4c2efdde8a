//! Helpers for the task that owns a link and a session.

use std::time::Duration;

use tokio::time::Instant;
use tombolo_proto::{Frame, Lane, Moment};

use crate::conn::Link;
use crate::error::LinkError;

/// Moves frames from a session into every lane that has room, lowest lane first, in rounds until a whole round gives
/// nothing: a later lane can make work for an earlier one. Returns how many frames moved.
///
/// `poll` is the session's `poll_transmit`. It is called only when a frame can be queued, so that a session decides as
/// late as possible which version of an object to send.
///
/// # Errors
/// [`LinkError`] when the link has ended or a frame cannot be encoded.
pub fn pump(link: &mut Link, mut poll: impl FnMut(Lane) -> Option<Frame>) -> Result<usize, LinkError> {
    let mut moved = 0;
    loop {
        let before = moved;
        // The control lane once more at the end: a key that turned out to need nothing may have completed a
        // subscription, and the frame that says so travels there although the round has sent nothing.
        for lane in Lane::ALL.into_iter().chain([Lane::Control]) {
            while link.can_send(lane) {
                let Some(frame) = poll(lane) else { break };
                link.send(lane, frame)?;
                moved += 1;
            }
        }
        if moved == before {
            return Ok(moved);
        }
    }
}

/// Turns tokio's clock into the sessions' [`Moment`]s; follows paused time in tests.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that reads zero now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment::after_origin(self.origin.elapsed())
    }

    /// The instant to sleep until for a session's timeout.
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        // A timeout beyond the clock's range never comes in practice: a year is as good.
        let far = self.origin + Duration::from_secs(365 * 24 * 3600);
        self.origin.checked_add(Duration::from_micros(moment.micros)).map_or(far, |at| at.min(far))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frame_triggered_by_a_silent_lane_is_sent_in_the_same_call() {
        let (mut link, _peer, _faults) = crate::mem::pair(tombolo_proto::NodeId::parse("a").unwrap());
        let (mut completed, mut sent) = (false, false);
        let moved = pump(&mut link, |lane| match lane {
            Lane::Control if completed && !sent => {
                sent = true;
                Some(Frame::Ping { id: 1 })
            }
            Lane::Control => None,
            Lane::Delivery | Lane::Bulk => {
                completed = true;
                None
            }
        });
        assert_eq!(moved.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn follows_the_paused_clock() {
        let clock = Clock::start();
        let begin = Instant::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now(), Moment::after_origin(Duration::from_secs(3)));
        assert_eq!(clock.instant(clock.now() + Duration::from_secs(1)), begin + Duration::from_secs(4));
        assert!(clock.instant(Moment { micros: u64::MAX }) > begin + Duration::from_secs(1_000_000));
    }
}
