use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use futures::FutureExt as _;
use tokio::task::JoinHandle;

use super::*;
use crate::auth::{AUTHENTICATED_GROUP, Identity};
use crate::senders::{Senders, Source};

const DEADLINE: Duration = Duration::from_secs(20);

/// The permits are global to the process, so only one test runs at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Work that runs until it is told to end.
struct Work {
    end: mpsc::Sender<()>,
    task: JoinHandle<Result<usize, ApiError>>,
}

/// Pieces of work that report their start and how many run.
struct Works {
    running: Arc<AtomicUsize>,
    began: mpsc::Sender<&'static str>,
    has_begun: mpsc::Receiver<&'static str>,
}

impl Works {
    fn new() -> Self {
        let (began, has_begun) = mpsc::channel();
        Self { running: Arc::default(), began, has_begun }
    }

    fn of(&self, name: &'static str, payer: &Payer) -> Work {
        let (end, ended) = mpsc::channel::<()>();
        let (running, began, payer) = (Arc::clone(&self.running), self.began.clone(), payer.clone());
        let work = move || {
            running.fetch_add(1, Ordering::SeqCst);
            began.send(name).unwrap();
            ended.recv().unwrap_err();
            running.fetch_sub(1, Ordering::SeqCst)
        };
        Work { end, task: tokio::spawn(async move { run_blocking(&payer, work).await }) }
    }

    fn next(&self) -> &'static str {
        self.has_begun.recv_timeout(DEADLINE).expect("one more begins")
    }
}

fn payers() -> [Payer; 3] {
    let senders = Senders::default();
    ["eve", "bob", "ann"]
        .map(|name| Payer::from(senders.find(&Identity::new(name, &[AUTHENTICATED_GROUP]), Source::of(None))))
}

async fn ends(work: Work) -> Result<usize, ApiError> {
    drop(work.end);
    tokio::time::timeout(DEADLINE, work.task).await.expect("it ends").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn long_blocking_work_is_bounded_and_delays_no_other_request() {
    let _alone = ALONE.lock().await;
    let works = Works::new();
    let all: Vec<_> = (0..=BLOCKING_MAX).map(|_| works.of("own", &Payer::default())).collect();
    for _ in 0..BLOCKING_MAX {
        works.next();
    }
    // The one worker thread still serves: it has polled the last piece of work, which waits for a permit.
    let served = tokio::time::timeout(DEADLINE, tokio::spawn(async { tokio::task::yield_now().await }));
    served.await.expect("the runtime serves").unwrap();
    assert_eq!((PERMITS.available_permits(), works.running.load(Ordering::SeqCst)), (0, BLOCKING_MAX));
    assert!(works.has_begun.try_recv().is_err(), "more at a time than there may be");
    let (ends, tasks): (Vec<_>, Vec<_>) = all.into_iter().map(|work| (work.end, work.task)).unzip();
    drop(ends);
    for task in tasks {
        assert!(
            tokio::time::timeout(DEADLINE, task).await.expect("it ends").unwrap().unwrap() <= BLOCKING_MAX
        );
    }
}

/// One sender has an endless supply of slow expressions: another one's are next, however many of the first wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_sender_gets_half_of_the_blocking_slots_and_queues_behind_itself() {
    let _alone = ALONE.lock().await;
    let (works, [eve, bob, ann]) = (Works::new(), payers());
    let mut slow: Vec<_> = (0..10).map(|_| works.of("eve", &eve)).collect();
    for _ in 0..BLOCKING_OF_SENDER_MAX {
        assert_eq!(works.next(), "eve");
    }
    let others = [works.of("bob", &bob), works.of("bob", &bob)];
    assert_eq!(
        [works.next(), works.next()],
        ["bob", "bob"],
        "slots are free, and eight of this client's calls wait"
    );
    assert_eq!(works.running.load(Ordering::SeqCst), BLOCKING_MAX);
    // Ann is first in the common queue, since Eve has no more entries in it.
    let mut next = Box::pin(run_blocking(&ann, || ()));
    assert!(next.as_mut().now_or_never().is_none());
    ends(slow.remove(0)).await.unwrap();
    tokio::time::timeout(DEADLINE, next).await.expect("a place").unwrap();
    for work in others.into_iter().chain(slow) {
        ends(work).await.unwrap();
    }
}

/// The clock is paused: it advances only while every task waits.
#[tokio::test(start_paused = true)]
async fn request_that_queues_too_long_for_a_blocking_slot_gets_retry_after() {
    let _alone = ALONE.lock().await;
    let [eve, bob, _] = payers();
    let _running = (eve.turn().await, eve.turn().await);
    let refused = run_blocking(&eve, || ()).await.unwrap_err();
    assert_eq!((refused.code.as_u16(), refused.reason), (429, "TooManyRequests"));
    assert!(refused.retry_after_seconds().is_some(), "{refused:?}");
    run_blocking(&bob, || ()).await.expect("a turn of his own");
    let _all = PERMITS.acquire_many(u32::try_from(BLOCKING_MAX).unwrap()).await.unwrap();
    assert_eq!(run_blocking(&bob, || ()).await.unwrap_err().code.as_u16(), 429);
}
