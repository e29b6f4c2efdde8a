use tombolo_proto::inventory::content_hash;

use super::*;

fn status_report(key: &ObjectKey, phase: &str) -> Report {
    let call = Call {
        method: "PATCH".to_owned(),
        path_and_query: format!("/api/v1/namespaces/default/pods/{}/status", key.name()),
        content_type: "application/strategic-merge-patch+json".to_owned(),
        body: json!({"status": {"phase": phase}}).to_string(),
    };
    let status = json!({"phase": phase}).to_string().into();
    Report { kind: ReportKind::Status, key: key.clone(), call, status: Some(status), base: None }
}

fn phase(store: &Store, key: &ObjectKey) -> Value {
    value(&store.get(key).unwrap().unwrap())["status"]["phase"].clone()
}

#[tokio::test]
async fn the_newest_report_survives_and_is_shown() {
    let disk = FaultyDisk::new(20);
    let store = synced(&disk).await;
    let pod = key("pods", "web");
    apply(&store, &[upsert(&pod, "u1", 10, &[])]).await;
    store.report(status_report(&pod, "Pending")).await.unwrap();
    store.report(status_report(&pod, "Running")).await.unwrap();
    store.close().await;

    let store = open(&disk);
    let waiting = store.reports(0, 10).unwrap();
    assert_eq!(waiting.len(), 1, "the newer report replaces the older one");
    assert!(waiting[0].call.body.contains("Running"));
    assert_eq!(phase(&store, &pod), "Running");
    // A delivery from before the cloud knew the status does not remove it.
    apply(&store, &[upsert(&pod, "u1", 11, &[])]).await;
    assert_eq!(phase(&store, &pod), "Running");
    assert_eq!(value(&store.get(&pod).unwrap().unwrap())["data"]["at"], "11");
}

#[tokio::test]
async fn an_answer_removes_only_the_report_that_it_answers() {
    let store = synced(&FaultyDisk::new(21)).await;
    let pod = key("pods", "web");
    apply(&store, &[upsert(&pod, "u1", 10, &[])]).await;
    store.report(status_report(&pod, "Pending")).await.unwrap();
    let first = store.reports(0, 10).unwrap()[0].number;
    store.report(status_report(&pod, "Running")).await.unwrap();
    store.settle(first, None).await.unwrap();
    let second = store.reports(0, 10).unwrap();
    assert_eq!(second.len(), 1);

    let mut reply = body(&pod, "u1", &json!({"from": "reply"}));
    reply["metadata"]["resourceVersion"] = "15".into();
    reply["metadata"]["managedFields"] = json!([{"manager": "edgecore"}]);
    reply["status"] = json!({"phase": "Running", "qosClass": "BestEffort"});
    let learned = Learned { key: pod.clone(), body: reply.to_string().into(), keep: false };
    store.settle(second[0].number, Some(learned)).await.unwrap();
    assert_eq!(store.counts().unwrap().reports, 0);
    let now = value(&store.get(&pod).unwrap().unwrap());
    assert_eq!(now["status"]["qosClass"], "BestEffort");
    assert_eq!(now["metadata"].get("managedFields"), None);
    // A delivery sent before the reply is older than the reply.
    apply(&store, &[upsert(&pod, "u1", 14, &[])]).await;
    assert_eq!(value(&store.get(&pod).unwrap().unwrap())["status"]["qosClass"], "BestEffort");
    apply(&store, &[upsert(&pod, "u1", 16, &[])]).await;
    assert_eq!(value(&store.get(&pod).unwrap().unwrap())["data"]["at"], "16");
}

