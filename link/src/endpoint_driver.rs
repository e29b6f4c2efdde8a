//! Longer turns for the task that receives on a UDP socket.
//!
//! quinn's endpoint is one task among those of all connections and reads for 50 µs per turn (quinn,
//! `RECV_TIME_BOUND`), which is about 30 datagrams. With a thousand busy connections it gets a turn every ten
//! milliseconds: the kernel's buffer overflows meanwhile, and a lost first packet costs its node a second or more. (A
//! separate thread would never be late, but reads datagrams one by one and wakes connections across threads: a quarter
//! more processor time for each request.)

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use futures::task::AtomicWaker;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

/// Turns of the endpoint in a row while it has work: a millisecond of reading.
const TURNS_MAX: usize = 20;

/// quinn's runtime for one endpoint: tokio's, except for the turns of the endpoint's driver.
#[derive(Debug, Default)]
pub(crate) struct EndpointRuntime {
    /// Whether the driver, which quinn spawns before any connection, was spawned.
    driving: AtomicBool,
}

impl Runtime for EndpointRuntime {
    fn new_timer(&self, until: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(until)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if self.driving.swap(true, Ordering::Relaxed) {
            TokioRuntime.spawn(future);
        } else {
            TokioRuntime.spawn(Box::pin(LongTurns { inner: future, own: Arc::default() }));
        }
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// A future that continues at once when it has woken itself.
struct LongTurns {
    inner: Pin<Box<dyn Future<Output = ()> + Send>>,
    own: Arc<OwnWaker>,
}

#[derive(Default)]
struct OwnWaker {
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for OwnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Future for LongTurns {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.own.task.register(cx.waker());
        let waker = Waker::from(Arc::clone(&self.own));
        let mut own = Context::from_waker(&waker);
        for _ in 0..TURNS_MAX {
            self.own.woken.store(false, Ordering::Release);
            if self.inner.as_mut().poll(&mut own).is_ready() {
                return Poll::Ready(());
            }
            if !self.own.woken.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        // The wake during the last turn has also woken the task.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Wakes itself this often, then waits.
    async fn busy(polls: Arc<AtomicUsize>, work: usize) {
        poll_fn(|cx| {
            if polls.fetch_add(1, Ordering::Relaxed) < work {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    fn polls_of_one_turn(work: usize) -> (usize, Arc<OwnWaker>) {
        let polls = Arc::new(AtomicUsize::new(0));
        let inner = Box::pin(busy(Arc::clone(&polls), work));
        let mut turns = LongTurns { inner, own: Arc::default() };
        // Stands for the task: `woken` shows whether it was woken.
        let task = Arc::new(OwnWaker::default());
        let waker = Waker::from(Arc::clone(&task));
        assert!(Pin::new(&mut turns).poll(&mut Context::from_waker(&waker)).is_pending());
        (polls.load(Ordering::Relaxed), task)
    }

    #[test]
    fn continues_while_there_is_work() {
        let (polls, _) = polls_of_one_turn(3);
        assert_eq!(polls, 4);
    }

    #[test]
    fn turn_without_datagrams_waits() {
        let (polls, task) = polls_of_one_turn(0);
        assert_eq!(polls, 1);
        assert!(!task.woken.load(Ordering::Acquire));
    }

    #[test]
    fn yields_after_its_turns_and_resumes() {
        let (polls, task) = polls_of_one_turn(usize::MAX);
        assert_eq!(polls, TURNS_MAX);
        assert!(task.woken.load(Ordering::Acquire));
    }
}
