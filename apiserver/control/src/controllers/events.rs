//! Events are removed an hour after they were written (kube-apiserver's `--event-ttl`). The times in an event do not
//! count, because its writer sets them. After a restart the hour starts again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tombolo_apicore::store::{Revision, Store as _};

use super::Context;
use crate::objects::{Edit, Objects, StoredObject, core};

/// How long an event is kept after it was last written.
const TTL: Duration = Duration::from_secs(3600);

/// How often old events are removed.
const INTERVAL: Duration = Duration::from_secs(60);

/// Removes old events until the server stops.
pub(super) async fn run(context: &Context) {
    let mut tick = tokio::time::interval(INTERVAL);
    let mut written = Written::default();
    loop {
        tick.tick().await;
        if let Some(old) = written.before_ttl(Instant::now(), context.objects.store().revision()) {
            forget(&context.objects, old).await;
        }
    }
}

/// Removes the events whose last write has this revision or an older one.
async fn forget(objects: &Objects, old: Revision) {
    for event in objects.list_raw(&core("events"), None).iter().filter(|event| event.revision <= old) {
        let still_old =
            |event: &mut StoredObject| if event.revision <= old { Edit::Remove } else { Edit::Keep };
        if let Err(error) = objects.update(&event.key, still_old).await {
            tracing::warn!(key = %event.key, %error, "an old event was not removed");
            break;
        }
    }
}

/// The newest revision at each check, as far back as events are kept.
#[derive(Debug, Default)]
struct Written(VecDeque<(Instant, Revision)>);

impl Written {
    /// Records the newest revision. Returns the newest revision that is at least [`TTL`] old: objects with this
    /// revision or an older one have expired.
    fn before_ttl(&mut self, now: Instant, newest: Revision) -> Option<Revision> {
        self.0.push_back((now, newest));
        let mut old = None;
        while let Some((at, revision)) = self.0.front().copied()
            && now.duration_since(at) >= TTL
        {
            old = Some(revision);
            self.0.pop_front();
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn event_expires_an_hour_after_its_write_whatever_times_it_states() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let event = |name: &str| {
            let never = "2999-01-01T00:00:00Z";
            json!({
                "metadata": {"namespace": "default", "name": name},
                "firstTimestamp": "1999-01-01T00:00:00Z", "lastTimestamp": never, "eventTime": never,
                "series": {"count": 2, "lastObservedTime": never},
            })
        };
        let left = || {
            let events = objects.list(&core("events"), None);
            events.map(|event| event.key.name().to_owned()).collect::<Vec<_>>()
        };
        let (mut written, start) = (Written::default(), Instant::now());
        for name in ["a", "b"] {
            objects.create(core("events"), event(name)).await.unwrap();
        }
        let mut seen = Vec::new();
        for minute in 0..=121_u32 {
            if minute == 30 {
                let again = objects.get(core("events"), "default", "b").unwrap();
                objects
                    .update(&again.key, |event| {
                        event.value["count"] = json!(3);
                        Edit::Put
                    })
                    .await
                    .unwrap();
                objects.create(core("events"), event("c")).await.unwrap();
            }
            let now = start + INTERVAL * minute;
            if let Some(old) = written.before_ttl(now, objects.store().revision()) {
                forget(&objects, old).await;
            }
            if [59, 60, 89, 90].contains(&minute) {
                seen.push(left());
            }
        }
        assert_eq!(seen, [vec!["a", "b", "c"], vec!["b", "c"], vec!["b", "c"], vec![]]);
        assert!(written.0.len() <= 61, "{}", written.0.len());
    }
}
