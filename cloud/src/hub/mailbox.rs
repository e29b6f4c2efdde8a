//! What a node's owner task has to look at: a set, not a queue. Ten changes of one object are one entry.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tombolo_proto::frame::Goodbye;
use tombolo_proto::{ObjectKey, ScopeId};

/// Dirty keys and orders for one session. Bounded by what the session's scopes hold, because it is a set of their keys.
#[derive(Debug, Default)]
pub struct Mailbox {
    mail: Mutex<Mail>,
    /// Something was put in since the last [`take`](Self::take).
    full: AtomicBool,
    owner: AtomicWaker,
}

/// The content of a mailbox.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) dirty: HashSet<(ScopeId, ObjectKey)>,
    /// The node's picture has become complete: offer what had to wait for it.
    pub(crate) ready: bool,
    /// End the session; the first order stands.
    pub(crate) goodbye: Option<Goodbye>,
    /// Subscriptions that ended, with code and reason.
    pub(crate) ended: Vec<(ScopeId, u16, String)>,
}

impl Mailbox {
    /// The state under a key may have changed.
    pub fn offer(&self, scope: ScopeId, key: &ObjectKey) {
        self.put(|mail| {
            mail.dirty.insert((scope, key.clone()));
        });
    }

    /// The node's picture is complete.
    pub fn ready(&self) {
        self.put(|mail| mail.ready = true);
    }

    /// Ends the session.
    pub fn end(&self, goodbye: Goodbye) {
        self.put(|mail| {
            mail.goodbye.get_or_insert(goodbye);
        });
    }

    /// Ends one subscription. A session has few of them, and each ends once.
    pub(crate) fn end_subscription(&self, scope: ScopeId, code: u16, reason: &str) {
        self.put(|mail| mail.ended.push((scope, code, reason.to_owned())));
    }

    fn put(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.mail.lock());
        self.full.store(true, Ordering::Release);
        self.owner.wake();
    }

    /// Takes everything out. An empty mailbox costs no lock: the owner looks into it with every event.
    pub(crate) fn take(&self) -> Mail {
        if !self.full.swap(false, Ordering::AcqRel) {
            return Mail::default();
        }
        std::mem::take(&mut *self.mail.lock())
    }

    /// Completes when something is in the box. One task waits at a time. Cancel-safe.
    pub(crate) async fn arrived(&self) {
        poll_fn(|cx| {
            if self.full.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            self.owner.register(cx.waker());
            // What came before the registration has woken nobody.
            if self.full.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Number of keys that wait.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.mail.lock().dirty.len()
    }
}