/// Otherwise every node would receive its whole Node at each reconnect: it writes the status of its Node all the time.
#[tokio::test]
async fn the_node_of_a_reply_is_held_as_the_cloud_would_deliver_it() {
    let store = synced(&FaultyDisk::new(22)).await;
    let (own, other) = (key("nodes", "own"), key("nodes", "other"));
    apply(&store, &[upsert(&own, "u1", 10, &[])]).await;
    let reply = |name: &ObjectKey| {
        let mut reply = body(name, "u1", &json!({}));
        reply["metadata"]["resourceVersion"] = "15".into();
        reply["status"]["conditions"] =
            json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]);
        reply
    };
    let learned =
        |key: &ObjectKey| Learned { key: key.clone(), body: reply(key).to_string().into(), keep: true };
    store.learn(learned(&own)).await.unwrap().expect("it is kept");
    store.learn(learned(&other)).await.unwrap().expect("it is kept");

    let mut delivered = body(&own, "u1", &json!({}));
    delivered["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    assert_eq!(held_hash(&store, &own), content_hash(delivered.to_string().as_bytes()));
    assert_eq!(held_hash(&store, &other), ContentHash(0), "the cloud sends less of other Nodes");
}

fn held_hash(store: &Store, key: &ObjectKey) -> ContentHash {
    let inventories = [SubscriptionId::NODE, crate::store::row::SINGLE_OBJECTS]
        .map(|subscription| store.inventory(subscription).unwrap());
    let held = inventories.into_iter().flatten().find(|entry| entry.key == *key).map(|entry| entry.held);
    let Some(HeldState::Present(version)) = held else { panic!("{key} is not held: {held:?}") };
    version.hash
}

/// A delivery of a pod whose status another client has written too.
fn delivery(key: &ObjectKey, uid: &str, revision: u64, status: Value) -> Delivery {
    let mut object = body(key, uid, &json!({"at": revision.to_string()}));
    object["status"] = status;
    let text = object.to_string();
    let hash = ContentHash(xxhash_rust::xxh3::xxh3_64(text.as_bytes()).into());
    let version = ObjectVersion { uid: Uid::parse(uid).unwrap(), revision: CloudRevision(revision), hash };
    let object = SharedObject::new(key.clone(), version, text.into(), Vec::new());
    Delivery { subscription: SubscriptionId::NODE, change: Change::Upsert(Arc::new(object)) }
}

fn answer(key: &ObjectKey, uid: &str, revision: u64, status: Value) -> Learned {
    let mut object = body(key, uid, &json!({"at": revision.to_string()}));
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    object["status"] = status;
    Learned { key: key.clone(), body: object.to_string().into(), keep: false }
}

fn status(store: &Store, key: &ObjectKey) -> Value {
    value(&store.get(key).unwrap().unwrap())["status"].clone()
}

/// What the cloud sends while a report waits is not sent again, so it must show once the report is answered.
#[tokio::test]
async fn status_received_during_a_pending_report_shows_after_its_answer() {
    let pod = key("pods", "web");
    let own = || json!({"phase": "Running"});
    let whole = |by: &str| json!({"phase": "Running", "reason": by});
    // The version of the answer, and the status that shows after it: the cloud has sent version 12.
    for (answered, expected) in [
        (Some(answer(&pod, "u1", 12, whole("sent"))), "sent"),
        (Some(answer(&pod, "u1", 11, whole("older"))), "sent"),
        (Some(answer(&pod, "u1", 13, whole("newer"))), "newer"),
        // The report is dropped.
        (None, "sent"),
    ] {
        let disk = FaultyDisk::new(24);
        let store = synced(&disk).await;
        apply(&store, &[delivery(&pod, "u1", 10, json!({"phase": "Pending"}))]).await;
        store.report(status_report(&pod, "Starting")).await.unwrap();
        apply(&store, &[delivery(&pod, "u1", 11, whole("first"))]).await;
        apply(&store, &[delivery(&pod, "u1", 12, whole("sent"))]).await;
        assert_eq!(status(&store, &pod), json!({"phase": "Starting"}), "the newest report is not answered");
        // A report that replaces it hides the same.
        store.report(status_report(&pod, "Running")).await.unwrap();
        store.close().await;
        let store = open(&disk);
        let number = store.reports(0, 10).unwrap()[0].number;
        store.settle(number - 1, Some(answer(&pod, "u1", 9, whole("oldest")))).await.unwrap();
        assert_eq!(status(&store, &pod), own());
        store.settle(number, answered).await.unwrap();
        assert_eq!(status(&store, &pod), whole(expected));
    }
}

