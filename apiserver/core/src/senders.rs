//! Senders of requests, among which the limits of a server are divided: no sender can use up all of them.
//!
//! A sender is an authenticated user. The ServiceAccounts of one namespace are one sender, because whoever controls the
//! namespace can create any number of them. Unauthenticated clients ("strangers") are distinguished by address, and
//! have small shares together.
//!
//! On a node ([`crate::api::builder::Builder::shared_out_among_pods`]) every address is a separate source, because pods
//! of one network belong to different users. All loopback addresses are one source, because a process that can use one
//! of them can use all.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::identity::{AUTHENTICATED_GROUP, Identity};

/// Maximum number of concurrent pieces of CPU-bound work in a process; further ones queue without a thread.
pub const BLOCKING_MAX: usize = 4;

/// Maximum number of these from one sender that run or wait in the common queue.
pub const BLOCKING_OF_SENDER_MAX: usize = BLOCKING_MAX / 2;

/// One sender may use at most `1 / SENDER_SHARE` of the requests, watches, connections and bytes of a server.
pub const SENDER_SHARE: usize = 4;

/// All strangers together may use at most `1 / STRANGERS_SHARE`.
pub const STRANGERS_SHARE: usize = 8;

/// Strangers from one address may use at most `1 / STRANGER_SHARE`.
pub const STRANGER_SHARE: usize = 32;

/// `1 / RESERVED_SHARE` is reserved for administrators (`system:masters`), who are not limited.
pub const RESERVED_SHARE: usize = 16;

/// Group of users without limits.
const PRIVILEGED_GROUP: &str = "system:masters";

const ACCOUNTS: &str = "system:serviceaccount:";

/// The source of a connection: an address, or for IPv6 the /64 network; on a node, see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Source(Option<IpAddr>);

impl Source {
    pub(crate) fn of(address: Option<IpAddr>) -> Self {
        Self(address.map(|address| match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(network))
            }
            v4 @ IpAddr::V4(_) => v4,
        }))
    }

    /// The source on a node.
    fn on_node(address: Option<IpAddr>) -> Self {
        Self(address.map(|address| match address.to_canonical() {
            address if address.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            address => address,
        }))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("unknown"),
            Some(address) => address.fmt(f),
        }
    }
}

/// A limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Good {
    Requests,
    Watches,
    Connections,
    AnswersLen,
    BodiesLen,
}

/// What one sender uses. A sender is known as long as something refers to it.
#[derive(Debug)]
pub struct Sender {
    name: String,
    share: usize,
    privileged: bool,
    /// The common sender of all strangers, for a stranger.
    parent: Option<Arc<Self>>,
    has: [AtomicUsize; 5],
    /// Permits for CPU-bound work outside the threads that serve requests.
    blocking: Semaphore,
    /// Permits for objects on their way into the store, one per byte.
    storing: Arc<Semaphore>,
}

/// Maximum number of bytes of one sender's objects in the common queue for the disk. A larger object takes all of these
/// permits, and the sender's other writes wait behind it.
const STORING_LEN_MAX: u32 = 4 * 1024 * 1024;

/// Minimum number of permits that a write takes.
const STORING_LEN_MIN: usize = 4 * 1024;

/// The sender whose share a request uses for CPU-bound work and for the disk; the server itself by default.
#[derive(Debug, Clone, Default)]
pub struct Payer(Option<Arc<Sender>>);

impl From<Arc<Sender>> for Payer {
    fn from(sender: Arc<Sender>) -> Self {
        Self(Some(sender))
    }
}

/// The payer does not affect the equality of requests.
impl PartialEq for Payer {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Payer {}

impl Payer {
    /// Whether the request comes from the server itself.
    pub(crate) fn is_server(&self) -> bool {
        self.0.is_none()
    }

    /// The name of the sender.
    #[cfg(test)]
    pub(crate) fn name(&self) -> &str {
        self.0.as_ref().map_or("", |sender| &sender.name)
    }

    /// Waits until an object of this many bytes may enter the queue for the disk.
    pub(crate) async fn storing(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        let len = u32::try_from(len.max(STORING_LEN_MIN)).unwrap_or(u32::MAX).min(STORING_LEN_MAX);
        // The semaphore is never closed.
        Arc::clone(&self.0.as_ref()?.storing).acquire_many_owned(len).await.ok()
    }

