//! Tests of reads of local clients outside the pushed set; rows O11 and O12 of
//! docs/reference/superedge.md#offline-rows.

use super::*;

const SERVICES: &str = "/api/v1/services";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

fn lease(name: &str) -> ObjectKey {
    ObjectKey::new(Resource::new("coordination.k8s.io", "v1", "leases"), "default", name)
}

#[tokio::test]
async fn warm_set_is_synced_automatically_and_served_offline() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("services", "web"), "s1", &json!({"spec": {"clusterIP": "10.0.0.1"}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the Service", DEADLINE, async || agent.names(SERVICES).await == ["web"]).await;
    assert!(agent.names("/api/v1/namespaces").await.is_empty(), "complete and empty");
    let one = agent.get("/api/v1/namespaces/default/services/web").await;
    assert_eq!((one.0, &one.1["spec"]["clusterIP"]), (StatusCode::OK, &json!("10.0.0.1")));
    assert_eq!(agent.get("/api/v1/namespaces/default/services/none").await.0, StatusCode::NOT_FOUND);
    cloud.put(&key("services", "db"), "s2", &json!({"spec": {}}), &[]);
    wait_until("a change", DEADLINE, async || agent.names(SERVICES).await == ["db", "web"]).await;
    cloud.delete(&key("services", "web"));
    wait_until("the end", DEADLINE, async || agent.names(SERVICES).await == ["db"]).await;
    agent.stop().await;

    cloud.set_away(true);
    cloud.put(&key("services", "late"), "s3", &json!({"spec": {}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.names(SERVICES).await, ["db"], "kept objects are served without a cloud");
    cloud.set_away(false);
    wait_until("what was missed", DEADLINE, async || agent.names(SERVICES).await == ["db", "late"]).await;
    agent.stop().await;
}

#[tokio::test]
async fn unsynced_resource_is_not_an_empty_list() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.set_away(true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    for path in [SERVICES, LEASES, "/api/v1/pods"] {
        let (code, status) = agent.get(path).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{path}: {status}");
        assert!(
            status["details"]["retryAfterSeconds"].as_u64().is_some_and(|seconds| seconds > 0),
            "{status}"
        );
    }
    agent.stop().await;
}

#[tokio::test]
async fn first_request_starts_a_shared_subscription() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&lease("a"), "l1", &json!({"spec": {}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    agent.connects().await;
    wait_until("the list", DEADLINE, async || agent.names(LEASES).await == ["a"]).await;
    cloud.put(&lease("b"), "l2", &json!({"spec": {}}), &[]);
    wait_until("a change", DEADLINE, async || agent.names(LEASES).await == ["a", "b"]).await;
    let labelled = format!("{LEASES}?labelSelector=x%3Dy");
    assert!(agent.names(&labelled).await.is_empty());
    assert_eq!(cloud.opened("leases"), 1, "one for all clients");
    // Offline the copy is served, also after a restart.
    cloud.set_away(true);
    assert_eq!(agent.names(LEASES).await, ["a", "b"]);
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(agent.names(LEASES).await, ["a", "b"]);
    assert_eq!(agent.get(&format!("{LEASES}/c")).await.0, StatusCode::NOT_FOUND, "the copy was complete");
    cloud.set_away(false);
    cloud.delete(&lease("a"));
    wait_until("what was missed", DEADLINE, async || agent.names(LEASES).await == ["b"]).await;
    agent.stop().await;
}

/// Stores more leases of this version than fit on a page, and returns their names.
fn many_leases(cloud: &FakeCloud, version: u32) -> Vec<String> {
    let names: Vec<String> = (0..1200).map(|number| format!("l{number:04}")).collect();
    for name in &names {
        let spec = json!({"leaseTransitions": version});
        cloud.put(&lease(name), &format!("uid-{name}"), &json!({"spec": spec}), &[]);
    }
    names
}

/// All pages of a list.
async fn pages(agent: &Agent, limit: usize) -> Vec<Value> {
    let (mut pages, mut token) = (Vec::new(), String::new());
    loop {
        let (code, page) = agent.get(&format!("{LEASES}?limit={limit}&continue={token}")).await;
        assert_eq!(code, StatusCode::OK, "{page}");
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        pages.push(page);
        if token.is_empty() {
            return pages;
        }
    }
}

/// Waits until the cloud was cut off in the middle of its deliveries and the agent has noticed.
async fn cut(agent: &Agent, cloud: &FakeCloud) {
    wait_until("the cut", DEADLINE, async || cloud.is_away()).await;
    agent.loses_the_cloud().await;
}

#[tokio::test]
async fn long_list_is_complete_offline_with_and_without_pages() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let all = many_leases(&cloud, 1);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    agent.connects().await;
    // Only the first page is read while there is a cloud.
    let first = format!("{LEASES}?limit=500");
    wait_until("the first page", DEADLINE, async || agent.get(&first).await.0 == StatusCode::OK).await;
    away(&agent, &cloud).await;
    agent.stop().await;

    let agent = Agent::start(folder.path(), &cloud, false).await;
    let (code, whole) = agent.get(LEASES).await;
    assert_eq!((code, names(&whole)), (StatusCode::OK, all.clone()));
    let pages = pages(&agent, 500).await;
    assert_eq!(pages.iter().flat_map(names).collect::<Vec<_>>(), all);
    let sizes: Vec<_> = pages
        .iter()
        .map(|page| (names(page).len(), page["metadata"]["remainingItemCount"].as_u64()))
        .collect();
    assert_eq!(sizes, [(500, Some(700)), (500, Some(200)), (200, None)]);
    for page in &pages {
        let version = |list: &Value| list["metadata"]["resourceVersion"].clone();
        assert_eq!(version(page), version(&whole), "of one moment");
    }
    agent.stop().await;
}

#[tokio::test]
async fn truncated_list_of_the_cloud_is_refused_and_the_old_copy_kept() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let all = many_leases(&cloud, 1);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    agent.connects().await;
    cloud.cut_after(300);
    for path in [LEASES.to_owned(), format!("{LEASES}?limit=10")] {
        let (code, status) = agent.get(&path).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{status}");
        cut(&agent, &cloud).await;
    }
    cloud.set_away(false);
    wait_until("the list", DEADLINE, async || agent.names(LEASES).await == all).await;

    away(&agent, &cloud).await;
    many_leases(&cloud, 2);
    cloud.cut_after(300);
    cloud.set_away(false);
    cut(&agent, &cloud).await;
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let new = |list: &Value| {
        let items = list["items"].as_array().unwrap();
        items.iter().filter(|item| item["spec"]["leaseTransitions"] == 2).count()
    };
    let (code, list) = agent.get(LEASES).await;
    assert_eq!(code, StatusCode::OK, "{list}");
    assert_eq!(names(&list), all, "objects that were not delivered again are still there");
    assert!((1..1200).contains(&new(&list)), "{} have come again", new(&list));
    cloud.set_away(false);
    wait_until("the rest", DEADLINE, async || new(&agent.get(LEASES).await.1) == 1200).await;
    agent.stop().await;
}

#[tokio::test]
async fn revoked_right_removes_the_copy() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&lease("a"), "l1", &json!({"spec": {}}), &[]);
    cloud.forbid("leases", true);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    agent.connects().await;
    wait_until("the refusal", DEADLINE, async || agent.get(LEASES).await.0 == StatusCode::FORBIDDEN).await;
    cloud.forbid("leases", false);
    agent.stop().await;
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the list", DEADLINE, async || agent.names(LEASES).await == ["a"]).await;
    cloud.forbid("leases", true);
    wait_until("the refusal", DEADLINE, async || agent.get(LEASES).await.0 == StatusCode::FORBIDDEN).await;
    cloud.set_away(true);
    wait_until("the copy to go", DEADLINE, async || {
        matches!(agent.get(LEASES).await.0, StatusCode::SERVICE_UNAVAILABLE | StatusCode::FORBIDDEN)
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn writes_name_local_revisions_and_read_their_own_result() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    let app = key("configmaps", "app");
    cloud.put(&app, "u1", &json!({"data": {"a": "1"}}), &[]);
    cloud.put(&key("pods", "web"), "u2", &pod_spec(), std::slice::from_ref(&app));
    let agent = Agent::start(folder.path(), &cloud, false).await;
    let path = "/api/v1/namespaces/default/configmaps/app";
    wait_until("the object", DEADLINE, async || agent.get(path).await.0 == StatusCode::OK).await;
    let read = agent.get(path).await.1;
    let mut changed = read.clone();
    changed["data"]["a"] = "2".into();
    let (code, written) = agent.call(Method::PUT, path, &changed.to_string()).await;
    assert_eq!((code, &written["data"]["a"]), (StatusCode::OK, &json!("2")));
    assert_eq!(cloud.object(&app).unwrap()["metadata"]["resourceVersion"], "101", "the cloud's own revision");
    let number =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(number(&written) > number(&read), "{written}");
    assert_eq!(agent.get(path).await.1, written, "the written object is read");
    changed["data"]["a"] = "3".into();
    let (code, status) = agent.call(Method::PUT, path, &changed.to_string()).await;
    assert_eq!((code, &status["reason"]), (StatusCode::CONFLICT, &json!("Conflict")), "{status}");
    agent.stop().await;
}

#[tokio::test]
async fn new_store_continues_above_the_old_revisions() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    cloud.put(&key("services", "web"), "s1", &json!({"spec": {}}), &[]);
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the Service", DEADLINE, async || agent.names(SERVICES).await == ["web"]).await;
    let before = agent.status.look().revision;
    agent.stop().await;
    std::fs::write(folder.path().join("store.redb"), "damage").unwrap();
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the Service again", DEADLINE, async || agent.names(SERVICES).await == ["web"]).await;
    assert!(agent.status.look().revision > before);
    let (_, old) =
        agent.get(&format!("{SERVICES}?watch=true&resourceVersion={before}&timeoutSeconds=1")).await;
    assert_eq!(old["object"]["code"], 410, "clients list again: {old}");
    agent.stop().await;
}
