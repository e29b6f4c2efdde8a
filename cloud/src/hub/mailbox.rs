//! Pending work of a node's session task: a set, not a queue. Ten changes of one object are one entry.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use tombolo_proto::frame::Goodbye;
use tombolo_proto::object::KeyHashes;
use tombolo_proto::{ObjectKey, SubscriptionId};

/// Dirty keys and orders for one session. Bounded by the objects in the session's subscriptions, because it is a set of
/// their keys.
#[derive(Debug, Default)]
pub struct Mailbox {
    mail: Mutex<Mail>,
    /// Whether something was added since the last [`take`](Self::take).
    full: AtomicBool,
    /// Wakes the node session, once it has listened. The node session's task keeps the same waker for life.
    waker: Mutex<Option<Waker>>,
}

/// The node session's copy of its waker. It spares a lock of the mailbox with every event to see whether the waker is
/// registered.
#[derive(Debug, Default)]
pub(crate) struct Listener(Option<Waker>);

/// The content of a mailbox.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) dirty: HashSet<(SubscriptionId, ObjectKey), KeyHashes>,
    /// The node's picture is now complete: offer the keys that had to wait for it.
    pub(crate) ready: bool,
    /// End the session. The first goodbye counts.
    pub(crate) goodbye: Option<Goodbye>,
    /// Subscriptions that ended, with code and reason.
    pub(crate) ended: Vec<(SubscriptionId, u16, String)>,
}

impl Mailbox {
    /// Notes that the state under a key may have changed.
    pub fn offer(&self, subscription: SubscriptionId, key: &ObjectKey) {
        self.put(|mail| {
            mail.dirty.insert((subscription, key.clone()));
        });
    }

    /// Notes that the node's picture is complete.
    pub fn ready(&self) {
        self.put(|mail| mail.ready = true);
    }

    /// Ends the session.
    pub fn end(&self, goodbye: Goodbye) {
        self.put(|mail| {
            mail.goodbye.get_or_insert(goodbye);
        });
    }

    /// Ends one subscription. A session has few subscriptions, and each ends once.
    pub(crate) fn end_subscription(&self, subscription: SubscriptionId, code: u16, reason: &str) {
        self.put(|mail| mail.ended.push((subscription, code, reason.to_owned())));
    }

    fn put(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.mail.lock());
        // If the box was already full, the node session has been woken for it.
        if !self.full.swap(true, Ordering::AcqRel)
            && let Some(waker) = &*self.waker.lock()
        {
            waker.wake_by_ref();
        }
    }

    /// Takes everything out. An empty mailbox costs no lock and no write, because the node session checks it with every
    /// event.
    pub(crate) fn take(&self) -> Mail {
        if !self.full.load(Ordering::Acquire) || !self.full.swap(false, Ordering::AcqRel) {
            return Mail::default();
        }
        std::mem::take(&mut *self.mail.lock())
    }

    /// Completes when the box is not empty. Only one task waits, always with the same listener. Cancel-safe.
    pub(crate) async fn arrived(&self, listener: &mut Listener) {
        poll_fn(|cx| {
            if self.full.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if listener.0.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            listener.0 = Some(cx.waker().clone());
            *self.waker.lock() = Some(cx.waker().clone());
            // Entries added before the waker was registered have woken no task.
            if self.full.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Number of pending keys.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.mail.lock().dirty.len()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};
    use std::time::Duration;

    use tombolo_proto::Resource;
    use tombolo_proto::frame::GoodbyeReason;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll(mailbox: &Mailbox, listener: &mut Listener, waker: &Waker) -> bool {
        pin!(mailbox.arrived(listener)).poll(&mut Context::from_waker(waker)).is_ready()
    }

    #[test]
    fn owner_is_woken_once_per_emptied_mailbox() {
        let (mailbox, mut listener) = (Mailbox::default(), Listener::default());
        let (first, second) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "d", "a");
        let waker = Waker::from(Arc::clone(&first));
        for round in 1..=3 {
            assert!(!poll(&mailbox, &mut listener, &waker), "empty");
            mailbox.offer(SubscriptionId::NODE, &key);
            mailbox.ready();
            assert_eq!(first.0.load(Ordering::SeqCst), round);
            assert!(poll(&mailbox, &mut listener, &waker), "full until it is read");
            let mail = mailbox.take();
            assert!(mail.dirty.len() == 1 && mail.ready && mailbox.take().dirty.is_empty());
        }
        // Another task takes over.
        assert!(!poll(&mailbox, &mut listener, &Waker::from(Arc::clone(&second))));
        mailbox.ready();
        assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (3, 1));
    }

    #[test]
    fn first_goodbye_counts_and_every_subscription_end_is_kept() {
        let mailbox = Mailbox::default();
        for reason in [GoodbyeReason::NodeDeleted, GoodbyeReason::Draining] {
            mailbox.end(Goodbye { reason, message: String::new(), retry_after: Duration::ZERO });
        }
        mailbox.end_subscription(SubscriptionId(3), 403, "no right");
        mailbox.end_subscription(SubscriptionId(4), 429, "no room");
        let mail = mailbox.take();
        assert_eq!(mail.goodbye.map(|goodbye| goodbye.reason), Some(GoodbyeReason::NodeDeleted));
        let ended =
            [(SubscriptionId(3), 403, "no right".to_owned()), (SubscriptionId(4), 429, "no room".to_owned())];
        assert_eq!(mail.ended, ended);
    }
}
