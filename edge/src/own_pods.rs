//! The known addresses of this node's pods, published to all users of addresses.

use std::sync::Arc;

use tokio::sync::watch;
use tombolo_apicore::history::ChangeKind;
use tombolo_apicore::store::{Store, Stored};
use tombolo_grid::{OwnPod, OwnPods};
use tombolo_proto::object::Resource;
use tracing::debug;

use crate::follow::{Following, News};

/// Follows the pods of a store that has only this node's pods, and publishes their addresses while there are receivers.
pub(crate) async fn publish(store: Arc<dyn Store>, published: watch::Sender<Arc<OwnPods>>) {
    let mut following = Following::new(store, [Resource::new("", "v1", "pods")]);
    let mut own = OwnPods::clone(&published.borrow());
    loop {
        let news = tokio::select! {
            news = following.next() => news,
            () = published.closed() => return,
        };
        // Most changes of a pod leave its address as it is and are not published.
        if take(&mut own, &news) {
            published.send_replace(Arc::new(own.clone()));
        }
    }
}

/// Applies the news. Returns whether they changed anything.
fn take(own: &mut OwnPods, news: &News) -> bool {
    match news {
        News::All(_, snapshot) => {
            let mut all = OwnPods::new(own.node());
            for pod in &snapshot.items {
                all.set(pod.key.namespace(), pod.key.name(), placed(pod));
            }
            let changed = *own != all;
            *own = all;
            changed
        }
        News::Changed(_, changes) => changes.iter().fold(false, |changed, change| {
            let object = &change.object;
            let pod = if change.kind == ChangeKind::Deleted { None } else { placed(object) };
            own.set(object.key.namespace(), object.key.name(), pod) | changed
        }),
    }
}

fn placed(pod: &Stored) -> Option<OwnPod> {
    let read = OwnPod::of(&pod.body());
    read.inspect_err(|error| debug!(key = %pod.key, %error, "cannot read the address of a pod")).ok()
}
