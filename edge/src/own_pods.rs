//! Where the pods of this node are, as far as it knows: told to all who show addresses.

use std::sync::Arc;

use tokio::sync::watch;
use tombolo_apiserve::history::ChangeKind;
use tombolo_apiserve::store::{Store, Stored};
use tombolo_grid::{OwnPod, OwnPods};
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::debug;

use crate::follow::{Following, News};

/// Follows the pods of a store, which has those of this node alone, and tells where they are.
pub(crate) async fn tell(store: Arc<dyn Store>, told: watch::Sender<Arc<OwnPods>>) {
    let mut following = Following::new(store, [Resource::new("", "v1", "pods")]);
    loop {
        let news = following.next().await;
        told.send_if_modified(|pods| match &news {
            News::All(_, snapshot) => {
                let mut all = OwnPods::new(pods.node());
                for item in &snapshot.items {
                    all.set(item.key.namespace(), item.key.name(), placed(item));
                }
                let changed = **pods != all;
                *pods = Arc::new(all);
                changed
            }
            News::Changed(_, changes) => changes.iter().fold(false, |changed, change| {
                let object = &change.object;
                let pod = if change.kind == ChangeKind::Deleted { None } else { placed(object) };
                set(pods, &object.key, pod) | changed
            }),
        });
    }
}

fn set(pods: &mut Arc<OwnPods>, key: &ObjectKey, pod: Option<OwnPod>) -> bool {
    Arc::make_mut(pods).set(key.namespace(), key.name(), pod)
}

fn placed(pod: &Stored) -> Option<OwnPod> {
    let read = OwnPod::of(&pod.body());
    read.inspect_err(|error| debug!(key = %pod.key, %error, "a pod does not say where it is")).ok()
}
