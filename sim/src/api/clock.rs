//! Time and randomness of the model: tokio's clock, and a generator with the caller's seed.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

/// Letters of generated names (`k8s.io/apimachinery/pkg/util/rand`).
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Longest prefix of a generated name, and the number of letters after it.
const PREFIX_LEN_MAX: usize = 58;
const SUFFIX_LEN: usize = 5;

/// The clock of the API server.
#[derive(Debug)]
pub(super) struct ServerClock {
    start: Instant,
    /// Wall clock at `start`, in Unix seconds.
    epoch: i64,
    /// How far the wall clock was moved since, in seconds.
    pub(super) skew: i64,
}

impl ServerClock {
    pub(super) fn new(epoch: i64) -> Self {
        Self { start: Instant::now(), epoch, skew: 0 }
    }

    /// Time since the model began.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The moment at which this much time has passed since the model began.
    pub(super) fn at(&self, elapsed: Duration) -> Instant {
        self.start + elapsed
    }

    fn unix(&self) -> i64 {
        self.epoch + self.skew + i64::try_from(self.elapsed().as_secs()).unwrap_or_default()
    }

    /// The wall clock, `seconds` from now, as in `creationTimestamp`.
    pub(super) fn timestamp(&self, seconds: i64) -> String {
        text_of(self.unix() + seconds)
    }

    /// The wall clock in Unix seconds.
    pub(super) fn unix_seconds(&self) -> i64 {
        self.unix()
    }
}

/// A time in Unix seconds as Kubernetes writes it.
pub(super) fn text_of(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The generator of UIDs and names, and of faults with a probability.
#[derive(Debug)]
pub(super) struct ServerDice(StdRng);

impl ServerDice {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// A UUID of version 4.
    pub(super) fn uid(&mut self) -> String {
        let number = self.0.random::<u128>() & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{number:032x}");
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }

    /// A name that begins with a prefix.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        let end = (0..=prefix.len().min(PREFIX_LEN_MAX)).rev().find(|end| prefix.is_char_boundary(*end));
        let mut name = prefix[..end.unwrap_or(0)].to_owned();
        for _ in 0..SUFFIX_LEN {
            name.push(char::from(NAME_LETTERS[self.0.random_range(0..NAME_LETTERS.len())]));
        }
        name
    }

    /// True once in `sides` times on average.
    pub(super) fn hits(&mut self, sides: u32) -> bool {
        self.0.random_range(0..sides.max(1)) == 0
    }

    /// A number below a bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_names() {
        let draw = |seed| {
            let mut dice = ServerDice::new(seed);
            (dice.uid(), dice.name("web-"))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let (uid, name) = draw(7);
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
        assert!("89ab".contains(&uid[19..20]), "{uid}");
        assert_eq!(name.len(), 9);
        assert_eq!(ServerDice::new(1).name(&"x".repeat(200)).len(), 63);
    }

    #[tokio::test(start_paused = true)]
    async fn time_goes_with_tokio_and_can_be_moved() {
        let mut clock = ServerClock::new(0);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(clock.timestamp(0), "1970-01-01T00:01:01Z");
        clock.skew = -3600;
        assert_eq!(clock.timestamp(30), "1969-12-31T23:01:31Z");
        assert_eq!(clock.elapsed(), Duration::from_secs(61), "what is measured does not jump");
    }
}
