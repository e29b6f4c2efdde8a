//! Ids and times of the messages that a session sends.

use std::time::Duration;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::ids::Moment;
use crate::message::MessageId;

/// Gives every message an id and a time. The randomness comes from the seed that the owner drew.
#[derive(Debug)]
pub(super) struct MessageIds {
    seed: [u8; 16],
    written: u64,
    opened_at: Moment,
    /// Wall clock at `opened_at`, milliseconds since the Unix epoch.
    unix_millis: u64,
}

impl MessageIds {
    pub(super) fn new(seed: [u8; 16], opened_at: Moment, unix_millis: u64) -> Self {
        Self { seed, written: 0, opened_at, unix_millis }
    }

    /// A UUID v4 that this session has not used before.
    pub(super) fn id(&mut self) -> MessageId {
        self.written = self.written.wrapping_add(1);
        let mut input = [0; 24];
        input[..16].copy_from_slice(&self.seed);
        input[16..].copy_from_slice(&self.written.to_le_bytes());
        MessageId::from_random_bytes(xxh3_128(&input).to_be_bytes())
    }

    /// A time between one and two times `least`, fixed for the session and different for each session.
    pub(super) fn spread(&self, least: Duration) -> Duration {
        // Only the upper bits: exact in a float, and as random as the rest.
        let share =
            f64::from(u32::try_from(xxh3_64(&self.seed) >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        least + least.mul_f64(share)
    }

    /// The wall clock, milliseconds since the Unix epoch.
    pub(super) fn millis(&self, now: Moment) -> i64 {
        let elapsed = u64::try_from(now.since(self.opened_at).as_millis()).unwrap_or(u64::MAX);
        i64::try_from(self.unix_millis.saturating_add(elapsed)).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_differ_within_and_between_sessions() {
        let mut sessions = [1, 2].map(|seed| MessageIds::new([seed; 16], Moment::default(), 0));
        let ids: HashSet<String> = sessions
            .iter_mut()
            .flat_map(|ids| std::iter::repeat_with(|| ids.id().to_string()).take(500))
            .collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 36 && id.as_bytes()[14] == b'4'), "UUIDs v4");
    }

    #[test]
    fn sessions_that_begin_together_are_spread_over_time() {
        let least = Duration::from_secs(600);
        let mut minutes = [0; 10];
        for number in 0..1000_u16 {
            let mut seed = [0; 16];
            seed[..2].copy_from_slice(&number.to_le_bytes());
            let wait = MessageIds::new(seed, Moment::default(), 0).spread(least);
            assert!((least..=2 * least).contains(&wait), "{wait:?}");
            minutes[usize::try_from((wait - least).as_secs() / 60).expect("small").min(9)] += 1;
        }
        assert!(minutes.iter().all(|count| (50..200).contains(count)), "{minutes:?}");
    }

    #[test]
    fn wall_clock_advances_from_the_opening() {
        let opened = Moment::after_origin(Duration::from_secs(7));
        let ids = MessageIds::new([0; 16], opened, 1_000);
        assert_eq!(ids.millis(opened + Duration::from_millis(1500)), 2_500);
    }
}
