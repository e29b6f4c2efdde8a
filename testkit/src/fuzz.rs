//! Runs the bodies of fuzz targets on stable Rust, for a bounded number of inputs: random bytes and damaged valid
//! inputs.
//!
//! Each input has a seed of its own, which is printed when the body panics: `TOMBOLO_SEED=<seed>` makes it the first
//! random input. `TOMBOLO_FUZZ_SECONDS` sets a time for each body instead of a number of inputs.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};

use crate::{asked, seeds};

/// Longest piece of a valid input that is inserted into another one, in bytes.
const PIECE_LEN_MAX: usize = 40;

/// Calls `body` with the valid inputs, then `runs` times with mutations of them and with random noise.
///
/// # Panics
/// `body` panics, or a variable is not a number.
pub fn fuzz(name: &str, runs: u64, valid: &[Vec<u8>], body: fn(&[u8])) {
    valid.iter().for_each(|input| body(input));
    let end = asked("TOMBOLO_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut inputs = 0_u64;
    for seed in seeds(end.map_or(runs, |_| u64::MAX)) {
        body(&input(&mut seed.rng(), valid));
        inputs += 1;
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
    }
    println!("{name}: {inputs} random inputs");
}

/// A mutation of a valid input, or noise.
fn input(rng: &mut StdRng, valid: &[Vec<u8>]) -> Vec<u8> {
    let mut input = match valid.choose(rng) {
        Some(input) if rng.random_ratio(9, 10) => input.clone(),
        _ => noise(rng),
    };
    for _ in 0..rng.random_range(0..6) {
        mutate(rng, &mut input, valid);
    }
    input
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
