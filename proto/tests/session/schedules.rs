//! Random schedules: faults in any order, then everything heals and must converge.

use rand::RngCore;
use tombolo_proto::limits::HELLO_INVENTORY_MAX;
use tombolo_testkit::{Seed, seeds};

use super::harness::ops::{Op, fuzz, run_crowded};
use super::harness::oracle::Coverage;

/// Number of schedules in one test run, unless `TOMBOLO_SCHEDULES` sets another number.
const SCHEDULES: u64 = 10_000;

/// Seeds that failed during development; they always run.
const KNOWN: [u64; 4] = [24, 35, 2510, 4242];

/// Number of schedules with large inventories in one test run.
const CROWDED: u64 = 100;

/// Number of hostile peers in one test run.
const HOSTILE: u64 = 20_000;

/// Prints the operations when the test fails.
struct Report {
    /// Objects held from the beginning.
    crowd: usize,
    operations: Vec<u8>,
}

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the schedule began with {} objects; its operations:", self.crowd);
            for (number, pair) in self.operations.get(4..).unwrap_or_default().chunks_exact(2).enumerate() {
                eprintln!("  {number}: {:?}", Op::from_bytes(pair[0], pair[1]));
            }
        }
    }
}

fn run(seed: &Seed) -> Coverage {
    run_with(seed, 0)
}

fn run_with(seed: &Seed, crowd: usize) -> Coverage {
    let mut random = seed.rng();
    let operations = 8 + random.next_u32() as usize % 100;
    let mut bytes = vec![0; 4 + 2 * operations];
    random.fill_bytes(&mut bytes);
    let report = Report { crowd, operations: bytes };
    run_crowded(&report.operations, crowd).oracle.coverage
}

#[test]
fn ten_thousand_random_schedules_converge() {
    let schedules = tombolo_testkit::times("TOMBOLO_SCHEDULES", SCHEDULES);
    let total = seeds(schedules).map(|seed| run(&seed)).fold(Coverage::default(), Coverage::add);
    KNOWN.into_iter().for_each(|seed| _ = run(&Seed::fixed(seed)));
    // Schedules that never reach the rare paths would prove nothing.
    let Coverage {
        upserts,
        adoptions,
        deletions,
        absences,
        unreadables,
        kept,
        refusals,
        connections,
        caught_up,
        answers,
        timeouts,
        confirmed,
        denied,
    } = total;
    for (what, count, least) in [
        ("upserts", upserts, 30_000),
        ("adoptions", adoptions, 1_000),
        ("deletions", deletions, 5_000),
        ("absences", absences, 5_000),
        ("unreadable objects", unreadables, 500),
        ("kept versions of unreadable objects", kept, 20),
        ("refusals", refusals, 1_000),
        ("connections", connections, 20_000),
        ("subscriptions caught up", caught_up, 20_000),
        ("answers", answers, 500),
        ("timeouts", timeouts, 50),
        ("losses confirmed", confirmed, 2_000),
        ("losses denied", denied, 100),
    ] {
        println!("{count} {what}");
        // With few schedules, the counts depend on chance.
        let least = if schedules < SCHEDULES { least * schedules / SCHEDULES / 4 } else { least };
        assert!(count >= least, "only {count} {what} in {schedules} schedules");
    }
}

/// Above the limit of the hello, every reconnect uses a digest, and complete inventories where it differs.
#[test]
fn schedules_above_the_hello_limit_converge() {
    let total = seeds(CROWDED)
        .map(|seed| run_with(&seed, HELLO_INVENTORY_MAX))
        .fold(Coverage::default(), Coverage::add);
    // The edge holds the crowd from the beginning; the oracle would have reported it if it were sent again.
    assert!(total.connections > CROWDED && total.upserts > CROWDED, "{total:?}");
}

/// The other half of the fuzz target on stable, for a bounded time.
#[test]
fn hostile_peers_only_end_their_session() {
    for seed in seeds(HOSTILE) {
        let mut random = seed.rng();
        let mut bytes = vec![0; 4 * (2 + random.next_u32() as usize % 60)];
        random.fill_bytes(&mut bytes);
        // Most sessions must get past the handshake to reach anything else.
        let number = seed.number();
        if !number.is_multiple_of(8) {
            bytes[..4].copy_from_slice(&[u8::from(!number.is_multiple_of(2)), 1, 0, 0]);
        }
        bytes.insert(0, 255);
        fuzz(&bytes);
    }
}
