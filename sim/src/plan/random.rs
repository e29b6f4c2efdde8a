//! Random choices that are the same for a seed on every machine and with every version of every library.

/// `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
#[derive(Debug, Clone)]
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `limit`; 0 if that is 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// A number from `from` to `to`, both included.
    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True in so many of a hundred cases.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let index = self.below(all.len() as u64);
        &all[usize::try_from(index).unwrap_or(0)]
    }

    /// One of these, each as likely as its weight says.
    pub(super) fn weighted<T: Copy>(&mut self, all: &[(u64, T)]) -> T {
        let total = all.iter().map(|(weight, _)| weight).sum();
        let mut left = self.below(total);
        for (weight, value) in all {
            if left < *weight {
                return *value;
            }
            left -= weight;
        }
        all[0].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the published algorithm for the seed 1234567.
    #[test]
    fn the_sequence_is_that_of_the_algorithm() {
        let mut random = SeededRandom::new(1_234_567);
        let numbers = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next(), random.next(), random.next()], numbers);
    }

    #[test]
    fn choices_stay_within_their_bounds_and_reach_them() {
        let mut random = SeededRandom::new(1);
        let mut seen = [0_u32; 4];
        for _ in 0..1000 {
            let number = usize::try_from(random.between(2, 5)).unwrap();
            seen[number - 2] += 1;
            assert!(random.weighted(&[(0, 'a'), (3, 'b')]) == 'b');
        }
        assert!(seen.iter().all(|count| *count > 150), "{seen:?}");
        assert!(!random.percent(0) && random.percent(100));
    }
}
