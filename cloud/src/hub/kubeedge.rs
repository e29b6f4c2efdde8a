//! The connection of a KubeEdge edge: its link, its session, and the storing of its ledger.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tombolo_link::{DocumentEvent, DocumentLink, LinkError};
use tombolo_proto::frame::{Goodbye, GoodbyeReason};
use tombolo_proto::session::kubeedge::{CloudConfig, CloudSession, LedgerWrite};
use tombolo_proto::{Moment, NodeId, Uid};
use tombolo_runtime::time::unix_millis;

use super::Hub;
use super::ledger::{LedgerError, Opened, RecordVersion, Saved};
use super::metaserver::MetaServer;
use super::registry::SessionHandle;
use super::view::View;
use crate::config::{Devices, KubeEdgeSessions};

/// Longest wait at the end of a session until its ledger is stored. When a whole fleet disconnects, the writes queue
/// behind each other. A lost ledger only causes repeated deliveries.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait until the node's former session has stored its ledger.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(40);

/// A write in progress.
struct Saving {
    number: u64,
    work: BoxFuture<'static, Saved>,
}

/// The connection of a KubeEdge edge.
pub(super) struct KubeEdge {
    hub: Arc<Hub>,
    node: NodeId,
    pub(super) link: DocumentLink,
    pub(super) session: CloudSession,
    /// Version of the stored record; none when there is no record.
    version: Option<RecordVersion>,
    /// UID of the Node object that the record names.
    owner: Option<Uid>,
    saving: Option<Saving>,
    /// The link accepted no further document although the session may have had one.
    choked: bool,
    /// This session must not write the record any more.
    abandoned: bool,
    /// The watches of the edge's MetaServer.
    pub(super) metaserver: MetaServer,
}

/// An event of such a connection.
#[derive(Debug)]
pub(super) enum KubeEdgeEvent {
    Document(Bytes),
    /// Traffic that is not a document, which shows that the peer is alive.
    Heard,
    Closed(LinkError),
    /// Documents were sent, and the session has something to do because of that.
    Left,
    Saved(u64, Saved),
}

/// Waits until the node's former session has stored its ledger.
///
/// # Errors
/// The former session does not end in time.
pub(super) async fn wait_for(node: &NodeId, former: Option<Arc<SessionHandle>>) -> Result<(), LedgerError> {
    if let Some(former) = former
        && tokio::time::timeout(PREDECESSOR_LIMIT, former.over()).await.is_err()
    {
        let reason = "the node's former session is still storing it".to_owned();
        return Err(LedgerError::Unavailable { node: node.clone(), action: "read", reason, passing: true });
    }
    Ok(())
}

impl KubeEdge {
    pub(super) fn new(hub: Arc<Hub>, node: NodeId, opened: Opened, link: DocumentLink, view: &View) -> Self {
        let epoch = hub.epoch.load().as_ref().clone();
        let Opened { ledger, owner, version } = opened;
        let mut metaserver = MetaServer::default();
        metaserver.restore(ledger.watches.clone());
        let (KubeEdgeSessions { silence, window, devices }, restoring) =
            (hub.kubeedge, metaserver.is_restoring());
        let config = CloudConfig::new(node.clone(), epoch, unix_millis(), rand::random());
        let discard_devices = devices == Devices::Discard;
        let config = CloudConfig { silence, window, restoring, discard_devices, ..config };
        let session = CloudSession::new(config, ledger, hub.clock.now(), view);
        Self {
            hub,
            node,
            link,
            session,
            version,
            owner,
            saving: None,
            choked: false,
            abandoned: false,
            metaserver,
        }
    }

    /// Moves documents onto the link while there is room, then starts a ledger write if the session needs one.
    pub(super) fn pump(&mut self, now: Moment, view: &View) -> Result<(), LinkError> {
        self.choked = loop {
            if !self.link.can_send() {
                break true;
            }
            let Some(document) = self.session.poll_transmit(now, view) else { break false };
            self.link.send(document)?;
        };
        if self.saving.is_none()
            && let Some(write) = self.session.poll_ledger(now, view)
        {
            self.save(write);
        }
        Ok(())
    }

    fn save(&mut self, write: LedgerWrite) {
        let (ledgers, node) = (self.hub.ledgers.clone(), self.node.clone());
        let (version, owner) = (self.version.clone(), self.owner_of_record());
        let work = async move { ledgers.save(&node, version, write.ledger, owner).await }.boxed();
        self.saving = Some(Saving { number: write.number, work });
    }

    /// The UID of the registered Node. If the Node is not known, the UID that the record named.
    fn owner_of_record(&mut self) -> Option<Uid> {
        if let Some(uid) = self.hub.down.registered(&self.node) {
            self.owner = Some(uid);
        }
        self.owner.clone()
    }

