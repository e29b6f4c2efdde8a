//! From an accepted connection to a running session. A node that reconnects again and again has only a few sessions at
//! a time.

use std::sync::Arc;

use tombolo_link::{DocumentLink, Link};
use tombolo_proto::NodeId;
use tombolo_proto::frame::{Goodbye, GoodbyeReason};
use tombolo_proto::session::{CloudConfig, CloudSession};
use tombolo_runtime::time::unix_millis;

use super::super::channel::{Channel, Tombolo};
use super::super::kubeedge::{KubeEdge, wait_for};
use super::super::ledger::LedgerError;
use super::super::mailbox::Listener;
use super::super::registry::SessionHandle;
use super::super::view::View;
use super::super::{CLOSE_LIMIT, Hub, refuse};
use super::{KUBEEDGE_AGENT, NodeSession};
use crate::edgecontroller::{Input, TRIM_VERSION};

/// Owns a connection until its session is over. The future is small because all lasting state is in one box: an async
/// function reserves memory for each argument that it moves, and there are thousands of these futures.
pub(in super::super) fn run(
    hub: Arc<Hub>,
    node: NodeId,
    handle: Arc<SessionHandle>,
    link: Link,
) -> impl Future<Output = ()> + Send {
    let opening = Box::pin(open(hub, node, handle, link));
    async move {
        if let Some(session) = opening.await {
            session.run().await;
        }
    }
}

/// The same for a KubeEdge edge, whose ledger is read first.
pub(in super::super) fn run_kubeedge(
    hub: Arc<Hub>,
    node: NodeId,
    handle: Arc<SessionHandle>,
    link: DocumentLink,
) -> impl Future<Output = ()> + Send {
    let opening = Box::pin(open_kubeedge(hub, node, handle, link));
    async move {
        if let Some(session) = opening.await {
            session.run().await;
        }
    }
}

async fn open(
    hub: Arc<Hub>,
    node: NodeId,
    handle: Arc<SessionHandle>,
    mut link: Link,
) -> Option<Box<NodeSession>> {
    let permit = match unless_ended(&handle, handle.memory.permit()).await {
        Ok(permit) if handle.begin() => permit,
        outcome => {
            never_began(&hub, &node, &handle).await;
            // If the node was replaced meanwhile, it has a newer connection, so no more time or memory is spent on this
            // one.
            if let Err(goodbye) = outcome
                && goodbye.reason != GoodbyeReason::Replaced
            {
                refuse(link, goodbye).await;
            }
            return None;
        }
    };
    let epoch = hub.epoch.load().as_ref().clone();
    let config = CloudConfig::new(node.clone(), epoch, TRIM_VERSION, unix_millis());
    let session = CloudSession::new(config, hub.clock.now());
    let mut view = View::new(node.clone(), Arc::clone(&hub.down));
    if let Some(recorder) = &hub.recorder {
        let recording = recorder.own(&node, link.peer().transport);
        view.record(Arc::clone(&recording));
        link.set_tap(recording);
    }
    link.set_share(&handle.memory.all);
    let channel = Channel::Tombolo(Tombolo { link, session });
    Some(NodeSession::new(hub, node, handle, view, (channel, permit)))
}

async fn open_kubeedge(
    hub: Arc<Hub>,
    node: NodeId,
    handle: Arc<SessionHandle>,
    mut link: DocumentLink,
) -> Option<Box<NodeSession>> {
    let opening = async {
        let permit = handle.memory.permit().await;
        wait_for(&node, handle.former()).await?;
        Ok::<_, LedgerError>((permit, hub.ledgers.open(&node).await?))
    };
    let (permit, opened) = match unless_ended(&handle, opening).await {
        Ok(Ok(opened)) if handle.begin() => opened,
        outcome => {
            never_began(&hub, &node, &handle).await;
            if let Ok(Err(error)) = outcome {
                if let Some(left_out) = hub.registry.may_log(&node) {
                    tracing::warn!(%node, %error, left_out, "connection refused: cannot read the delivery ledger of the node");
                }
                link.close(CLOSE_LIMIT).await;
            }
            // A KubeEdge edge understands no goodbye, so the link is simply closed.
            return None;
        }
    };
    if let Some(left_out) = hub.registry.may_log(&node) {
        tracing::info!(%node, objects = opened.ledger.len(), left_out, "KubeEdge node connected");
    }
    handle.facts.lock().agent = KUBEEDGE_AGENT.to_owned();
    let mut view = View::kubeedge(node.clone(), Arc::clone(&hub.down));
    if let Some(recorder) = &hub.recorder {
        let recording = recorder.kubeedge(&node);
        view.record(Arc::clone(&recording));
        link.set_tap(recording);
    }
    link.set_share(&handle.memory.all);
    let kubeedge = KubeEdge::new(Arc::clone(&hub), node.clone(), opened, link, &view);
    Some(NodeSession::new(hub, node, handle, view, (Channel::KubeEdge(kubeedge), permit)))
}

/// Does some work before a session begins, unless the session is ended first. Other mail is dropped: the new session
/// looks at everything anyway.
async fn unless_ended<T>(handle: &SessionHandle, work: impl Future<Output = T>) -> Result<T, Goodbye> {
    let mut listener = Listener::default();
    let ended = async {
        loop {
            handle.mailbox.arrived(&mut listener).await;
            if let Some(goodbye) = handle.mailbox.take().goodbye {
                return goodbye;
            }
        }
    };
    tokio::select! {
        biased;
        goodbye = ended => Err(goodbye),
        done = work => Ok(done),
    }
}

/// Cleans up after a connection that ends before its session has begun.
async fn never_began(hub: &Hub, node: &NodeId, handle: &SessionHandle) {
    if hub.registry.remove(node, handle) {
        // A session that this one replaced has reported the node as present. The receiver is gone only when the process
        // ends.
        let _ = hub.inputs.send(Input::Left(node.clone())).await;
    }
    handle.set_over();
}
