//! The seed of a run's random tests. The repetition of failed tests gets the same one.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::process::Command;

use anyhow::{Context, Result};

/// Variable with the seed of the first random case of a test. Without it, the seed is new in each run.
const VARIABLE: &str = "TOMBOLO_SEED";

/// The same for proptest.
const PROPTEST_VARIABLE: &str = "PROPTEST_RNG_SEED";

/// The seed that all random tests of a run get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(u64);

impl Seed {
    /// The seed in the environment, or a new one.
    ///
    /// # Errors
    /// The variable is not a number.
    pub(crate) fn of_this_run() -> Result<Self> {
        std::env::var(VARIABLE).map_or_else(|_| Ok(Self::fresh()), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Result<Self> {
        text.parse().map(Self).with_context(|| format!("{VARIABLE}={text:?} is not a number"))
    }

    /// A new seed. Each of these hashers has random keys, which come from the operating system.
    pub(crate) fn fresh() -> Self {
        Self(RandomState::new().hash_one(0))
    }

    /// Sets the variables for the tests that a command runs.
    pub(crate) fn give_to(self, command: &mut Command) {
        for variable in [VARIABLE, PROPTEST_VARIABLE] {
            command.env(variable, self.0.to_string());
        }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VARIABLE}={} {PROPTEST_VARIABLE}={}", self.0, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_of_a_run_gets_the_printed_seed() {
        let mut command = Command::new("true");
        let seed = Seed::parse("7").unwrap();
        seed.give_to(&mut command);
        let set = command
            .get_envs()
            .map(|(name, value)| format!("{}={}", name.display(), value.unwrap().display()));
        assert_eq!(
            set.collect::<std::collections::BTreeSet<_>>(),
            seed.to_string().split(' ').map(str::to_owned).collect()
        );
        assert!(Seed::parse("7x").is_err());
    }

    #[test]
    fn no_two_runs_have_the_same_seed() {
        assert_ne!(Seed::fresh(), Seed::fresh());
    }
}
