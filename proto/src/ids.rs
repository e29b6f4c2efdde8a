//! Identities, sequences and revisions: one type each, so that mixing up two of them does not compile.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::IdError;

/// Longest Kubernetes object name and DNS-1123 subdomain, in bytes (Kubernetes naming convention).
pub const NAME_LEN_MAX: usize = 253;

/// Longest UID accepted from a peer, in bytes. Kubernetes UIDs are 36 bytes; the slack is for other stores.
pub const UID_LEN_MAX: usize = 128;

/// Whether this can be the name of a ConfigMap, a Secret, a Node or any other object whose name is a DNS-1123
/// subdomain. The API server stores no such object under any other name.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    let label_ok = |label: &str| {
        let bytes = label.as_bytes();
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    text.len() <= NAME_LEN_MAX && text.split('.').all(label_ok)
}

/// Name of a Node object: the identity of an edge. A valid DNS-1123 subdomain.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Parses a node name.
    ///
    /// # Errors
    /// [`IdError`] when the text is not a DNS-1123 subdomain of at most [`NAME_LEN_MAX`] bytes.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if !is_dns_subdomain(text) {
            return Err(IdError::new("node name", text, "must be a lower-case DNS-1123 subdomain"));
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `metadata.uid` of an object: distinguishes a re-created object from an updated one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(Arc<str>);

impl Uid {
    /// Parses a UID.
    ///
    /// # Errors
    /// [`IdError`] when the text is empty, longer than [`UID_LEN_MAX`] or has control characters.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() || text.len() > UID_LEN_MAX || text.chars().any(char::is_control) {
            return Err(IdError::new("uid", text, "must be 1 to 128 printable bytes"));
        }
        Ok(Self(text.into()))
    }

    /// The UID as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Maps keyed by UIDs can be looked up with text.
impl Borrow<str> for Uid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

macro_rules! text_format {
    ($($name:ident),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), &self.0)
            }
        }
    )+};
}

text_format!(NodeId, Uid);

/// `metadata.resourceVersion` as the cloud's Kubernetes API returned it. Never compared with a revision of the edge's
/// own store, which is another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CloudRevision(pub u64);

impl CloudRevision {
    /// Parses a resource version.
    ///
    /// # Errors
    /// [`IdError`] when the text is not an unsigned decimal number.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        text.parse().map(Self).map_err(|_| IdError::new("resourceVersion", text, "must be a decimal number"))
    }
}

impl fmt::Display for CloudRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of one edge store, drawn at random when the store is created: a rebuilt store has a new identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

/// One history of cloud revisions. Revisions of different epochs are not comparable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// UID of the `kube-system` namespace: the identity of the cluster.
    pub cluster: Uid,
    /// Grows when the cluster's revisions went back (restored or wiped etcd).
    pub generation: u64,
}

/// Position in one lane of one session, counted from 1. 0 means "nothing yet".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Number of a request within one session, chosen by the requesting side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Number of a set of objects that an edge follows: the node's pushed set, or a selection of a local client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub u32);

impl SubscriptionId {
    /// The pushed set: the node's own Node, Pods, ConfigMaps and Secrets.
    pub const NODE: Self = Self(0);
}

/// Priority class inside a connection. Lower lanes never wait for higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lane {
    /// Hello, leases, pings, requests, replies, acknowledgements.
    Control = 0,
    /// Objects below [`crate::limits::BULK_OBJECT_MIN`].
    Delivery = 1,
    /// Larger objects, inventories and large requests.
    Bulk = 2,
}

impl Lane {
    /// All lanes, in order of priority.
    pub const ALL: [Self; 3] = [Self::Control, Self::Delivery, Self::Bulk];

    /// Index into an array with one element per lane.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The lane with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// A reading of a monotonic clock whose origin the caller chooses. Sessions only compare and add moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Moment {
    /// Microseconds since the caller's origin.
    pub micros: u64,
}

impl Moment {
    /// The moment this long after the origin.
    #[must_use]
    pub fn after_origin(elapsed: Duration) -> Self {
        Self { micros: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX) }
    }

    /// Time since an earlier moment; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.micros.saturating_sub(earlier.micros))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, delay: Duration) -> Self {
        Self { micros: self.micros.saturating_add(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)) }
    }
}
