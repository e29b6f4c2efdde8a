//! Follows resources of a store: first a list, then every change shortly after it is visible. Lists again when the
//! history is lost.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{pending, select_all};
use tokio::time::Instant;
use tombolo_apicore::history::{Change, ChangeStream};
use tombolo_apicore::store::{Snapshot, Store, StoreError};
use tombolo_proto::object::Resource;
use tombolo_runtime::time::sleep_until;

/// Delay before a failed list or watch is retried.
const RETRY: Duration = Duration::from_secs(1);

/// How long changes are held back. Names, the hosts file and the certificate are needed only on request, whereas
/// kube-proxy waits for what the wrapper shows. A device has few processors, so the wrapper goes first.
const STAND_BACK: Duration = Duration::from_millis(2);

/// The state of following some resources of a store.
pub(crate) struct Following {
    store: Arc<dyn Store>,
    followed: Vec<FollowedResource>,
    /// Changes to return at the given time.
    held_back: Option<(Instant, usize, Vec<Arc<Change>>)>,
    /// Whether the objects are listed before their changes.
    lists: bool,
}

struct FollowedResource {
    resource: Resource,
    stream: Option<ChangeStream>,
    /// Earliest time of the next attempt.
    ask_at: Instant,
}

/// The state or the changes of a resource. The number is its index among the followed resources.
pub(crate) enum News {
    /// All objects.
    All(usize, Snapshot),
    /// Objects that changed.
    Changed(usize, Vec<Arc<Change>>),
}

impl Following {
    pub(crate) fn new(store: Arc<dyn Store>, resources: impl IntoIterator<Item = Resource>) -> Self {
        let ask_at = Instant::now();
        let followed = |resource| FollowedResource { resource, stream: None, ask_at };
        let followed = resources.into_iter().map(followed).collect();
        Self { store, followed, held_back: None, lists: true }
    }

    /// Returns an empty list in place of all objects, to mark the start of the changes. For callers that read the store
    /// themselves and do not need the list.
    pub(crate) fn without_lists(self) -> Self {
        Self { lists: false, ..self }
    }

    /// Waits for the next list or changes. Cancel-safe.
    pub(crate) async fn next(&mut self) -> News {
        loop {
            if let Some((due, ..)) = &self.held_back {
                sleep_until(Some(*due)).await;
            }
            if let Some((_, index, changes)) = self.held_back.take() {
                return News::Changed(index, changes);
            }
            if let Some((index, snapshot)) = self.begin() {
                return News::All(index, snapshot);
            }
            let unread = self.followed.iter().filter(|one| one.stream.is_none());
            let ask_at = unread.map(|one| one.ask_at).min();
            let (index, changes) = tokio::select! {
                changes = first(self.followed.iter_mut().map(|one| one.stream.as_mut())) => changes,
                () = sleep_until(ask_at) => continue,
            };
            match changes {
                Ok(Some(changes)) => self.held_back = Some((Instant::now() + STAND_BACK, index, changes)),
                // The stream fell behind or was ended: list again.
                Ok(None) | Err(_) => self.followed[index].stream = None,
            }
        }
    }

    fn begin(&mut self) -> Option<(usize, Snapshot)> {
        let now = Instant::now();
        let due = |one: &FollowedResource| one.stream.is_none() && one.ask_at <= now;
        while let Some(index) = self.followed.iter().position(due) {
            let one = &mut self.followed[index];
            one.ask_at = now + RETRY;
            let snapshot = match self.lists {
                true => self.store.list(&one.resource, None),
                false => Ok(Snapshot { revision: self.store.revision(), items: Vec::new() }),
            };
            let begun = snapshot.and_then(|snapshot| {
                let stream = self.store.watch(&one.resource, snapshot.revision)?;
                Ok((snapshot, stream))
            });
            if let Ok((snapshot, stream)) = begun {
                one.stream = Some(stream);
                return Some((index, snapshot));
            }
        }
        None
    }
}

/// The index of a stream among those waited for, and what it returned.
pub(crate) type Brought = (usize, Result<Option<Vec<Arc<Change>>>, StoreError>);

