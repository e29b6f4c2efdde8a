//! Gives sessions with the cloud the kinds of the cluster. They come from discovery, which the local API keeps on disk.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tombolo_proto::session::kubeedge::Kinds;

/// The end used by sessions.
#[derive(Debug, Clone)]
pub(crate) struct KnownKinds {
    /// Kinds from discovery; empty until it was read once.
    pub(super) discovered: watch::Receiver<Arc<Kinds>>,
    wanted: Arc<Notify>,
}

impl KnownKinds {
    /// Requests newer discovery, because an object of an unknown kind arrived.
    pub(super) fn ask(&self) {
        self.wanted.notify_one();
    }
}

/// The end used by the local API.
#[derive(Debug, Clone)]
pub(crate) struct KindsPublisher {
    published: watch::Sender<Arc<Kinds>>,
    /// Notified when newer discovery is wanted.
    pub(crate) wanted: Arc<Notify>,
}

impl KindsPublisher {
    /// Creates both ends.
    pub(crate) fn new() -> (Self, KnownKinds) {
        let (published, discovered) = watch::channel(Arc::default());
        let wanted = Arc::new(Notify::new());
        (Self { published, wanted: Arc::clone(&wanted) }, KnownKinds { discovered, wanted })
    }

    /// Publishes the kinds of a discovery document. An invalid document changes nothing.
    pub(crate) fn publish(&self, document: &[u8]) {
        if let Ok(kinds) = Kinds::discovered(document) {
            self.published.send_if_modified(|known| {
                let other = **known != kinds;
                if other {
                    *known = Arc::new(kinds);
                }
                other
            });
        }
    }
}
