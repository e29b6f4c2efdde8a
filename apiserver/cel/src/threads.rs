//! Threads with large stacks, which parsing and evaluating need.
//!
//! Whoever asks is often a thread that serves many requests: it waits here, and starts none itself for each expression. What
//! all expressions together may have at a time has a bound.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};

use crate::limits::{DEEP_EVALUATIONS_MAX, EVALUATOR_STACK_BYTES, PARSER_STACK_BYTES, PARSES_WAITING_MAX};

/// Texts up to this length are parsed on the stack of the one thread that stays.
pub(crate) const SHORT_TEXT_BYTES_MAX: usize = 1024;

/// Its stack: a text needs 16 KiB of it a byte. What was once used of a stack stays in memory as long as its thread, which
/// is why long texts have a thread that ends.
const SHORT_STACK_BYTES: usize = 32 * 1024 * 1024;

const NO_THREAD: &str = "no thread to parse with";

const FAILED: &str = "the parser failed on this expression";

struct Job {
    is_long: bool,
    work: Box<dyn FnOnce() + Send>,
}

static PARSER: Mutex<Option<SyncSender<Job>>> = Mutex::new(None);

/// Runs a parse on the parser's thread: one at a time, in the order in which they come.
///
/// # Errors
/// Why there is no result.
pub(crate) fn parse<T: Send + 'static>(
    is_long: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, &'static str> {
    let (answer, result) = mpsc::sync_channel(1);
    let work = Box::new(move || {
        // Nobody waits any more: nothing is lost.
        let _ = answer.send(work());
    });
    let parser = parser().ok_or(NO_THREAD)?;
    parser.send(Job { is_long, work }).map_err(|_| NO_THREAD)?;
    result.recv().map_err(|_| FAILED)
}

fn parser() -> Option<SyncSender<Job>> {
    let mut parser = PARSER.lock().unwrap_or_else(PoisonError::into_inner);
    if parser.is_none() {
        let (jobs, waiting) = mpsc::sync_channel(PARSES_WAITING_MAX);
        let thread = std::thread::Builder::new().name("cel-parser".to_owned()).stack_size(SHORT_STACK_BYTES);
        thread.spawn(move || run(&waiting)).ok()?;
        *parser = Some(jobs);
    }
    parser.clone()
}

fn run(waiting: &Receiver<Job>) {
    while let Ok(Job { is_long, work }) = waiting.recv() {
        // A parser that fails drops the sender of the answer, which is the answer.
        let _ = match is_long {
            false => catch_unwind(AssertUnwindSafe(work)).map_err(drop),
            true => on_stack("cel-long-parser", PARSER_STACK_BYTES, work),
        };
    }
}

/// Runs an evaluation on a stack that is large enough for a deep tree. More than [`DEEP_EVALUATIONS_MAX`] wait for each
/// other; what one may cost is bounded.
pub(crate) fn evaluate<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, ()> {
    let _place = Place::take();
    on_stack("cel-evaluator", EVALUATOR_STACK_BYTES, run)
}

fn on_stack<T: Send>(name: &str, bytes: usize, run: impl FnOnce() -> T + Send) -> Result<T, ()> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(bytes);
        thread.spawn_scoped(scope, run).map_err(drop)?.join().map_err(drop)
    })
}

/// One of the deep evaluations that are under way.
struct Place;

static PLACES: LazyLock<(Mutex<usize>, Condvar)> = LazyLock::new(|| (Mutex::new(0), Condvar::new()));

impl Place {
    fn take() -> Self {
        let (taken, freed) = &*PLACES;
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= DEEP_EVALUATIONS_MAX;
        *freed.wait_while(taken, full).unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (taken, freed) = &*PLACES;
        *taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_parses_share_one_thread_and_long_ones_are_one_at_a_time() {
        let running = Arc::new(AtomicUsize::new(0));
        let parse_one = |is_long: bool| {
            let running = Arc::clone(&running);
            let work = move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two parses at a time");
                let id = std::thread::current().id();
                // Long enough for another one to come in between.
                (0..64).for_each(|_| std::thread::yield_now());
                running.fetch_sub(1, Ordering::SeqCst);
                id
            };
            parse(is_long, work).unwrap()
        };
        let ids: HashSet<_> = std::thread::scope(|scope| {
            let askers: Vec<_> = (0..32).map(|_| scope.spawn(|| parse_one(false))).collect();
            for _ in 0..8 {
                scope.spawn(|| parse_one(true));
            }
            askers.into_iter().map(|asker| asker.join().unwrap()).collect()
        });
        assert_eq!(ids.len(), 1, "one thread for all short texts");
        assert!(!ids.contains(&parse_one(true)), "what a long text used of its stack is given back");
        assert_eq!(parse(false, || -> u8 { panic!("as a parser may") }), Err(FAILED));
        assert!(ids.contains(&parse_one(false)), "and the thread goes on");
    }

    #[test]
    fn deep_evaluations_have_a_bound() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 * DEEP_EVALUATIONS_MAX {
                scope.spawn(|| {
                    evaluate(|| {
                        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                    })
                    .unwrap();
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= DEEP_EVALUATIONS_MAX, "{most:?}");
    }
}
