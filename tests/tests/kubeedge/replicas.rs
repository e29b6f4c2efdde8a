//! Two replicas of cloudcore behind one address: a node may be connected to either.

use super::Stage;
use tombolo_testkit::cluster_or_skip;
use tombolo_tests::kubeedge::KubeEdgeNode;
use tombolo_tests::world::{Api, Balancer, Transport, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_move_between_replicas() {
    cluster_or_skip!("nodes_move_between_replicas");
    let mut world = World::start(Api::Real, Transport::WebSocket).await.unwrap();
    let ports = [world.hub_ports()[0], world.start_replica().await.unwrap()];
    let balancer = Balancer::start(ports.to_vec()).await.unwrap();
    world = the_other_takes_over_when_one_dies(world, &balancer).await;
    world.start_cloud().await.unwrap();
    world = a_node_that_moves_is_not_served_twice(world, &balancer, ports).await;
    a_node_that_moves_takes_along_what_is_known_of_it(world, &balancer, ports).await;
}

async fn quiet_behind(stage: &Stage, balancer: &Balancer) -> KubeEdgeNode {
    let mut node = stage.node().await;
    node.move_to(balancer.port);
    node.connect().await.unwrap();
    node.register().await.unwrap();
    stage.before_an_absence(&node).await;
    node
}

async fn the_other_takes_over_when_one_dies(world: World, balancer: &Balancer) -> World {
    let mut stage = Stage::open(world, 0).await;
    let mut node = stage.node().await;
    node.move_to(balancer.port);
    node.boot().await.unwrap();
    stage.ready().await;
    stage.before_an_absence(&node).await;
    stage.world.kill_cloud();
    let done = stage.work_behind_its_back().await;
    node.until("the other replica", |store| store.connections == 2).await;
    stage.everything_was_caught_up(&node, done).await;
    stage.phase("new", "Running").await;
    stage.world
}

/// The old replica is not notified of the move, so its state of the node is stale from then on.
async fn a_node_that_moves_is_not_served_twice(world: World, balancer: &Balancer, ports: [u16; 2]) -> World {
    let stage = Stage::open(world, 1).await;
    balancer.prefer(ports[0]);
    let mut node = quiet_behind(&stage, balancer).await;
    balancer.prefer(ports[1]);
    let old = node.connect_beside().await.unwrap();
    let done = stage.work_behind_its_back().await;
    stage.everything_was_caught_up(&node, done).await;
    old.ended().await.unwrap();
    // Moves back to the replica that had its session a moment ago.
    balancer.prefer(ports[0]);
    let old = node.connect_beside().await.unwrap();
    stage.objects.secret("password", "3").await.unwrap();
    stage.objects.accepted_pod("third", &stage.name, &["settings"], &["password"]).await;
    node.converges(&stage.world).await;
    old.ended().await.unwrap();
    stage.world
}

async fn a_node_that_moves_takes_along_what_is_known_of_it(
    world: World,
    balancer: &Balancer,
    ports: [u16; 2],
) {
    let stage = Stage::open(world, 2).await;
    balancer.prefer(ports[1]);
    let node = quiet_behind(&stage, balancer).await;
    balancer.prefer(ports[0]);
    node.cut().await.unwrap();
    let done = stage.work_behind_its_back().await;
    node.until("the other replica", |store| store.connections == 2).await;
    stage.everything_was_caught_up(&node, done).await;
    stage.nothing_was_sent_again(&node).await;
}
