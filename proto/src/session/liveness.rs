//! Detects whether the peer is alive. Any frame counts as a sign of life; pings fill silences.

use std::time::Duration;

use crate::frame::Frame;
use crate::ids::Moment;
use crate::session::SessionError;

/// Shortest interval and timeout that a session accepts, so that no configuration and no peer makes it spin.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Time after which a new session measures its round trip: after the frames of the handshake, so that a reconnection
/// without changes costs only the handshake.
const FIRST_PING: Duration = Duration::from_secs(1);

/// Timers and pings of one end of a connection.
#[derive(Debug)]
pub(super) struct Liveness {
    ping_interval: Duration,
    idle_timeout: Duration,
    last_heard: Moment,
    last_sent: Moment,
    pings: u64,
    ping_due: bool,
    /// When a ping is due without a preceding silence.
    first_ping: Option<Moment>,
    /// The newest ping and when it was sent.
    asked: Option<(u64, Moment)>,
    /// Only the newest ping of the peer is answered: a peer that does not read cannot accumulate pongs.
    owed: Option<u64>,
}

impl Liveness {
    pub(super) fn new(now: Moment, ping_interval: Duration, idle_timeout: Duration) -> Self {
        let mut liveness = Self {
            ping_interval,
            idle_timeout,
            last_heard: now,
            last_sent: now,
            pings: 0,
            ping_due: false,
            first_ping: None,
            asked: None,
            owed: None,
        };
        liveness.adopt(ping_interval, idle_timeout);
        liveness
    }

    /// Adopts the intervals that the other side requests.
    pub(super) fn adopt(&mut self, ping_interval: Duration, idle_timeout: Duration) {
        self.ping_interval = ping_interval.max(INTERVAL_MIN);
        self.idle_timeout = idle_timeout.max(INTERVAL_MIN);
    }

    pub(super) fn heard(&mut self, now: Moment) {
        self.last_heard = now;
    }

    pub(super) fn sent(&mut self, now: Moment) {
        self.last_sent = now;
    }

    /// When `handle_timeout` has something to do.
    pub(super) fn deadline(&self) -> Moment {
        let idle = self.last_heard + self.idle_timeout;
        if self.ping_due {
            return idle;
        }
        let next = self.last_sent + self.ping_interval;
        self.first_ping.map_or(next, |first| first.min(next)).min(idle)
    }

    /// Schedules a ping after silence of this side.
    ///
    /// # Errors
    /// [`SessionError::Timeout`] after silence of the peer.
    pub(super) fn handle_timeout(&mut self, now: Moment) -> Result<(), SessionError> {
        let silence = now.since(self.last_heard);
        if silence >= self.idle_timeout {
            let seconds = silence.as_secs();
            return Err(SessionError::Timeout(format!("nothing was received from the peer for {seconds} s")));
        }
        let first = self.first_ping.take_if(|first| *first <= now).is_some();
        if first || now.since(self.last_sent) >= self.ping_interval {
            self.ping_due = true;
        }
        Ok(())
    }

    /// The session has begun: schedules a ping that measures its round trip, without waiting for a silence.
    pub(super) fn measure(&mut self, now: Moment) {
        self.first_ping = Some(now + FIRST_PING);
    }

    /// Schedules a ping at once.
    pub(super) fn ask(&mut self, now: Moment) {
        self.first_ping = Some(now);
    }

    pub(super) fn handle_ping(&mut self, id: u64) {
        self.owed = Some(id);
    }

    /// The round trip when this answers the newest ping, otherwise none.
    pub(super) fn handle_pong(&mut self, now: Moment, id: u64) -> Option<Duration> {
        let (_, left) = self.asked.take_if(|(asked, _)| *asked == id)?;
        Some(now.since(left))
    }

    /// An owed pong, then a due ping.
    pub(super) fn poll(&mut self, now: Moment) -> Option<Frame> {
        if let Some(id) = self.owed.take() {
            return Some(Frame::Pong { id });
        }
        if !std::mem::take(&mut self.ping_due) {
            return None;
        }
        self.pings = self.pings.wrapping_add(1);
        self.asked = Some((self.pings, now));
        Some(Frame::Ping { id: self.pings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::after_origin(Duration::from_secs(seconds))
    }

    fn liveness() -> Liveness {
        Liveness::new(at(0), Duration::from_secs(30), Duration::from_secs(75))
    }

    #[test]
    fn own_silence_causes_one_ping() {
        let mut side = liveness();
        assert_eq!(side.deadline(), at(30));
        side.handle_timeout(at(29)).expect("not idle");
        assert_eq!(side.poll(at(29)), None);
        side.handle_timeout(at(30)).expect("not idle");
        assert_eq!(side.deadline(), at(75), "a due ping waits for the link, not for the clock");
        assert_eq!(side.poll(at(31)), Some(Frame::Ping { id: 1 }));
        assert_eq!(side.poll(at(31)), None);
        assert_eq!(side.handle_pong(at(33), 2), None, "not asked");
        assert_eq!(side.handle_pong(at(33), 1), Some(Duration::from_secs(2)));
        assert_eq!(side.handle_pong(at(33), 1), None, "one ping, one measurement");
    }

    #[test]
    fn new_session_measures_its_round_trip_once_without_a_silence() {
        let mut side = liveness();
        side.measure(at(0));
        assert_eq!(side.deadline(), at(1));
        side.sent(at(1));
        side.handle_timeout(at(1)).expect("not idle");
        assert_eq!(side.poll(at(1)), Some(Frame::Ping { id: 1 }));
        assert_eq!(side.deadline(), at(31));
        side.handle_timeout(at(2)).expect("not idle");
        assert_eq!(side.poll(at(2)), None);
    }

    #[test]
    fn silence_of_the_peer_ends_the_session() {
        let mut side = liveness();
        side.heard(at(10));
        side.handle_timeout(at(84)).expect("74 s of silence are within 75");
        assert!(
            matches!(side.handle_timeout(at(85)), Err(SessionError::Timeout(text)) if text.contains("75 s"))
        );
    }

    #[test]
    fn only_the_newest_ping_is_answered() {
        let mut side = liveness();
        side.handle_ping(1);
        side.handle_ping(2);
        assert_eq!(side.poll(at(1)), Some(Frame::Pong { id: 2 }));
        assert_eq!(side.poll(at(1)), None);
    }

    #[test]
    fn a_peer_cannot_make_the_timers_spin() {
        let mut side = liveness();
        side.adopt(Duration::ZERO, Duration::ZERO);
        assert_eq!(side.deadline(), at(1));
    }
}
