//! The meta manager processes one message at a time: first the rows, then edged, then the acknowledgement
//! (docs/reference/kubeedge.md#the-edges-store).

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::mpsc;

use super::bus::Bus;
use super::wire::acknowledgement;

/// Processes the messages that the cloud pushes.
pub(super) async fn run(bus: Arc<Bus>, mut inbox: mpsc::Receiver<Value>) {
    while let Some(message) = inbox.recv().await {
        tokio::time::sleep(bus.pace.row).await;
        let taken = bus.store.lock().take(&message);
        if !taken {
            continue;
        }
        bus.tell_edged(&message).await;
        if bus.send_up(acknowledgement(&message)).await.is_err() {
            return;
        }
    }
}