    /// Waits behind the sender's own work and, for a stranger, behind that of other strangers.
    pub(crate) async fn turn(&self) -> [Option<SemaphorePermit<'_>>; 2] {
        let Some(sender) = &self.0 else { return [None, None] };
        // The semaphores are never closed.
        let own = sender.blocking.acquire().await.ok();
        match &sender.parent {
            Some(parent) => [own, parent.blocking.acquire().await.ok()],
            None => [own, None],
        }
    }
}

impl Sender {
    fn new(name: String, share: usize, parent: Option<Arc<Self>>) -> Self {
        // Strangers from one address may use half of what all strangers may.
        let blocking = if parent.is_some() { BLOCKING_OF_SENDER_MAX / 2 } else { BLOCKING_OF_SENDER_MAX };
        let storing = Arc::new(Semaphore::new(STORING_LEN_MAX as usize));
        let (has, blocking) = (Default::default(), Semaphore::new(blocking));
        Self { name, share, privileged: false, parent, has, blocking, storing }
    }

    /// The only sender of a server that does not divide its limits.
    pub(crate) fn everybody() -> Arc<Self> {
        let (blocking, storing) =
            (Semaphore::new(BLOCKING_MAX), Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)));
        Arc::new(Self { privileged: true, blocking, storing, ..Self::new(String::new(), 1, None) })
    }

    /// Takes an amount, unless the sender would then exceed its share of a whole. The first answer or body of a known
    /// sender may be larger than its share, as it could otherwise never be sent.
    pub(crate) fn take(&self, good: Good, amount: usize, whole: usize) -> bool {
        self.grow(good, 0, amount, whole)
    }

    /// Like [`Self::take`], to extend something that already has `own`.
    pub(crate) fn grow(&self, good: Good, own: usize, amount: usize, whole: usize) -> bool {
        let before = self.has[good as usize].fetch_add(amount, Ordering::Relaxed);
        let is_first =
            before == own && matches!(good, Good::AnswersLen | Good::BodiesLen) && self.parent.is_none();
        let fits = is_first || before.saturating_add(amount) <= whole / self.share;
        let taken = fits && self.parent.as_ref().is_none_or(|parent| parent.take(good, amount, whole));
        if !taken {
            self.has[good as usize].fetch_sub(amount, Ordering::Relaxed);
        }
        taken
    }

    /// Gives an amount back.
    pub(crate) fn give_back(&self, good: Good, amount: usize) {
        self.has[good as usize].fetch_sub(amount, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.give_back(good, amount);
        }
    }

    /// Whether it is an administrator.
    pub(crate) fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// How much of a whole may be in use by all senders when this one makes a request.
    pub(crate) fn reach(&self, whole: usize) -> usize {
        if self.privileged { whole } else { whole - whole / RESERVED_SHARE }
    }
}

/// The senders of one server.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    /// User without limits, on a server of a node.
    owner: Option<String>,
    known: Mutex<KnownSenders>,
}

#[derive(Debug, Default)]
struct KnownSenders {
    by_name: HashMap<String, Weak<Sender>>,
    /// The number of names at which those of dropped senders are removed.
    look_at: usize,
}

/// Maximum number of names kept for senders that were dropped.
const GONE_MAX: usize = 1024;

impl Senders {
    /// The senders of a server on a node that belongs to this user.
    pub(crate) fn on_node_of(owner: &str) -> Self {
        Self { owner: Some(owner.to_owned()), known: Mutex::default() }
    }

    /// The source of a connection.
    pub(crate) fn source(&self, address: Option<IpAddr>) -> Source {
        if self.owner.is_some() { Source::on_node(address) } else { Source::of(address) }
    }

    /// The sender behind an identity.
    pub(crate) fn find(&self, identity: &Identity, source: Source) -> Arc<Sender> {
        let is_privileged = identity.groups.iter().any(|group| group == PRIVILEGED_GROUP)
            || self.owner.as_ref() == Some(&identity.user);
        if is_privileged {
            return self.named(format!("administrator {}", identity.user), |name| Sender {
                privileged: true,
                ..Sender::new(name, 1, None)
            });
        }
        if !is_known(identity) {
            let strangers =
                self.named("strangers".to_owned(), |name| Sender::new(name, STRANGERS_SHARE, None));
            return self.named(format!("stranger {source}"), |name| {
                Sender::new(name, STRANGER_SHARE, Some(strangers))
            });
        }
        self.named(name_of(identity), |name| Sender::new(name, SENDER_SHARE, None))
    }

