//! Proves that a replay can fail: a faulty cloud and a faulty edge are put between the product and the recording.

use tombolo_replay::{
    Difference, Fault, FaultyRun, Happening, Summary, Transcript, judge, play_cloud, play_faulty_edge,
};

use crate::nightly;
use crate::tables::check_faults;

/// How many sites of each fault the tests try; `cargo xtask mutations` tries all.
const SITES: usize = 4;

/// What became of the sites of a fault.
#[derive(Default)]
struct Tried {
    /// A replay reports a difference.
    found: usize,
    /// The numbers of what is excused or matched change.
    counted: usize,
    missed: Vec<String>,
}

impl Tried {
    fn take(&mut self, base: &Summary, outcome: Result<Summary, Difference>, site: &impl std::fmt::Debug) {
        match outcome {
            Err(_) => self.found += 1,
            Ok(summary) if summary != *base => self.counted += 1,
            Ok(_) => self.missed.push(format!("{site:?}")),
        }
    }

    /// The cell of the table.
    fn cell(&self) -> String {
        let word = match (self.found, self.counted) {
            (0, 0) => "-",
            (0, _) => "counted",
            _ => "found",
        };
        word.to_owned()
    }
}

/// Tries some of `count` sites, or all at night: the first, the last, and others between. If none of these is found, the
/// rest as well.
fn try_sites(count: usize, mut try_one: impl FnMut(&mut Tried, usize)) -> Tried {
    let mut tried = Tried::default();
    let first: Vec<usize> = if count <= SITES {
        (0..count).collect()
    } else {
        (0..SITES).map(|number| number * (count - 1) / (SITES - 1)).collect()
    };
    first.iter().for_each(|site| try_one(&mut tried, *site));
    for site in (0..count).filter(|site| !first.contains(site)) {
        if !nightly() && tried.found > 0 {
            break;
        }
        try_one(&mut tried, site);
    }
    tried
}

/// Puts every fault of a cloud into a run.
pub(crate) fn every_faulty_cloud_is_found(name: &str, transcript: &Transcript, run: &[Happening]) {
    let base = judge(transcript, transcript, run).expect("the run itself has no difference");
    let faulty = FaultyRun::new(transcript, run);
    every_fault_is_found(name, |fault| {
        let sites = faulty.sites(fault);
        try_sites(sites.len(), |tried, number| {
            let site = sites[number];
            tried.take(&base, faulty.judge(fault, site), &site);
        })
    });
}

/// Puts every fault of an edge between the recorded cloud and an edge session.
pub(crate) fn every_faulty_edge_is_found(name: &str, transcript: &Transcript) {
    let base = play_cloud(transcript).unwrap_or_else(|difference| panic!("{name}: {difference}"));
    every_fault_is_found(name, |fault| {
        let (_, sites) = play_faulty_edge(transcript, fault, usize::MAX);
        try_sites(sites, |tried, site| tried.take(&base, play_faulty_edge(transcript, fault, site).0, &site))
    });
}

fn every_fault_is_found(name: &str, tried: impl Fn(Fault) -> Tried) {
    let mut cells = Vec::new();
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let tried = tried(fault);
        cells.push((fault.name(), tried.cell()));
        missed.extend(tried.missed.iter().map(|site| format!("{}: {site}", fault.name())));
    }
    assert!(missed.is_empty(), "{name}: a replay does not find {missed:#?}");
    check_faults(name, &cells);
}

/// The head of the table says why a fault does not matter where it has no site.
#[test]
fn the_table_says_why_a_fault_does_not_matter() {
    let text = include_str!("faults.txt");
    for fault in Fault::ALL {
        for (of_cloud, side) in [(true, "cloud"), (false, "edge")] {
            let line = format!("# {side} {}: {}", fault.name(), fault.reason(of_cloud));
            assert!(text.lines().any(|known| known == line), "the head of the table must contain:\n{line}");
        }
    }
}
