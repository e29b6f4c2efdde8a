//! Expires old states of the store, also when no client writes. If a client continues a list after minutes, it gets the
//! same answer as from kube-apiserver after etcd's compaction.

use std::time::Instant;

use tombolo_apicore::memory::TICK_INTERVAL;

use super::Context;

/// Passes the current time to the store until the server stops.
pub(super) async fn run(context: &Context) {
    let mut tick = tokio::time::interval(TICK_INTERVAL);
    loop {
        tick.tick().await;
        context.objects.store().tick(Instant::now());
    }
}
