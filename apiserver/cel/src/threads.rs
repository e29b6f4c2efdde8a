//! Threads with large stacks for parsing and evaluation.
//!
//! The caller is often a thread that serves many requests. It waits here, and no thread is started for each expression.
//! The number of threads for all expressions together is bounded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};

use crate::limits::{DEEP_EVALUATIONS_MAX, EVALUATOR_STACK_BYTES, PARSER_STACK_BYTES, PARSES_WAITING_MAX};

/// Texts up to this length are parsed on the permanent parser thread.
pub(crate) const SHORT_TEXT_BYTES_MAX: usize = 1024;

/// Stack size of that thread: a text needs 16 KiB of stack per byte. Stack memory that was once used is not freed until
/// the thread ends, so each long text gets a temporary thread.
const SHORT_STACK_BYTES: usize = 32 * 1024 * 1024;

const NO_THREAD: &str = "no thread to parse with";

const FAILED: &str = "the parser failed on this expression";

struct Job {
    is_long: bool,
    work: Box<dyn FnOnce() + Send>,
}

static PARSER: Mutex<Option<SyncSender<Job>>> = Mutex::new(None);

/// Runs a parse on the parser thread. Parses run one at a time, in the order of their arrival.
///
/// # Errors
/// Why there is no result.
pub(crate) fn parse<T: Send + 'static>(
    is_long: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, &'static str> {
    let (answer, result) = mpsc::sync_channel(1);
    let work = Box::new(move || {
        // An error only means that the caller no longer waits.
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
        // A parser that panics drops the sender, which tells the caller.
        let _ = match is_long {
            false => catch_unwind(AssertUnwindSafe(work)).map_err(drop),
            true => on_stack("cel-long-parser", PARSER_STACK_BYTES, work),
        };
    }
}

/// Runs an evaluation on a stack that is large enough for a deep tree. At most [`DEEP_EVALUATIONS_MAX`] run at a time;
/// others wait. The cost limit bounds each one.
pub(crate) fn evaluate<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, ()> {
    let _slot = EvaluationSlot::take();
    on_stack("cel-evaluator", EVALUATOR_STACK_BYTES, run)
}

fn on_stack<T: Send>(name: &str, bytes: usize, run: impl FnOnce() -> T + Send) -> Result<T, ()> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(bytes);
        thread.spawn_scoped(scope, run).map_err(drop)?.join().map_err(drop)
    })
}

/// A slot for a deep evaluation.
struct EvaluationSlot;

static RUNNING: LazyLock<(Mutex<usize>, Condvar)> = LazyLock::new(|| (Mutex::new(0), Condvar::new()));

impl EvaluationSlot {
    fn take() -> Self {
        let (taken, freed) = &*RUNNING;
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= DEEP_EVALUATIONS_MAX;
        *freed.wait_while(taken, full).unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for EvaluationSlot {
    fn drop(&mut self) {
        let (taken, freed) = &*RUNNING;
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
    fn all_parsing_shares_one_thread_and_long_inputs_run_one_at_a_time() {
        let running = Arc::new(AtomicUsize::new(0));
        let parse_one = |is_long: bool| {
            let running = Arc::clone(&running);
            let work = move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two parses at a time");
                let id = std::thread::current().id();
                // Long enough for another parse to start in between.
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
        assert!(ids.contains(&parse_one(false)), "and the thread continues");
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
