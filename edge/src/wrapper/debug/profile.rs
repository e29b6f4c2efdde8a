//! Where the process spends its processor time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use pprof::{ProfilerGuard, ProfilerGuardBuilder};
use tokio::sync::Mutex;
use tombolo_apicore::status::ApiError;

/// Samples a second. Not a round number, so that work in step with the clock is seen too.
const FREQUENCY: i32 = 99;

/// How long is sampled, in seconds.
const SECONDS: RangeInclusive<u64> = 1..=30;

/// How long when the request does not say.
const SECONDS_DEFAULT: u64 = 10;

/// Libraries in whose code no sample is taken: a stack is walked where the signal comes, and they may hold a lock there.
const NOT_SAMPLED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// The timer that takes samples is the process's.
static TURN: Mutex<()> = Mutex::const_new(());

/// Samples for `seconds=N` and returns the stacks: one a line, the outermost function first, separated by `;`, then the
/// number of samples. That is what programs that draw flame graphs read.
///
/// # Errors
/// 400 for another time, 429 while somebody else samples.
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
    // Finding the names of functions takes a while.
    let stacks = tokio::task::spawn_blocking(move || stacks(&guard));
    stacks.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

fn failed(error: &dyn std::error::Error) -> ApiError {
    ApiError::internal(format!("no profile could be taken: {error}"))
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
