//! Runs the bodies of fuzz targets on stable Rust, for a bounded number of inputs: random bytes and damaged valid
//! inputs.
//!
//! The seed of a run is printed. `TOMBOLO_FUZZ_SEED=<seed>` repeats the run and `TOMBOLO_FUZZ_RUNS` sets the number of
//! inputs.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};

use crate::{asked, times};

/// Longest piece of a valid input that is inserted into another one, in bytes.
const PIECE_LEN_MAX: usize = 40;

/// Calls `body` with the valid inputs, then `runs` times with mutations of them and with random noise.
///
/// # Panics
/// `body` panics, a variable is not a number, or the number of runs is 0.
pub fn fuzz(name: &str, runs: u64, valid: &[Vec<u8>], body: fn(&[u8])) {
    let seed = asked("TOMBOLO_FUZZ_SEED").unwrap_or_else(|| rand::rng().next_u64());
    println!("{name}: TOMBOLO_FUZZ_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    valid.iter().for_each(|input| body(input));
    for _ in 0..times("TOMBOLO_FUZZ_RUNS", runs) {
        let mut input = match valid.choose(&mut rng) {
            Some(input) if rng.random_ratio(9, 10) => input.clone(),
            _ => noise(&mut rng),
        };
        for _ in 0..rng.random_range(0..6) {
            mutate(&mut rng, &mut input, valid);
        }
        body(&input);
    }
}

fn noise(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..256)];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn mutate(rng: &mut StdRng, input: &mut Vec<u8>, valid: &[Vec<u8>]) {
    let at = rng.random_range(0..=input.len());
    match rng.random_range(0..5) {
        0 => input.truncate(at),
        1 => input.insert(at, rng.random()),
        2 => {
            let Some(piece) = valid.choose(rng) else { return };
            let from = rng.random_range(0..=piece.len());
            input.splice(at..at, piece.iter().skip(from).take(PIECE_LEN_MAX).copied());
        }
        3 => {
            let end = rng.random_range(at..=input.len());
            input.drain(at..end);
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << rng.random_range(0..8);
            }
        }
    }
}
