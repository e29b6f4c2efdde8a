//! Where the pods of this node are and whether they are ready, as far as it knows: told to all who show endpoints.

use std::sync::Arc;

use tokio::sync::watch;
use tombolo_apiserve::history::ChangeKind;
use tombolo_apiserve::store::{Store, Stored};
use tombolo_grid::{OwnPod, OwnPods};
use tombolo_proto::object::Resource;
use tracing::debug;

use crate::follow::{Following, News};

/// Follows the pods of a store, which has those of this node alone, and tells how they are for as long as somebody wants to
/// know.
pub(crate) async fn tell(store: Arc<dyn Store>, told: watch::Sender<Arc<OwnPods>>) {
    let mut following = Following::new(store, [Resource::new("", "v1", "pods")]);
    let mut own = OwnPods::clone(&told.borrow());
    loop {
        let news = tokio::select! {
            news = following.next() => news,
            () = told.closed() => return,
        };
        // Of most changes of a pod nobody is told: they leave it where and as it is.
        if take(&mut own, &news) {
            told.send_replace(Arc::new(own.clone()));
        }
    }
}

/// Whether the news say something else than before.
fn take(own: &mut OwnPods, news: &News) -> bool {
    match news {
        News::All(_, snapshot) => {
            let mut all = OwnPods::new(own.node());
            for pod in &snapshot.items {
                all.set(pod.key.namespace(), pod.key.name(), read(pod));
            }
            let changed = *own != all;
            *own = all;
            changed
        }
        News::Changed(_, changes) => changes.iter().fold(false, |changed, change| {
            let object = &change.object;
            let pod = if change.kind == ChangeKind::Deleted { None } else { read(object) };
            own.set(object.key.namespace(), object.key.name(), pod) | changed
        }),
    }
}

fn read(pod: &Stored) -> Option<OwnPod> {
    let known = OwnPod::of(&pod.body());
    known.inspect_err(|error| debug!(key = %pod.key, %error, "a pod cannot be read")).ok()
}
