//! What a process sees on a simulated machine.

use std::collections::{HashMap, HashSet};
use std::env;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tombolo_sim::machine::{Machine, WALL_START, command};

/// Runs a test of this program on a machine with this seed, and returns what it printed.
fn run(name: &str, seed: u64) -> String {
    let mut process = command(&env::current_exe().unwrap(), seed);
    let output =
        process.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_same_seed_gives_the_same_order_and_numbers_in_every_process() {
    let outputs: HashSet<String> = (0..4).map(|_| run("prints_what_is_random", 7)).collect();
    assert_eq!(outputs.len(), 1, "{outputs:#?}");
    let output = outputs.into_iter().next().unwrap();
    assert!(output.contains("order: ["), "{output}");
    assert_ne!(run("prints_what_is_random", 8), output);
}

#[test]
#[ignore = "runs in a process of its own"]
fn prints_what_is_random() {
    let map: HashMap<u32, ()> = (0..40).map(|key| (key, ())).collect();
    println!("order: {:?}", map.keys().collect::<Vec<_>>());
    println!("numbers: {:?} {:?}", rand::random::<[u64; 3]>(), rand::random_range(0..1000));
    let place = Box::new(1);
    println!("addresses: {:p} {:p}", &*place, &raw const map);
    println!("clock: {:?} {:?}", SystemTime::now(), Instant::now());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let order = runtime.block_on(async {
        let mut order = Vec::new();
        for _ in 0..40 {
            tokio::select! {
                () = std::future::ready(()) => order.push('a'),
                () = std::future::ready(()) => order.push('b'),
            }
        }
        order.into_iter().collect::<String>()
    });
    println!("branches: {order}");
    assert!(order.contains('a') && order.contains('b'));
}

#[test]
fn clocks_show_what_the_simulation_has_set() {
    run("sets_the_clocks", 1);
}

#[test]
#[ignore = "runs in a process of its own"]
fn sets_the_clocks() {
    let machine = Machine::attach().unwrap();
    let begin = Instant::now();
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for (elapsed, hours) in [(0, 0), (61, -5), (3600, 12)] {
        let elapsed = Duration::from_secs(elapsed);
        machine.set(elapsed, hours * 3_600_000).unwrap();
        let expected = i64::try_from(WALL_START + elapsed.as_secs()).unwrap() + hours * 3_600;
        assert_eq!(i64::try_from(wall().as_secs()).unwrap(), expected);
        assert_eq!(k8s_openapi::jiff::Timestamp::now().as_second(), expected);
        assert_eq!(begin.elapsed(), elapsed, "what is measured does not jump");
    }
}

#[test]
fn a_process_on_the_real_machine_is_told_how_to_run() {
    let refused = Machine::attach().unwrap_err().to_string();
    assert!(refused.contains("cargo xtask simulate") && refused.contains("LD_PRELOAD"), "{refused}");
}
