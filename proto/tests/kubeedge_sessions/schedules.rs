//! Random schedules. A failure prints its seed; `TOMBOLO_SEED=<seed>` repeats that schedule first.

use std::time::Duration;

use rand::Rng;
use tombolo_proto::ObjectKey;
use tombolo_proto::message::Operation;
use tombolo_testkit::{Seed, seeds};

use super::cluster::{key, wire_path};
use super::world::{Faults, World, object};

/// Number of schedules in one run, unless `TOMBOLO_SCHEDULES` sets another number.
const SCHEDULES: u64 = 10_000;

fn some_key(world: &mut World) -> ObjectKey {
    let kind = ["pods", "configmaps", "configmaps", "secrets"][world.rng.random_range(0..4)];
    let name = format!("{}{}", &kind[..1], world.rng.random_range(0..4));
    key(kind, &name)
}

fn change(world: &mut World) {
    let key = some_key(world);
    match world.rng.random_range(0..12) {
        0..=3 => {
            world.cluster.put(&key);
            world.cluster.want(&key, true);
        }
        4 => world.cluster.want(&key, false),
        5 => world.cluster.delete(&key),
        6 => {
            world.cluster.delete(&key);
            world.cluster.put(&key);
        }
        7 => world.cluster.put(&super::cluster::node_key()),
        8 => world.cluster.report(&super::cluster::node_key()),
        9 => {
            world.cluster.want(&key, true);
            if !world.cluster.optional.remove(&key) {
                world.cluster.optional.insert(key.clone());
            }
        }
        _ => {
            ask(world, &key);
            return;
        }
    }
    world.offer(&key);
    world.offer(&super::cluster::node_key());
}

/// The kubelet requests what it may read, and reports on pods that it knows.
fn ask(world: &mut World, key: &ObjectKey) {
    if world.connection.is_none() {
        return;
    }
    let path = wire_path(key);
    if path.contains("/pod/") {
        if world.kubeedge.rows.contains_key(&path) {
            world.kubeedge.ask(Operation::Patch, &path.replace("/pod/", "/podpatch/"), object(r#""{}""#));
        }
    } else {
        world.kubeedge.ask(Operation::Query, &path, object("null"));
    }
    world.pump();
}

fn disturb(world: &mut World) {
    let other: bool = world.rng.random();
    match world.rng.random_range(0..6) {
        0 => {
            world.cut(other);
        }
        1 => {
            world.cut(false);
            world.kubeedge.killed();
            if world.rng.random_ratio(1, 4) {
                world.kubeedge.rows.clear();
            }
            world.run_for(Duration::from_secs(2));
            world.connect();
        }
        _ if world.connection.is_none() => {
            // A KubeEdge edge waits before it reconnects, so that no reply of the old connection is in transit.
            world.run_for(Duration::from_secs(2));
            world.connect();
        }
        2 if world.cluster.blind => world.see(),
        2 => world.cluster.blind = true,
        3 => world.kubeedge.failing = other.then(|| wire_path(&key("configmaps", "c1"))),
        _ => {}
    }
}

fn run(seed: &Seed) -> (u64, usize) {
    let mut world = World::new(seed.number());
    let mut rate = |max: u32| if world.rng.random() { world.rng.random_range(0..max) } else { 0 };
    world.faults =
        Faults { dropped: rate(60), stalls: rate(60), failed_writes: rate(200), conflicts: rate(100) };
    world.window = world.rng.random_range(1..20);
    world.connect();
    for _ in 0..world.rng.random_range(5..40) {
        if world.rng.random_ratio(1, 5) {
            disturb(&mut world);
        } else {
            change(&mut world);
        }
        let pause = if world.rng.random_ratio(1, 6) { 20_000 } else { 60 };
        let pause = Duration::from_millis(world.rng.random_range(0..pause));
        world.run_for(pause);
    }
    world.heal();
    (world.arrived, world.most_in_flight)
}

#[test]
fn random_schedules_converge() {
    let schedules = tombolo_testkit::times("TOMBOLO_SCHEDULES", SCHEDULES);
    let (mut documents, mut window) = (0, 0);
    for seed in seeds(schedules) {
        let (arrived, most) = run(&seed);
        documents += arrived;
        window = window.max(most);
    }
    // A few schedules may be short.
    if schedules >= 100 {
        assert!(documents > 20 * schedules, "only {documents} documents: the schedules test nothing");
        assert!(window > 4, "never more than {window} pushes in flight");
    }
}