/// Waits for the first stream that has changes; forever if there are no streams. The changes of the other streams are
/// not consumed.
pub(crate) async fn first(streams: impl Iterator<Item = Option<&mut ChangeStream>>) -> Brought {
    let streams = streams.enumerate().filter_map(|(index, stream)| {
        let stream = stream?;
        Some(async move { (index, stream.next().await) }.boxed())
    });
    let streams: Vec<_> = streams.collect();
    if streams.is_empty() { pending().await } else { select_all(streams).await.0 }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::advance;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;
    use tombolo_apicore::store::{Expect, Mutation, Revision, Stored, Write, WriteStore};
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::ObjectKey;

    use super::*;

    fn services() -> Resource {
        Resource::new("", "v1", "services")
    }

    async fn put(store: &MemoryStore, name: &str) {
        let body = format!(r#"{{"metadata":{{"namespace":"shop","name":"{name}","uid":"{name}"}}}}"#);
        let write = Write::Put { uid: Uid::parse(name).unwrap(), body: body.into() };
        let key = ObjectKey::new(services(), "shop", name);
        store.commit(Mutation { key, expected: Expect::Any, write }).await.unwrap();
    }

    /// The names available now, without waiting. Drops the pending call.
    fn told(following: &mut Following) -> Option<Vec<String>> {
        let name = |key: &ObjectKey| key.name().to_owned();
        Some(match pin!(following.next()).now_or_never()? {
            News::All(_, snapshot) => snapshot.items.iter().map(|item| name(&item.key)).collect(),
            News::Changed(_, changes) => changes.iter().map(|change| name(&change.object.key)).collect(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn change_is_delayed_for_priority_followers_and_never_lost() {
        let store = MemoryStore::new(Revision(1), LogLimits::default());
        put(&store, "first").await;
        let mut following = Following::new(Arc::new(store.clone()), [services()]);
        assert_eq!(told(&mut following), Some(vec!["first".to_owned()]));

        put(&store, "second").await;
        assert_eq!(told(&mut following), None);
        put(&store, "third").await;
        advance(STAND_BACK - Duration::from_millis(1)).await;
        assert_eq!(told(&mut following), None);
        advance(Duration::from_millis(1)).await;
        assert_eq!(told(&mut following), Some(vec!["second".to_owned()]));

        assert_eq!(told(&mut following), None);
        advance(STAND_BACK).await;
        assert_eq!(told(&mut following), Some(vec!["third".to_owned()]));
    }

    /// A store that is not synced for its first lists.
    struct LateStore {
        store: MemoryStore,
        refusals: AtomicUsize,
    }

    impl Store for LateStore {
        fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Stored>>, StoreError> {
            self.store.get(key)
        }

        fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Snapshot, StoreError> {
            let less = |left: usize| left.checked_sub(1);
            if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return Err(StoreError::NotSynced { reason: "too early".to_owned() });
            }
            self.store.list(resource, namespace)
        }

        fn list_at(
            &self,
            resource: &Resource,
            namespace: Option<&str>,
            at: Revision,
        ) -> Result<Snapshot, StoreError> {
            self.store.list_at(resource, namespace, at)
        }

        fn watch(&self, resource: &Resource, since: Revision) -> Result<ChangeStream, StoreError> {
            self.store.watch(resource, since)
        }

        fn revision(&self) -> Revision {
            self.store.revision()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unsynced_resource_is_listed_later_and_a_lost_watch_restarts() {
        let store = MemoryStore::new(Revision(1), LogLimits { count: 1, ..LogLimits::default() });
        put(&store, "a").await;
        let late = LateStore { store: store.clone(), refusals: AtomicUsize::new(2) };
        let mut following = Following::new(Arc::new(late), [services()]);
        for _ in 0..2 {
            assert_eq!(told(&mut following), None);
            advance(RETRY).await;
        }
        assert_eq!(told(&mut following), Some(vec!["a".to_owned()]));

        // More changes than the history keeps.
        put(&store, "b").await;
        put(&store, "c").await;
        advance(RETRY).await;
        let all = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(told(&mut following), Some(all));
    }
}
