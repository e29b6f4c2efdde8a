//! What the sessions with the cloud know of its kinds. The local API has it from discovery, which it keeps on disk.

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tombolo_proto::session::kubeedge::Kinds;

/// The end of the sessions.
#[derive(Debug, Clone)]
pub(crate) struct KnownKinds {
    /// What discovery says; nothing before it was ever heard.
    pub(super) discovered: watch::Receiver<Arc<Kinds>>,
    wanted: Arc<Notify>,
}

impl KnownKinds {
    /// Says that something came whose kind nobody knows.
    pub(super) fn ask(&self) {
        self.wanted.notify_one();
    }
}

/// The end of the local API.
#[derive(Debug, Clone)]
pub(crate) struct KindsTeller {
    told: watch::Sender<Arc<Kinds>>,
    /// Told when newer discovery is wanted.
    pub(crate) wanted: Arc<Notify>,
}

impl KindsTeller {
    /// Both ends.
    pub(crate) fn new() -> (Self, KnownKinds) {
        let (told, discovered) = watch::channel(Arc::default());
        let wanted = Arc::new(Notify::new());
        (Self { told, wanted: Arc::clone(&wanted) }, KnownKinds { discovered, wanted })
    }

    /// Tells what discovery says. A document that is none changes nothing.
    pub(crate) fn tell(&self, document: &[u8]) {
        if let Ok(kinds) = Kinds::discovered(document) {
            self.told.send_if_modified(|known| {
                let other = **known != kinds;
                if other {
                    *known = Arc::new(kinds);
                }
                other
            });
        }
    }
}
