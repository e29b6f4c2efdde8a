//! Seeds of random tests. A case that fails prints the seed that replays it.
//!
//! `TOMBOLO_SEED` sets the seed of the first random case of every test; without it, the first seed is new in each
//! process. Further cases have the following numbers. Since a case depends on its seed alone, setting the variable to
//! the printed seed of a failed case replays that case first.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::asked;

const VARIABLE: &str = "TOMBOLO_SEED";

/// The seed of one random case. When the case panics before the seed is dropped, the seed is printed.
#[derive(Debug)]
pub struct Seed(u64);

impl Seed {
    /// A seed that always runs, for example because it failed once.
    #[must_use]
    pub fn fixed(number: u64) -> Self {
        Self(number)
    }

    /// The number that replays this case.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0
    }

    /// The randomness of this case.
    #[must_use]
    pub fn rng(&self) -> StdRng {
        StdRng::seed_from_u64(self.0)
    }

    /// The randomness of one part of this case, such as a node. Other parts do not change it.
    #[must_use]
    pub fn rng_of(&self, part: &str) -> StdRng {
        let mixed = |seed: u64, byte| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        StdRng::seed_from_u64(part.bytes().fold(self.0, mixed))
    }

    fn hint(&self) -> String {
        format!("{VARIABLE}={} replays this case first", self.0)
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.hint());
        }
    }
}

/// The seed of a test with a single random case.
///
/// # Panics
/// `TOMBOLO_SEED` is not a number.
#[must_use]
pub fn seed() -> Seed {
    let seed = Seed(first());
    // A test that is killed or never ends does not panic.
    println!("{}", seed.hint());
    seed
}

/// The seeds of a test with many random cases.
///
/// # Panics
/// `TOMBOLO_SEED` is not a number.
pub fn seeds(count: u64) -> impl Iterator<Item = Seed> {
    from(first(), count)
}

/// A number that this process has not used before: for identifiers that must only differ from each other.
pub fn fresh() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The same for all tests of a process: the printed seed of any of them is that of everything random in it.
fn first() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    *FIRST.get_or_init(|| asked(VARIABLE).unwrap_or_else(rand::random))
}

fn from(first: u64, count: u64) -> impl Iterator<Item = Seed> {
    (0..count).map(move |number| Seed(first.wrapping_add(number)))
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    fn numbers(seeds: impl Iterator<Item = Seed>) -> Vec<u64> {
        seeds.map(|seed| seed.number()).collect()
    }

    #[test]
    fn given_seed_runs_its_case_first() {
        let run = numbers(from(u64::MAX - 1, 4));
        assert_eq!(run, [u64::MAX - 1, u64::MAX, 0, 1]);
        for failed in run {
            assert_eq!(numbers(from(failed, 1)), [failed]);
            assert!(Seed(failed).hint().starts_with(&format!("TOMBOLO_SEED={failed} ")));
        }
    }

    #[test]
    fn case_depends_only_on_its_seed() {
        let drawn = |number: u64| -> [u64; 4] { Seed::fixed(number).rng().random() };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
        let drawn = |number: u64, part: &str| -> u64 { Seed::fixed(number).rng_of(part).random() };
        assert_eq!(drawn(7, "a"), drawn(7, "a"));
        assert_ne!(drawn(7, "a"), drawn(7, "b"));
        assert_ne!(drawn(7, "a"), drawn(8, "a"));
    }

    #[test]
    fn a_process_has_one_seed_and_never_the_same_number_twice() {
        assert_eq!(first(), first());
        assert_ne!(fresh(), fresh());
    }
}
