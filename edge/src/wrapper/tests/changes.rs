//! Tests of how the view follows changes of the source.

use super::*;

/// The next changes: kind, and name with the addresses of slices.
async fn next(changes: &mut ChangeStream, count: usize) -> Vec<(ChangeKind, String)> {
    let mut found = Vec::new();
    while found.len() < count {
        let batch = tokio::time::timeout(DEADLINE, changes.next()).await.expect("changes").unwrap().unwrap();
        for change in batch {
            let object = &change.object;
            let shown = match ProjectedKind::of(object.key.resource()) {
                Some(ProjectedKind::EndpointSlices) => {
                    format!("{}: {}", object.key.name(), addresses(object))
                }
                _ => object.key.name().to_owned(),
            };
            found.push((change.kind, shown));
        }
    }
    found
}

fn modified(text: &str) -> (ChangeKind, String) {
    (ChangeKind::Modified, text.to_owned())
}

/// Two nodes in unit a and one in b, one closed Service with two slices, one open Service with one.
fn cluster() -> Arc<Source> {
    let source = Source::new();
    let store = source.store();
    for (name, unit) in [("n1", "a"), ("n2", "a"), ("n3", "b")] {
        put(&store, ProjectedKind::Nodes, name, node(unit));
    }
    put(&store, ProjectedKind::Services, "web", service(true));
    put(&store, ProjectedKind::Services, "open", service(false));
    put(&store, ProjectedKind::EndpointSlices, "web-1", slice("web", "1@n1 2@n2 3@n3"));
    put(&store, ProjectedKind::EndpointSlices, "web-2", slice("web", "4@n1"));
    put(&store, ProjectedKind::EndpointSlices, "open-1", slice("open", "5@n3"));
    source
}

/// Rows P4 and W20 of docs/reference/superedge.md#rows.
#[tokio::test(start_paused = true)]
async fn nothing_is_shown_before_its_dependencies_are_known() {
    let source = cluster();
    source.set_unknown(&[ProjectedKind::Nodes, ProjectedKind::ServiceCidrs]);
    let world = World::start(&source, Kubernetes::AsItIs);
    world.shown(ProjectedKind::Services).await;
    let slices = world.view.list(&ProjectedKind::EndpointSlices.resource(), None);
    assert_eq!(slices.unwrap_err(), StoreError::NotSynced { reason: "nodes are not synced".to_owned() });
    assert!(world.view.watch(&ProjectedKind::EndpointSlices.resource(), START).is_err());
    source.set_unknown(&[ProjectedKind::ServiceCidrs]);
    world.shown(ProjectedKind::EndpointSlices).await;
    assert_eq!(world.addresses("web-1").unwrap(), "1 2");
    assert!(
        world.view.list(&ProjectedKind::ServiceCidrs.resource(), None).is_err(),
        "other parts do not wait for each other"
    );
    world.end().await;
}