    fn named(&self, name: String, make: impl FnOnce(String) -> Sender) -> Arc<Sender> {
        let mut known = self.known.lock();
        if let Some(sender) = known.by_name.get(&name).and_then(Weak::upgrade) {
            return sender;
        }
        if known.by_name.len() >= known.look_at {
            known.by_name.retain(|_, sender| sender.strong_count() > 0);
            known.look_at = known.by_name.len() + GONE_MAX;
        }
        let sender = Arc::new(make(name));
        known.by_name.insert(sender.name.clone(), Arc::downgrade(&sender));
        sender
    }
}

/// The name of an authenticated sender: a user, or all ServiceAccounts of a namespace.
#[must_use]
pub fn name_of(identity: &Identity) -> String {
    match identity.user.strip_prefix(ACCOUNTS).and_then(|account| account.split_once(':')) {
        Some((namespace, _)) => format!("accounts {namespace}"),
        None => format!("user {}", identity.user),
    }
}

/// Whether the identity is authenticated.
pub(crate) fn is_known(identity: &Identity) -> bool {
    identity.groups.iter().any(|group| group == AUTHENTICATED_GROUP || group == PRIVILEGED_GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Source = Source(None);

    fn user(name: &str) -> Identity {
        Identity::new(name, &[AUTHENTICATED_GROUP])
    }

    #[test]
    fn no_sender_exceeds_its_share_except_administrators() {
        let senders = Senders::default();
        let eve = senders.find(&user("eve"), HERE);
        let taken = (0..100).filter(|_| eve.take(Good::Requests, 1, 64)).count();
        assert_eq!(taken, 64 / SENDER_SHARE);
        assert!(senders.find(&user("bob"), HERE).take(Good::Requests, 1, 64), "others have their own");
        assert!(!senders.find(&user("eve"), HERE).take(Good::Requests, 1, 64), "she is still the same");
        eve.give_back(Good::Requests, 1);
        assert!(eve.take(Good::Requests, 1, 64));
        let admin = senders.find(&Identity::new("admin", &[PRIVILEGED_GROUP]), HERE);
        assert!((0..64).all(|_| admin.take(Good::Requests, 1, 64)));
        assert_eq!((admin.reach(64), eve.reach(64)), (64, 60));
    }

    #[test]
    fn accounts_of_a_namespace_share_and_strangers_are_separated_by_address() {
        let senders = Senders::default();
        let account = |name: &str| senders.find(&user(&format!("system:serviceaccount:{name}")), HERE);
        assert!(Arc::ptr_eq(&account("shop:a"), &account("shop:b")));
        assert_ne!(account("other:a").name, account("shop:a").name);
        let from =
            |address: &str| senders.find(&Identity::anonymous(), Source::of(Some(address.parse().unwrap())));
        let (one, two) = (from("192.0.2.1"), from("192.0.2.2"));
        assert!((0..2).all(|_| one.take(Good::Requests, 1, 64)) && !one.take(Good::Requests, 1, 64));
        assert!(two.take(Good::Requests, 1, 64));
        assert_eq!(from("2001:db8::1").name, from("2001:db8::ffff:1").name, "one site");
        let more: Vec<_> = (3..9).map(|last| from(&format!("192.0.2.{last}"))).collect();
        let taken = more.iter().filter(|stranger| stranger.take(Good::Requests, 1, 64)).count();
        assert_eq!(taken, 64 / STRANGERS_SHARE - 3, "all strangers together have a share, too");
    }

    #[test]
    fn pods_of_a_node_are_separate_senders_and_its_owner_is_unlimited() {
        let senders = Senders::on_node_of("kubelet");
        let source = |address: &str| senders.source(Some(address.parse().unwrap()));
        assert_ne!(source("fd00:7::1"), source("fd00:7::2"), "pods of one network");
        assert_eq!(source("127.0.0.1"), source("127.7.7.7"));
        assert_eq!(source("::1"), source("::ffff:127.0.0.1"));
        let kubelet = senders.find(&user("kubelet"), HERE);
        assert!((0..64).all(|_| kubelet.take(Good::Watches, 1, 64)));
        let eve = senders.find(&user("eve"), HERE);
        assert_eq!((kubelet.reach(64), eve.reach(64)), (64, 60));
    }

    #[test]
    fn idle_senders_are_forgotten() {
        let senders = Senders::default();
        for number in 0..10 * GONE_MAX {
            drop(senders.find(&user(&format!("u{number}")), HERE));
        }
        assert!(senders.known.lock().by_name.len() <= 2 * GONE_MAX);
    }
}
