//! The table, and the bounds that each of its rows must keep.

use std::time::Duration;

use super::memory::Growth;
use super::peer::Took;
use super::ports::PORTS;

/// Growth of the hub's memory that one attacker may cause, beyond what it has stored, in KiB.
const GROWTH_MAX: u64 = 8 * 1024;

/// Bound for lease renewals of honest nodes: 99 of 100 are faster.
const LEASE_MAX: Duration = Duration::from_secs(1);

/// Time within which a newcomer must be connected or answered.
const NEWCOMER_MAX: Duration = Duration::from_secs(5);

/// One attack.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) growth: Growth,
    pub(crate) lease: Option<Duration>,
    /// The delay at each of [`PORTS`].
    pub(crate) newcomers: [Duration; PORTS.len()],
    pub(crate) took: Took,
}

impl Row {
    fn missed(&self) -> Option<&'static str> {
        if self.took.missing.is_some() {
            return Some("it did not take place");
        }
        if self.growth.beyond > GROWTH_MAX {
            return Some("growth");
        }
        if self.growth.stored > self.growth.share {
            return Some("share of the store");
        }
        if self.lease.is_none_or(|lease| lease > LEASE_MAX) {
            return Some("lease renewals");
        }
        (self.newcomers.iter().any(|took| *took > NEWCOMER_MAX)).then_some("newcomer")
    }
}

/// Prints the rows; false when a bound is missed.
pub(crate) fn print(server: &str, nodes: u32, rows: &[Row]) -> bool {
    println!(
        "\nOn {server}, {nodes} honest nodes; bounds: growth {} MiB, p99 of renewals {} ms, newcomer {} ms\n",
        GROWTH_MAX / 1024,
        LEASE_MAX.as_millis(),
        NEWCOMER_MAX.as_millis()
    );
    println!(
        "| attack | growth, MiB | stored, MiB | renewals p99, ms | newcomer, ms: {} | bound | what happened, refused with what |\n|---|---|---|---|---|---|---|",
        PORTS.join(", ")
    );
    for row in rows {
        let lease = row.lease.map_or("none".to_owned(), |lease| lease.as_millis().to_string());
        let [growth, stored] = [row.growth.beyond, row.growth.stored].map(mebibytes);
        let bound = row.missed().map_or("kept".to_owned(), |what| format!("**missed: {what}**"));
        let happened = row.took.missing.as_ref().map(|why| format!("did not take place: {why}. "));
        let happened = (happened.unwrap_or_default() + &row.took.text).replace('|', "/");
        let newcomers = row.newcomers.map(|took| took.as_millis().to_string()).join(", ");
        println!("| {} | {growth} | {stored} | {lease} | {newcomers} | {bound} | {happened} |", row.name);
    }
    rows.iter().all(|row| row.missed().is_none())
}

fn mebibytes(kibibytes: u64) -> String {
    format!("{}.{}", kibibytes / 1024, kibibytes % 1024 * 10 / 1024)
}
