//! Work for the processor alone that may take long, such as the expressions of somebody else's policy.
//!
//! A thread that serves would serve nobody else meanwhile: nodes that renew leases, health checks, strangers to be refused.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Such pieces of work at the same time in a process; further ones wait in line, without a thread.
pub const ASIDE_MAX: usize = 4;

static PLACES: Semaphore = Semaphore::const_new(ASIDE_MAX);

/// Does work beside what the threads of the runtime serve. A runtime of one thread, as tests have it, does it there.
pub async fn aside<T>(work: impl FnOnce() -> T + Send) -> T {
    // It is never closed.
    let _place = PLACES.acquire().await;
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => work(),
        _ => tokio::task::block_in_place(work),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_holds_up_nobody_and_has_a_bound() {
        let running = Arc::new(AtomicUsize::new(0));
        let (began, has_begun) = mpsc::channel();
        let (ends, works): (Vec<_>, Vec<_>) = (0..=ASIDE_MAX)
            .map(|_| {
                let (end, ended) = mpsc::channel::<()>();
                let (running, began) = (Arc::clone(&running), began.clone());
                let work = tokio::spawn(aside(move || {
                    running.fetch_add(1, Ordering::SeqCst);
                    began.send(()).unwrap();
                    ended.recv().unwrap_err();
                    running.fetch_sub(1, Ordering::SeqCst)
                }));
                (end, work)
            })
            .unzip();
        for _ in 0..ASIDE_MAX {
            has_begun.recv_timeout(DEADLINE).expect("each has a thread");
        }
        // The one worker serves: the last one is asked for, and waits for a place.
        let served = tokio::time::timeout(DEADLINE, tokio::spawn(async { tokio::task::yield_now().await }));
        served.await.expect("the runtime serves").unwrap();
        assert_eq!((PLACES.available_permits(), running.load(Ordering::SeqCst)), (0, ASIDE_MAX));
        assert!(has_begun.try_recv().is_err(), "more at a time than there may be");
        drop(ends);
        for work in works {
            assert!(tokio::time::timeout(DEADLINE, work).await.expect("it ends").unwrap() <= ASIDE_MAX);
        }
    }
}
