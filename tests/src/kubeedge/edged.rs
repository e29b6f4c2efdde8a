//! The kubelet: registration, lease, pods (docs/reference/kubeedge.md#the-edges-kubelet).

mod node;
mod pods;
mod references;

pub(super) use node::register_once;

use std::time::Duration;

use tokio::sync::mpsc;

use super::bus::PodNews;
use super::client::Client;

/// First pause before a failed step is retried.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest such pause (docs/reference/kubeedge.md#start-of-a-node).
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

/// Runs the node until its process ends.
pub(super) async fn run(client: Client, news: mpsc::Receiver<PodNews>) {
    let registered = async {
        node::register(&client).await;
        node::keep_status(&client).await;
    };
    tokio::join!(registered, node::keep_lease(&client), pods::run(&client, news));
}

/// Pauses between attempts. Each is twice as long as the previous one.
struct BackOff(Duration);

impl BackOff {
    fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    async fn pause(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (2 * self.0).min(LONGEST_PAUSE);
    }
}
