//! What a node's owner task has to look at: a set, not a queue. Ten changes of one object are one entry.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tombolo_proto::frame::Goodbye;
use tombolo_proto::{ObjectKey, ScopeId};

/// Dirty keys and orders for one session. Bounded by what the session's scopes hold, because it is a set of their keys.
#[derive(Debug, Default)]
pub struct Mailbox {
    mail: Mutex<Mail>,
    arrived: Notify,
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
        self.mail.lock().dirty.insert((scope, key.clone()));
        self.arrived.notify_one();
    }

    /// The node's picture is complete.
    pub fn ready(&self) {
        self.mail.lock().ready = true;
        self.arrived.notify_one();
    }

    /// Ends the session.
    pub fn end(&self, goodbye: Goodbye) {
        self.mail.lock().goodbye.get_or_insert(goodbye);
        self.arrived.notify_one();
    }

    /// Ends one subscription. A session has few of them, and each ends once.
    pub(crate) fn end_subscription(&self, scope: ScopeId, code: u16, reason: &str) {
        self.mail.lock().ended.push((scope, code, reason.to_owned()));
        self.arrived.notify_one();
    }

    /// Takes everything out.
    pub(crate) fn take(&self) -> Mail {
        std::mem::take(&mut *self.mail.lock())
    }

    /// Completes when something has arrived since the last completion. Cancel-safe.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Number of keys that wait.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.mail.lock().dirty.len()
    }
}
