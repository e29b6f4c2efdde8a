//! The connection breaks, or the edge crashes, at every step of a small scenario.

use std::time::Duration;

use tombolo_proto::message::Operation;

use super::cluster::{key, node_key};
use super::world::{World, object};

fn start() -> World {
    let mut world = World::new(7);
    for (kind, name) in [("pods", "p0"), ("configmaps", "c0"), ("secrets", "s0")] {
        world.cluster.put(&key(kind, name));
        world.cluster.want(&key(kind, name), true);
    }
    world.connect();
    world
}

fn play(world: &mut World) {
    let pause = Duration::from_millis(40);
    let (pod, config, secret) = (key("pods", "p0"), key("configmaps", "c0"), key("secrets", "s0"));
    for round in 0..3 {
        world.run_for(pause);
        world.cluster.put(&config);
        world.offer(&config);
        world.run_for(pause);
        if world.connection.is_some() {
            world.kubeedge.ask(Operation::Query, "default/configmap/c0", object("null"));
            world.kubeedge.ask(Operation::Patch, "default/podpatch/p0", object(r#""{}""#));
        }
        world.run_for(pause);
        world.cluster.delete(&secret);
        world.offer(&secret);
        world.run_for(pause * 4);
        if round < 2 {
            world.cluster.put(&secret);
            world.offer(&secret);
        }
    }
    world.cluster.want(&pod, false);
    world.cluster.delete(&pod);
    world.offer(&pod);
    world.cluster.put(&node_key());
    world.offer(&node_key());
    world.run_for(Duration::from_secs(1));
}

#[test]
fn after_each_document() {
    let mut whole = start();
    play(&mut whole);
    let documents = whole.arrived;
    assert!(documents > 30, "the scenario is too small: {documents} documents");
    whole.heal();
    for cut in 1..=documents {
        for killed in [false, true] {
            let mut world = start();
            world.cut_after = Some(cut);
            play(&mut world);
            assert!(world.connection.is_none(), "the cut after document {cut} did not happen");
            if killed {
                world.kubeedge.killed();
            }
            world.run_for(Duration::from_secs(2));
            world.connect();
            world.heal();
        }
    }
}