    /// Passes the current watches to the session.
    pub(super) fn take_watches(&mut self) {
        if let Some(watches) = self.metaserver.poll_watches() {
            self.session.set_watches(watches);
        }
        if !self.metaserver.is_restoring() {
            self.session.restored();
        }
    }

    /// The next event that the node session must handle. Cancel-safe.
    ///
    /// Sent documents are mostly not such an event. They only set the time from which on an acknowledgement is overdue,
    /// and the node session, which looks at the session again at `wakes_at`, should not run a round for each of them.
    pub(super) async fn next(&mut self, wakes_at: Instant) -> KubeEdgeEvent {
        poll_fn(|cx| {
            if let Some(saving) = &mut self.saving
                && let Poll::Ready(saved) = saving.work.poll_unpin(cx)
            {
                let number = saving.number;
                self.saving = None;
                return Poll::Ready(KubeEdgeEvent::Saved(number, saved));
            }
            loop {
                match ready!(self.link.poll_next(cx)) {
                    DocumentEvent::Transmitted(number) => {
                        self.session.transmitted(self.hub.clock.now(), number);
                        let due = self.session.next_timeout().map(|moment| self.hub.clock.instant(moment));
                        if self.choked || due.is_some_and(|due| due < wakes_at) {
                            return Poll::Ready(KubeEdgeEvent::Left);
                        }
                    }
                    DocumentEvent::Document(document) => {
                        return Poll::Ready(KubeEdgeEvent::Document(document));
                    }
                    DocumentEvent::Heard => return Poll::Ready(KubeEdgeEvent::Heard),
                    DocumentEvent::Closed(error) => return Poll::Ready(KubeEdgeEvent::Closed(error)),
                }
            }
        })
        .await
    }

    /// Handles an event. False when the connection is over.
    pub(super) fn handle(&mut self, now: Moment, event: KubeEdgeEvent) -> bool {
        match event {
            KubeEdgeEvent::Document(document) => {
                if let Err(error) = self.session.handle_document(now, &document)
                    && let Some(left_out) = self.hub.registry.may_log(&self.node)
                {
                    tracing::warn!(node = %self.node, %error, left_out, "session ends");
                }
            }
            KubeEdgeEvent::Heard => self.session.heard(now),
            KubeEdgeEvent::Left => {}
            KubeEdgeEvent::Closed(error) => {
                tracing::debug!(node = %self.node, %error, "connection ended");
                return false;
            }
            KubeEdgeEvent::Saved(number, saved) => self.saved(number, saved),
        }
        true
    }

    fn saved(&mut self, number: u64, saved: Saved) {
        match saved {
            Saved::Done(version) => {
                self.version = Some(version);
                self.session.ledger_saved(number);
            }
            Saved::Failed(error) => {
                tracing::warn!(node = %self.node, %error, "cannot store the delivery ledger; trying again");
                self.session.ledger_failed(number);
            }
            Saved::Conflict(theirs, version) => {
                self.version = version;
                self.session.ledger_conflict(number, &theirs);
            }
            Saved::TakenOver => {
                self.abandoned = true;
                let message = format!("{} has connected to another cloudcore", self.node);
                let reason = GoodbyeReason::Replaced;
                self.session.say_goodbye(Goodbye { reason, message, retry_after: Duration::ZERO });
            }
        }
    }

    /// The Node was deleted, and its ledger is deleted with it.
    pub(super) fn abandon_ledger(&mut self) {
        self.abandoned = true;
    }

    /// Stores the final ledger of the session.
    pub(super) async fn settle(&mut self) {
        if tokio::time::timeout(SETTLE_LIMIT, self.try_settle()).await.is_err() {
            tracing::warn!(node = %self.node, "the delivery ledger was not stored in time: objects may be sent again");
        }
    }

    async fn try_settle(&mut self) {
        if let Some(Saving { number, work }) = self.saving.take() {
            let saved = work.await;
            self.saved(number, saved);
        }
        if self.abandoned {
            return;
        }
        let Some(ledger) = self.session.final_ledger().cloned() else { return };
        let (version, owner) = (self.version.clone(), self.owner_of_record());
        match self.hub.ledgers.save(&self.node, version, ledger, owner).await {
            Saved::Done(_) => {}
            Saved::Failed(error) => {
                tracing::warn!(node = %self.node, %error, "cannot store the delivery ledger");
            }
            // The stored record names every key that this session has sent, and makes no claim about the versions.
            Saved::Conflict(..) | Saved::TakenOver => {
                tracing::debug!(node = %self.node, "the delivery ledger belongs to another session now");
            }
        }
    }
}
