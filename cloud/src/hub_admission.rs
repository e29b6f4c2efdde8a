//! Admission to the hub: which connections are accepted, and which sessions must end.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt as _;
use tombolo_link::identity::PeerCertificate;
use tombolo_link::server::Arrival;
use tombolo_proto::NodeId;
use tombolo_proto::frame::{Goodbye, GoodbyeReason};
use tombolo_runtime::LineLimit;

use crate::bootstrap::identities::{Denied, Identities, IdentityError};
use crate::hub::{CLOSE_LIMIT, Hub, Registry, SessionHandle, refuse};
use crate::metrics::Metrics;

/// How often sessions are checked when nothing has changed: a certificate expires without an event.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// When a node with an invalid certificate should retry: it may have joined again by then.
const DENIED_RETRY: Duration = Duration::from_secs(60);

/// When a node should retry whose certificate could not be checked.
const UNKNOWN_RETRY: Duration = Duration::from_secs(5);

/// Maximum number of sessions checked with the API concurrently.
const SWEEP_QUESTIONS: usize = 8;

/// Log lines per minute about refused connections, for one node and for all nodes.
const LINES_OF_ONE: u32 = 30;
const LINES_OF_ALL: u32 = 600;

/// Admits arrivals whose certificates are valid.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    identities: Arc<Identities>,
    /// Limits log lines about refused connections. Separate from those of sessions, because a refused peer may be a
    /// copy of the node.
    lines: Arc<LineLimit<NodeId>>,
}

impl Gate {
    pub(crate) fn new(identities: Arc<Identities>) -> Self {
        Self { identities, lines: Arc::new(LineLimit::new(LINES_OF_ONE, LINES_OF_ALL)) }
    }

    /// Checks an arrival and hands it to the hub, or refuses it with a reason.
    pub(crate) async fn admit(self, arrival: Arrival, hub: Arc<Hub>) {
        let (node, peer) = match &arrival {
            Arrival::Tombolo(accepted) => (&accepted.node, accepted.link.peer()),
            Arrival::KubeEdge(accepted) => (&accepted.node, accepted.link.peer()),
        };
        let goodbye = match &peer.certificate {
            Some(certificate) => match self.identities.check(node, certificate).await {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(denied(why)),
                Err(error) => Some(unknown(&error)),
            },
            // TLS requires a certificate, so no connection without one gets here.
            None => Some(denied(Denied::Unknown)),
        };
        let Some(goodbye) = goodbye else {
            match arrival {
                Arrival::Tombolo(accepted) => hub.accept(accepted),
                Arrival::KubeEdge(accepted) => hub.accept_kubeedge(accepted),
            }
            return;
        };
        hub.metrics.refused_certificates.inc();
        // A refused peer may reconnect as often as it likes.
        if let Some(left_out) = self.lines.admit(node) {
            tracing::warn!(%node, remote = %peer.remote, message = goodbye.message, left_out, "connection refused");
        }
        match arrival {
            Arrival::Tombolo(accepted) => refuse(accepted.link, goodbye).await,
            // A KubeEdge edge does not understand a reason: it reconnects after its own delay
            // (docs/reference/kubeedge.md#hub-loop).
            Arrival::KubeEdge(accepted) => accepted.link.close(CLOSE_LIMIT).await,
        }
    }
}

fn denied(why: Denied) -> Goodbye {
    Goodbye { reason: GoodbyeReason::Forbidden, message: why.to_string(), retry_after: DENIED_RETRY }
}

fn unknown(error: &IdentityError) -> Goodbye {
    let message = format!("the certificate cannot be checked now: {error}");
    Goodbye { reason: GoodbyeReason::Overloaded, message, retry_after: UNKNOWN_RETRY }
}

/// Ends sessions whose certificate has expired or is no longer valid. Never returns.
pub(crate) async fn sweep(identities: Arc<Identities>, registry: Arc<Registry>, metrics: Metrics) {
    let mut changed = identities.changes();
    loop {
        tokio::select! {
            _ = changed.changed() => {}
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
        }
        identities.measure(&metrics);
        sweep_once(&identities, &registry).await;
    }
}

/// Checks all sessions once.
pub(crate) async fn sweep_once(identities: &Identities, registry: &Registry) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut doubtful = Vec::new();
    for (node, handle) in registry.all() {
        let Some(certificate) = handle.certificate else { continue };
        if certificate.expires <= now {
            let message = "the certificate of this session has expired: renew it".to_owned();
            let reason = GoodbyeReason::Other;
            handle.mailbox.end(Goodbye { reason, message, retry_after: UNKNOWN_RETRY });
        } else if !identities.is_known_good(&node, &certificate) {
            doubtful.push((node, handle, certificate));
        }
    }
    let questions = doubtful.into_iter().map(|(node, handle, certificate)| async move {
        settle(identities, &node, &handle, &certificate).await;
    });
    futures::stream::iter(questions).buffer_unordered(SWEEP_QUESTIONS).collect::<()>().await;
}

/// The state in memory does not confirm the certificate: the API decides.
async fn settle(
    identities: &Identities,
    node: &NodeId,
    handle: &SessionHandle,
    certificate: &PeerCertificate,
) {
    match identities.ask(node, certificate).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => {
            tracing::warn!(%node, %why, "session ended: its certificate is no longer in force");
            let reason =
                if why == Denied::Deleted { GoodbyeReason::NodeDeleted } else { GoodbyeReason::Forbidden };
            let message = format!("Node {node}: {why}");
            handle.mailbox.end(Goodbye { reason, message, retry_after: DENIED_RETRY });
        }
        // It is checked again in the next sweep.
        Err(error) => tracing::debug!(%node, %error, "cannot check a session's certificate"),
    }
}