/// Rows P2, P29, P30 and P31 of docs/reference/superedge.md#pruning-rows.
#[tokio::test(start_paused = true)]
async fn change_affects_only_its_dependents() {
    let source = cluster();
    let world = World::start(&source, Kubernetes::AsItIs);
    let mut slices = world.watch(ProjectedKind::EndpointSlices).await;
    let store = source.store();
    assert_eq!(world.addresses("web-1").unwrap(), "1 2");
    assert_eq!(world.addresses("open-1").unwrap(), "5");
    let before = world.view.get(&key(ProjectedKind::EndpointSlices, "web-1")).unwrap().unwrap().revision;

    put(&store, ProjectedKind::Nodes, "n3", node("a"));
    assert_eq!(next(&mut slices, 1).await, [modified("web-1: 1 2 3")]);
    let after = world.view.get(&key(ProjectedKind::EndpointSlices, "web-1")).unwrap().unwrap();
    assert!(after.revision > before, "another form has another revision");
    let body: Value = serde_json::from_slice(&after.body()).unwrap();
    assert_eq!(body["metadata"]["resourceVersion"], after.revision.to_string());

    put(&store, ProjectedKind::Nodes, "n1", node("b"));
    assert_eq!(next(&mut slices, 1).await, [modified("web-1: 1")]);
    put(&store, ProjectedKind::Services, "open", service(true));
    assert_eq!(next(&mut slices, 1).await, [modified("open-1: ")]);
    put(&store, ProjectedKind::Services, "web", service(false));
    assert_eq!(next(&mut slices, 1).await, [modified("web-1: 1 2 3")]);
    delete(&store, ProjectedKind::Services, "web");
    assert_eq!(next(&mut slices, 2).await, [modified("web-1: "), modified("web-2: ")]);
    delete(&store, ProjectedKind::EndpointSlices, "web-1");
    assert_eq!(next(&mut slices, 1).await, [(ChangeKind::Deleted, "web-1: ".to_owned())]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn recreated_object_is_deleted_and_added() {
    let source = cluster();
    let world = World::start(&source, Kubernetes::AsItIs);
    let mut services = world.watch(ProjectedKind::Services).await;
    put_as(&source.store(), ProjectedKind::Services, "web", "another", service(true));
    let expected = [(ChangeKind::Deleted, "web".to_owned()), (ChangeKind::Added, "web".to_owned())];
    assert_eq!(next(&mut services, 2).await, expected);
    world.end().await;
}

/// Rows W17 and W18 of docs/reference/superedge.md#list-and-watch-rows: changes during the interruption are reported,
/// and unchanged objects are not.
#[tokio::test(start_paused = true)]
async fn lost_source_is_compared_when_it_returns() {
    let source = cluster();
    let world = World::start(&source, Kubernetes::AsItIs);
    let mut slices = world.watch(ProjectedKind::EndpointSlices).await;
    let mut services = world.watch(ProjectedKind::Services).await;

    let other = Source::empty(Revision(1000));
    for (name, unit) in [("n1", "a"), ("n2", "b"), ("n4", "a")] {
        put(&other, ProjectedKind::Nodes, name, node(unit));
    }
    put(&other, ProjectedKind::Services, "web", service(true));
    put(&other, ProjectedKind::EndpointSlices, "web-1", slice("web", "1@n1 2@n2 3@n3"));
    put(&other, ProjectedKind::EndpointSlices, "web-2", slice("web", "4@n1"));
    source.exchange(other.clone());
    let deleted = |text: &str| (ChangeKind::Deleted, text.to_owned());
    assert_eq!(next(&mut services, 1).await, [deleted("open")]);
    assert_eq!(next(&mut slices, 2).await, [deleted("open-1: 5"), modified("web-1: 1")]);

    // The view follows the new content.
    put(&other, ProjectedKind::EndpointSlices, "web-2", slice("web", "4@n1 6@n4"));
    assert_eq!(next(&mut slices, 1).await, [modified("web-2: 4 6")]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_read_on_demand() {
    let source = cluster();
    let object = |addresses: Value| json!({"subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]});
    let both = json!([{"ip": "1", "nodeName": "n1"}, {"ip": "3", "nodeName": "n3"}]);
    put(&source.store(), ProjectedKind::Endpoints, "web", object(both));
    let world = World::start(&source, Kubernetes::AsItIs);
    world.shown(ProjectedKind::EndpointSlices).await;
    assert_eq!(world.view.served().get(&key(ProjectedKind::Endpoints, "web")).unwrap(), None);
    assert!(tombolo_apicore::api::builder::Check::check(&world.view).is_ok());
    assert!(world.view.list(&ProjectedKind::Endpoints.resource(), None).is_err());
    world.shown(ProjectedKind::Endpoints).await;
    let shown = world.view.get(&key(ProjectedKind::Endpoints, "web")).unwrap().unwrap();
    let shown: Value = serde_json::from_slice(&shown.body()).unwrap();
    assert_eq!(shown["subsets"], object(json!([{"ip": "1", "nodeName": "n1"}]))["subsets"]);
    world.end().await;
}

/// Rows P24 and P28 of docs/reference/superedge.md#pruning-rows.
#[tokio::test(start_paused = true)]
async fn kubernetes_service_points_to_the_local_api_when_configured() {
    let local = |listener: &str| Kubernetes::Local(listener.parse().unwrap());
    for (kubernetes, node, expected) in [
        (Kubernetes::AsItIs, Some("10.9.9.9"), "10.0.0.1"),
        (local("127.0.0.1:10550"), Some("10.9.9.9"), "10.0.0.1"),
        (local("[::1]:10550"), Some("10.9.9.9"), "10.0.0.1"),
        (local("0.0.0.0:10550"), None, "10.0.0.1"),
        (local("0.0.0.0:10550"), Some("10.9.9.9"), "10.9.9.9"),
        (local("169.254.20.11:10550"), None, "169.254.20.11"),
    ] {
        let source = cluster();
        put(&source.store(), ProjectedKind::Services, "kubernetes", service(false));
        let mut object = slice("kubernetes", "");
        object["endpoints"] = json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]);
        put(&source.store(), ProjectedKind::EndpointSlices, "kubernetes", object);
        let (found, address) = watch::channel(None);
        let world = World::start_at(&source, kubernetes, address);
        world.shown(ProjectedKind::EndpointSlices).await;
        // A node may learn its address later.
        found.send_replace(node.map(|node| node.parse().unwrap()));
        wait_until("the endpoint", DEADLINE, async || {
            world.addresses("kubernetes").as_deref() == Some(expected)
        })
        .await;
        world.end().await;
    }
}

/// Either both families of the Service lead to the local API or neither does. Here the local API has an address of only
/// one.
#[tokio::test(start_paused = true)]
async fn dual_stack_kubernetes_service_keeps_the_cluster_endpoints() {
    let source = cluster();
    let of = |family: &str, address: &str| {
        let mut object = slice("kubernetes", "");
        object["addressType"] = family.into();
        object["endpoints"] = json!([{"addresses": [address], "conditions": {"ready": true}}]);
        object
    };
    put(&source.store(), ProjectedKind::Services, "kubernetes", service(false));
    put(&source.store(), ProjectedKind::EndpointSlices, "kubernetes", of("IPv4", "10.0.0.1"));
    let listener = "169.254.20.11:10550".parse().unwrap();
    let world = World::start(&source, Kubernetes::Local(listener));
    world.shown(ProjectedKind::EndpointSlices).await;
    let shows = async |name: &str, address: &str| {
        wait_until(address, DEADLINE, async || world.addresses(name).as_deref() == Some(address)).await;
    };
    shows("kubernetes", "169.254.20.11").await;
    put(&source.store(), ProjectedKind::EndpointSlices, "kubernetes-6", of("IPv6", "fd00::1"));
    shows("kubernetes", "10.0.0.1").await;
    shows("kubernetes-6", "fd00::1").await;
    let mut without = of("IPv6", "fd00::1");
    without["endpoints"] = Value::Null;
    put(&source.store(), ProjectedKind::EndpointSlices, "kubernetes-6", without);
    shows("kubernetes", "169.254.20.11").await;
    world.end().await;
}

/// The pod of the endpoint on n1, with this address.
fn own_pod(address: &str) -> Arc<OwnPods> {
    let pod = json!({"metadata": {"uid": "p1"}, "status": {"podIPs": [{"ip": address}]}}).to_string();
    let mut pods = OwnPods::new("n1");
    pods.set("default", "web-0", Some(OwnPod::of(pod.as_bytes()).unwrap()));
    Arc::new(pods)
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_own_pods_follow_the_kubelet() {
    let source = cluster();
    let mut object = slice("web", "10.0.0.1@n1 10.0.0.2@n2");
    object["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "name": "web-0", "uid": "p1"});
    put(&source.store(), ProjectedKind::EndpointSlices, "web-1", object.clone());
    let (told, pods) = watch::channel(own_pod("10.0.0.1"));
    let world = World::start_with(&source, Kubernetes::AsItIs, watch::channel(None).1, pods);
    let mut slices = world.watch(ProjectedKind::EndpointSlices).await;
    assert_eq!(world.addresses("web-1").unwrap(), "10.0.0.1 10.0.0.2");
    told.send_replace(own_pod("10.0.0.9"));
    let moved = |to: &str| [(ChangeKind::Modified, format!("web-1: {to} 10.0.0.2"))];
    assert_eq!(next(&mut slices, 1).await, moved("10.0.0.9"));
    // The local address stays in use while the cloud changes other parts of the slice, and after it has learned of an
    // address itself.
    object["metadata"]["annotations"] = json!({"changed": "1"});
    put(&source.store(), ProjectedKind::EndpointSlices, "web-1", object.clone());
    assert_eq!(next(&mut slices, 1).await, moved("10.0.0.9"));
    object["endpoints"][0]["addresses"] = json!(["10.0.0.9"]);
    put(&source.store(), ProjectedKind::EndpointSlices, "web-1", object);
    told.send_replace(own_pod("10.0.0.8"));
    assert_eq!(next(&mut slices, 1).await, moved("10.0.0.8"));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_objects_are_not_shown() {
    let source = cluster();
    let world = World::start(&source, Kubernetes::AsItIs);
    let mut slices = world.watch(ProjectedKind::EndpointSlices).await;
    let mut broken = slice("web", "1@n1");
    broken["endpoints"][0]["nodeName"] = 7.into();
    put(&source.store(), ProjectedKind::EndpointSlices, "web-1", broken);
    assert_eq!(next(&mut slices, 1).await, [(ChangeKind::Deleted, "web-1: 1 2".to_owned())]);
    put(&source.store(), ProjectedKind::EndpointSlices, "web-1", slice("web", "1@n1"));
    assert_eq!(next(&mut slices, 1).await, [(ChangeKind::Added, "web-1: 1".to_owned())]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn watchers_share_one_text_that_lists_need_not_read() {
    let source = cluster();
    let world = World::start(&source, Kubernetes::AsItIs);
    let mut watchers = Vec::new();
    for _ in 0..100 {
        watchers.push(world.watch(ProjectedKind::EndpointSlices).await);
    }
    put(&source.store(), ProjectedKind::Nodes, "n3", node("a"));
    let mut texts = Vec::new();
    for watcher in &mut watchers {
        let batch = tokio::time::timeout(DEADLINE, watcher.next()).await.unwrap().unwrap().unwrap();
        assert!(batch[0].object.layout().is_some());
        texts.push(batch[0].object.body().as_ptr());
    }
    assert_eq!(texts.len(), 100);
    texts.dedup();
    assert_eq!(texts.len(), 1);
    world.end().await;
}
