//! Profiles the processor time of the process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use pprof::{ProfilerGuard, ProfilerGuardBuilder};
use tokio::sync::Mutex;
use tombolo_apicore::status::ApiError;

/// Samples per second. It is not a round number, so that periodic work is sampled too.
const FREQUENCY: i32 = 99;

/// How long a profile may take, in seconds.
const SECONDS: RangeInclusive<u64> = 1..=30;

/// How long a profile takes by default, in seconds.
const SECONDS_DEFAULT: u64 = 10;

/// Libraries in whose code no sample is taken. The stack is walked in the signal handler, where these libraries may
/// hold a lock.
const NOT_SAMPLED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// Only one profile at a time: the process has one profiling timer.
static TURN: Mutex<()> = Mutex::const_new(());

/// Samples for `seconds=N` and returns the stacks, one per line: the functions, outermost first, separated by `;`, then
/// the number of samples. Programs that draw flame graphs read this format.
///
/// # Errors
/// 400 for an invalid duration, 429 while another profile is taken.
pub(super) async fn take(query: &str) -> Result<String, ApiError> {
    let asked = query.split('&').find_map(|pair| pair.strip_prefix("seconds="));
    let seconds = asked.map_or(Some(SECONDS_DEFAULT), |text| text.parse().ok());
    let seconds = seconds.filter(|seconds| SECONDS.contains(seconds)).ok_or_else(|| {
        ApiError::bad_request(format!("seconds must be {} to {}", SECONDS.start(), SECONDS.end()))
    })?;
    let _turn = TURN
        .try_lock()
        .map_err(|_| ApiError::too_many_requests("a profile is being taken; try again later"))?;
    let sampling = ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&NOT_SAMPLED);
    let guard = sampling.build().map_err(|error| failed(&error))?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    // Resolving the names of functions takes a while.
    let stacks = tombolo_runtime::blocking::run(move || stacks(&guard));
    stacks.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

fn failed(error: &dyn std::error::Error) -> ApiError {
    ApiError::internal(format!("cannot take a profile: {error}"))
}

fn stacks(guard: &ProfilerGuard<'_>) -> Result<String, pprof::Error> {
    let report = guard.report().build()?;
    let mut stacks: BTreeMap<String, isize> = BTreeMap::new();
    for (frames, count) in &report.data {
        let functions = frames.frames.iter().rev().flat_map(|symbols| symbols.iter().rev());
        let names: Vec<String> = functions.map(|symbol| symbol.name().replace(';', ",")).collect();
        *stacks.entry(format!("{};{}", frames.thread_name, names.join(";"))).or_default() += count;
    }
    let mut text = String::new();
    for (stack, count) in stacks {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{stack} {count}");
    }
    Ok(text)
}