#[tokio::test]
async fn a_status_that_came_while_a_report_waited_is_not_that_of_a_later_object() {
    let store = synced(&FaultyDisk::new(25)).await;
    let pod = key("pods", "web");
    apply(&store, &[delivery(&pod, "u1", 10, json!({"phase": "Pending"}))]).await;
    store.report(status_report(&pod, "Running")).await.unwrap();
    apply(&store, &[delivery(&pod, "u1", 11, json!({"phase": "Failed"}))]).await;
    apply(&store, &[delivery(&pod, "u2", 12, json!({"phase": "Pending"}))]).await;
    let number = store.reports(0, 10).unwrap()[0].number;
    store.settle(number, None).await.unwrap();
    assert_eq!(status(&store, &pod), json!({"phase": "Pending"}));
}

#[tokio::test]
async fn events_are_bounded_oldest_first() {
    let store = synced(&FaultyDisk::new(22)).await;
    let mut sent = Vec::new();
    for number in 0..EVENTS_MAX + 3 {
        let key = ObjectKey::new(Resource::new("", "v1", "events"), "default", &format!("e{number}"));
        let call = Call {
            method: "POST".to_owned(),
            path_and_query: "/api/v1/namespaces/default/events".to_owned(),
            content_type: "application/json".to_owned(),
            body: "{}".to_owned(),
        };
        let store = store.clone();
        sent.push(async move {
            store.report(Report { kind: ReportKind::Event, key, call, status: None, base: None }).await
        });
    }
    for report in futures::future::join_all(sent).await {
        report.unwrap();
    }
    let waiting = store.reports(0, usize::MAX).unwrap();
    assert_eq!(waiting.len() as u64, EVENTS_MAX);
    assert_eq!(waiting[0].key.name(), "e3");
}

#[tokio::test]
async fn report_sender_is_woken_only_by_reports() {
    let store = synced(&FaultyDisk::new(1)).await;
    let pod = key("pods", "web");
    let mut changed = store.reports_changed();
    apply(&store, &[upsert(&pod, "u1", 1, &[])]).await;
    assert!(!changed.has_changed().unwrap());

    store.report(status_report(&pod, "Running")).await.unwrap();
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let number = store.reports(0, 10).unwrap()[0].number;
    store.settle(number, None).await.unwrap();
    assert!(changed.has_changed().unwrap());
}

#[tokio::test]
async fn outbox_is_bounded_in_bytes_and_evicts_only_events() {
    const LEN: usize = 1024 * 1024;
    let store = synced(&FaultyDisk::new(23)).await;
    let large = |name: &str| {
        let report = status_report(&key("pods", name), &"x".repeat(LEN));
        Report { status: None, ..report }
    };
    let event = |name: &str| Report { kind: ReportKind::Event, ..large(name) };
    let fit = usize::try_from(REPORTS_BYTES_MAX).unwrap() / LEN - 1;
    for name in ["e1", "e2", "e3"] {
        store.report(event(name)).await.unwrap();
    }
    for number in 0..fit {
        store.report(large(&format!("p{number}"))).await.unwrap();
        store.report(large(&format!("p{number}"))).await.unwrap();
    }
    assert_eq!(store.counts().unwrap().reports, fit as u64, "the events have made room");
    let refused = store.report(large("one-more")).await.unwrap_err();
    assert!(refused.to_string().contains("32 MiB"), "{refused}");
    store.report(event("e4")).await.unwrap_err();
    store.report(large("p0")).await.unwrap();
    // Nothing is lost, and reports are read in pieces.
    let (mut after, mut read) = (0, Vec::new());
    while let Some(last) = {
        let piece = store.reports(after, usize::MAX).unwrap();
        assert!(piece.len() <= 1, "{} large reports at a time", piece.len());
        piece.into_iter().next_back()
    } {
        after = last.number;
        read.push(last.key.name().to_owned());
    }
    read.sort();
    let mut all: Vec<_> = (0..fit).map(|number| format!("p{number}")).collect();
    all.sort();
    assert_eq!(read, all);
    store.settle(after, None).await.unwrap();
    store.report(large("one-more")).await.unwrap();
}
