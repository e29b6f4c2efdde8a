//! States that were current long ago can no longer be listed, also when nobody writes: a page of a list that a client
//! continues after minutes is answered as kube-apiserver answers it after etcd's compaction.

use std::time::Instant;

use tombolo_apicore::memory::TICK_INTERVAL;

use super::Context;

/// Tells the store the time until the server stops.
pub(super) async fn run(context: &Context) {
    let mut tick = tokio::time::interval(TICK_INTERVAL);
    loop {
        tick.tick().await;
        context.objects.store().tick(Instant::now());
    }
}
