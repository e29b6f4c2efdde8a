//! State that the modules of one edge process share (docs/reference/kubeedge.md#modules).

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::wire::{kind, route};
use super::{Pace, Store};

/// Capacity of a module's channel (docs/reference/kubeedge.md#modules).
const CHANNEL_MAX: usize = 1024;

/// A pod change that the meta manager sends to edged.
#[derive(Debug)]
pub(super) struct PodNews {
    /// Its row.
    pub(super) path: String,
    /// Whether it was deleted.
    pub(super) gone: bool,
    /// The object as received.
    pub(super) content: Value,
}

/// Channels and waiters.
pub(super) struct Bus {
    pub(super) store: Arc<Mutex<Store>>,
    pub(super) pace: Pace,
    rng: Mutex<StdRng>,
    up: mpsc::Sender<Value>,
    meta: mpsc::Sender<Value>,
    pods: mpsc::Sender<PodNews>,
    /// Outstanding requests of this process by message id; their number is not limited.
    waiters: Mutex<HashMap<String, oneshot::Sender<Value>>>,
}

/// The receiving ends of the channels.
pub(super) struct Inboxes {
    pub(super) up: mpsc::Receiver<Value>,
    pub(super) meta: mpsc::Receiver<Value>,
    pub(super) pods: mpsc::Receiver<PodNews>,
}

impl Bus {
    pub(super) fn new(store: Arc<Mutex<Store>>, pace: Pace, rng: StdRng) -> (Arc<Self>, Inboxes) {
        let (up, up_inbox) = mpsc::channel(CHANNEL_MAX);
        let (meta, meta_inbox) = mpsc::channel(CHANNEL_MAX);
        let (pods, pods_inbox) = mpsc::channel(CHANNEL_MAX);
        let (rng, waiters) = (Mutex::new(rng), Mutex::default());
        let bus = Self { store, pace, rng, up, meta, pods, waiters };
        (Arc::new(bus), Inboxes { up: up_inbox, meta: meta_inbox, pods: pods_inbox })
    }

    /// Queues a message for the hub to send.
    pub(super) async fn send_up(&self, message: Value) -> Result<()> {
        self.up.send(message).await.ok().context("the hub's task has ended")
    }

    /// Records a message that was lost on a dead connection.
    pub(super) fn lose(&self, message: &Value) {
        self.store.lock().lost.push(message.clone());
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn exchange(&self, message: Value) -> Result<Value> {
        let what = format!("{} {}", route(&message, "operation"), route(&message, "resource"));
        let id = message["header"]["msg_id"].as_str().unwrap_or_default().to_owned();
        let (answer, answered) = oneshot::channel();
        self.waiters.lock().insert(id.clone(), answer);
        let connection = self.store.lock().connections;
        self.send_up(message).await?;
        let answered = tokio::time::timeout(self.pace.remote, answered).await;
        if answered.is_err() {
            self.waiters.lock().remove(&id);
            let mut store = self.store.lock();
            if store.connected && store.connections == connection && !store.has_lost(&id) {
                store.unanswered.push(what.clone());
            }
        }
        Ok(answered.with_context(|| format!("{what} was not answered"))??)
    }

    /// Routes a message of the cloud, as the hub does (docs/reference/kubeedge.md#routing-at-the-edge).
    pub(super) fn deliver(self: &Arc<Self>, message: Value) {
        match (route(&message, "group"), message["header"]["parent_msg_id"].as_str()) {
            ("resource" | "func" | "user" | "twin", Some(parent)) => {
                let waiter = self.waiters.lock().remove(parent);
                // An answer without a waiting request is dropped.
                waiter.map(|waiter| waiter.send(message));
            }
            ("resource" | "func", None) => self.scatter(message),
            ("twin" | "user" | "taskmanager", _) => {}
            (group, _) => self.store.lock().harm(format!("unknown group {group:?}: {message}")),
        }
    }

    /// A random number from `from` to below `to`.
    pub(super) fn random(&self, from: f64, to: f64) -> f64 {
        self.rng.lock().random_range(from..to)
    }

    /// Handles each message in a task of its own, so their order is lost.
    fn scatter(self: &Arc<Self>, message: Value) {
        let (bus, delay) = (Arc::clone(self), self.pace.scatter.mul_f64(self.random(0.0, 1.0)));
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            // The process may have ended meanwhile.
            let _ = bus.meta.send(message).await;
        });
    }

    /// Sends a pod change to edged. Without a kubelet, nothing receives it.
    pub(super) async fn tell_edged(&self, message: &Value) {
        let path = route(message, "resource").to_owned();
        if kind(&path) == "pod" {
            let gone = route(message, "operation") == "delete";
            let _ = self.pods.send(PodNews { path, gone, content: message["content"].clone() }).await;
        }
    }
}
