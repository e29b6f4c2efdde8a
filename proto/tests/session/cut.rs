//! The connection breaks, or the edge crashes, at every single step of a small scenario.

use std::time::Duration;

use super::harness::ops::Op;
use super::harness::world::{Settings, World};

/// The events after the first connection: updates in flight, a deletion, a re-creation, a large object, a refusal, a
/// subscription that is opened and closed, objects that cannot be read for a while, and a new epoch.
const SCRIPT: [Op; 25] = [
    Op::Put { area: 0, key: 0, big: false },
    Op::Put { area: 0, key: 1, big: true },
    Op::Put { area: 1, key: 0, big: false },
    Op::Step,
    Op::Step,
    Op::Put { area: 0, key: 0, big: false },
    Op::Follow { area: 1, follow: true },
    Op::Step,
    Op::Refuse,
    Op::Recreate { area: 0, key: 2 },
    Op::Readable { key: 3, readable: false },
    Op::Want { area: 0, key: 3, wanted: true },
    Op::Run { millis: 40 },
    Op::Remove { area: 0, key: 0 },
    Op::Put { area: 1, key: 1, big: false },
    Op::Touch { area: 0, key: 2 },
    Op::Readable { key: 2, readable: false },
    Op::Run { millis: 40 },
    Op::Readable { key: 3, readable: true },
    Op::Want { area: 0, key: 1, wanted: false },
    Op::Ask { millis: 2000, big: false },
    Op::Follow { area: 1, follow: false },
    Op::Lease,
    Op::Readable { key: 2, readable: true },
    Op::Run { millis: 1500 },
];

fn start() -> World {
    let mut world = World::new(Settings { window_count: 3, ..Settings::default() });
    world.apply(Op::Put { area: 0, key: 2, big: false });
    world.connect();
    world
}

fn play(world: &mut World) {
    for op in SCRIPT {
        world.apply(op);
    }
}

#[test]
fn cut_after_each_frame_converges() {
    let mut whole = start();
    play(&mut whole);
    let frames = whole.connection.as_ref().expect("never cut").arrived;
    assert!(frames > 25, "the scenario is too small: {frames} frames");
    whole.heal();
    for cut in 1..=frames {
        let mut world = start();
        world.cut_after = Some(cut);
        play(&mut world);
        assert!(world.connection.is_none(), "the cut after frame {cut} did not happen");
        world.heal();
    }
}

/// Every event is a step: an arrival, a commit or a timer. At that step the edge crashes, or only the link breaks.
#[test]
fn edge_crash_at_each_step_converges() {
    let mut steps = 0;
    for crash in [true, false] {
        for stop in 0.. {
            let mut world = start();
            play_until(&mut world, stop);
            if world.connection.is_none() {
                steps = stop;
                break;
            }
            if crash {
                world.crash_edge();
            } else {
                world.cut();
            }
            // The cloud's objects change while the edge is disconnected.
            world.apply(Op::Recreate { area: 0, key: 2 });
            world.apply(Op::Want { area: 0, key: 1, wanted: false });
            world.heal();
        }
    }
    assert!(steps > 60, "only {steps} steps");
}

/// Runs everything in single steps and stops after `stop` of them; cuts the connection if there are fewer.
fn play_until(world: &mut World, stop: usize) {
    let mut left = stop;
    for op in SCRIPT {
        if !matches!(op, Op::Step | Op::Run { .. }) {
            world.apply(op);
        }
        for _ in 0..6 {
            if left == 0 {
                return;
            }
            left -= 1;
            world.apply(Op::Step);
        }
    }
    world.cut();
}

#[test]
fn new_epoch_and_rules_at_each_step_converge() {
    for op in [Op::Restore, Op::ChangeRules, Op::WipeStore] {
        for stop in 0..6 * SCRIPT.len() {
            let mut world = start();
            world.apply(Op::Snapshot);
            play_until(&mut world, stop);
            world.apply(op);
            world.connect();
            world.run_for(Duration::from_millis(25));
            world.apply(op);
            world.heal();
        }
    }
}
