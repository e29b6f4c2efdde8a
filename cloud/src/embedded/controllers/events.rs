//! Events are forgotten after an hour (kube-apiserver's `--event-ttl`).

use std::time::Duration;

use super::{Context, age};
use crate::embedded::objects::{Edit, Object, core};

/// How long an event is kept after it was last seen.
const TTL: Duration = Duration::from_secs(3600);

/// How often old events are looked for.
const INTERVAL: Duration = Duration::from_secs(60);

/// Forgets old events until the server stops.
pub(super) async fn run(context: &Context) {
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        tick.tick().await;
        for event in context.objects.list(&core("events"), None) {
            let old = |event: &mut Object| if is_old(event) { Edit::Remove } else { Edit::Keep };
            if is_old(&event)
                && let Err(error) = context.objects.update(&event.key, old).await
            {
                tracing::warn!(key = %event.key, %error, "an old event was not removed");
                break;
            }
        }
    }
}

fn is_old(event: &Object) -> bool {
    let seen = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/deprecatedLastTimestamp"];
    let times = seen.iter().filter_map(|pointer| event.text(pointer).parse::<jiff::Timestamp>().ok());
    match times.max() {
        Some(last) => {
            Duration::try_from(jiff::Timestamp::now().duration_since(last)).is_ok_and(|age| age > TTL)
        }
        None => age(event).is_some_and(|age| age > TTL),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apiserve::store::Revision;
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::ObjectKey;

    use super::*;
    use crate::embedded::objects::timestamp;

    #[test]
    fn an_event_counts_from_when_it_was_last_seen() {
        let at = |minutes: i64| timestamp(jiff::Timestamp::now() - jiff::SignedDuration::from_mins(minutes));
        for (created, last, old) in
            [(90, Some(70), true), (90, Some(30), false), (90, None, true), (30, None, false)]
        {
            let mut value = json!({"metadata": {"creationTimestamp": at(created)}});
            if let Some(last) = last {
                value["lastTimestamp"] = json!(at(last));
            }
            let key = ObjectKey::new(core("events"), "default", "e");
            let event = Object { key, uid: Uid::parse("u").unwrap(), revision: Revision(1), value };
            assert_eq!(is_old(&event), old, "{created} {last:?}");
        }
    }
}
