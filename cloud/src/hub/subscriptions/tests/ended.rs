//! Shared watches that end: every follower is notified.

use tokio::sync::mpsc;

use super::*;
use crate::hub::shared::EVENTS_MAX;

fn watch(hub: &Hub) -> Arc<SharedWatch> {
    let (resource, kind) = (subscribe(SubscriptionId(1)).resource, "ConfigMap".to_owned());
    Arc::new(SharedWatch::new(resource, kind, hub.subscriptions.interned.clone()))
}

/// The watch has ended, but is still in the table, or a caller still holds it.
#[tokio::test(start_paused = true)]
async fn ended_watch_accepts_no_followers() {
    let hub = hub(&scripted(&Arc::default()));
    let (early, late) = (session(&hub), session(&hub));
    let shared = watch(&hub);
    shared.follow(&early, SubscriptionId(1)).expect("it continues");
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    drop(events);
    Arc::clone(&shared).run(receiver).await;
    let told: Vec<_> =
        early.mailbox.take().ended.into_iter().map(|(subscription, code, _)| (subscription, code)).collect();
    assert_eq!(told, [(SubscriptionId(1), 503)], "followers are notified, however it ends");
    assert_eq!(shared.follow(&late, SubscriptionId(1)).expect_err("it has ended").code, 503);

    let shared = watch(&hub);
    shared.fail(&Closed::new(413, "too many"));
    shared.fail(&Closed::new(503, "and stopped"));
    let closed = shared.follow(&late, SubscriptionId(1)).expect_err("it has ended");
    assert_eq!(closed, Closed::new(413, "too many"), "the first reason is kept");
    assert!(late.mailbox.take().ended.is_empty() && shared.idle_since().is_some());
}

/// A session has opened a watch. Before it follows, the watch is stopped because it has no followers.
#[tokio::test(start_paused = true)]
async fn watch_stopped_before_its_first_follower_notifies_it() {
    let hub = hub(&scripted(&Arc::default()));
    let session = session(&hub);
    let opened = hub.subscriptions.open(&node(), &subscribe(SubscriptionId(1))).await.expect("allowed");
    tokio::time::advance(IDLE_LIMIT).await;
    hub.subscriptions.sweep();
    assert_eq!(opened.follow(&session, SubscriptionId(1)).expect_err("it was stopped").code, 503);
    let again = hub.subscriptions.open(&node(), &subscribe(SubscriptionId(1))).await.expect("a new one");
    again.follow(&session, SubscriptionId(1)).expect("it continues");
    hub.subscriptions.close_all();
    assert_eq!(again.follow(&session, SubscriptionId(2)).expect_err("the epoch has ended").code, 410);
}

#[test]
fn refused_first_list_ends_the_watch_and_a_failed_one_does_not() {
    let ends = |code| refused(&WatchError { code: Some(code), text: "said".to_owned() });
    for code in [400, 403, 404, 405, 422] {
        assert_eq!(ends(code), Some(Closed::new(code, "said")));
    }
    for code in [401, 408, 409, 410, 429, 500, 503] {
        assert_eq!(ends(code), None, "{code}");
    }
}
