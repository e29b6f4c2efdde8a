//! Proves that a replay can fail: a faulty cloud and a faulty edge are put between the product and the recording.

use tombolo_cli::replay::{ReplayTarget, play_edge_of};
use tombolo_replay::{
    Difference, FaultyCloud, FaultyRun, Happening, PeerFault, Summary, Transcript, judge, play_cloud,
    play_faulty_edge, with_api_lines,
};

use crate::nightly;
use crate::tables::{matters, wrong_numbers};

/// How many sites of each fault the tests try; `cargo xtask mutations` tries all.
const SITES: usize = 4;

/// What a replay says about each fault, by the fault's name: a line of `faults.txt`.
pub(crate) type Cells = Vec<(&'static str, &'static str)>;

/// What became of the sites of a fault.
#[derive(Default)]
struct Tried {
    /// A replay reports a difference.
    found: usize,
    /// A number leaves the range that `excused.txt` has.
    counted: usize,
    /// A rule excuses it, and the number stays in the range.
    excused: Vec<String>,
    /// Nothing changes.
    missed: Vec<String>,
}

impl Tried {
    fn take(
        &mut self,
        run: &str,
        base: &Summary,
        outcome: Result<Summary, Difference>,
        site: &impl std::fmt::Debug,
    ) {
        match outcome {
            Err(_) => self.found += 1,
            Ok(summary) if summary == *base => self.missed.push(format!("{site:?}")),
            Ok(summary) if !wrong_numbers(run, &summary).is_empty() => self.counted += 1,
            Ok(summary) => self.excused.push(format!("{site:?}: {summary:?} in place of {base:?}")),
        }
    }

    /// The cell of the table.
    fn cell(&self) -> &'static str {
        match (self.found, self.counted) {
            (0, 0) => "-",
            (0, _) => "counted",
            _ => "found",
        }
    }

    /// The sites at which nothing shows the fault. What a rule excuses is no such site if the fault shows elsewhere.
    fn unseen(&self) -> impl Iterator<Item = &String> {
        let excused = if self.cell() == "-" { &self.excused[..] } else { &[] };
        self.missed.iter().chain(excused)
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
pub(crate) fn every_faulty_cloud_is_found(name: &str, transcript: &Transcript, run: &[Happening]) -> Cells {
    let base = judge(transcript, transcript, run).expect("the run itself has no difference");
    let faulty = FaultyRun::new(transcript, run);
    every_fault_is_found(name, |fault| {
        let sites = faulty.sites(fault);
        try_sites(sites.len(), |tried, number| {
            let site = sites[number];
            tried.take(name, &base, faulty.judge(fault, site), &site);
        })
    })
}

/// Puts every fault of an edge between the recorded cloud and an edge session.
pub(crate) fn every_faulty_edge_is_found(name: &str, transcript: &Transcript) -> Cells {
    let base = play_cloud(transcript).unwrap_or_else(|difference| panic!("{name}: {difference}"));
    every_fault_is_found(name, |fault| {
        let (_, sites) = play_faulty_edge(transcript, fault, usize::MAX);
        try_sites(sites, |tried, site| {
            tried.take(name, &base, play_faulty_edge(transcript, fault, site).0, &site);
        })
    })
}

fn every_fault_is_found(name: &str, tried: impl Fn(PeerFault) -> Tried) -> Cells {
    let mut cells = Cells::new();
    let mut unseen = Vec::new();
    for fault in PeerFault::ALL {
        let tried = tried(fault);
        cells.push((fault.name(), tried.cell()));
        unseen.extend(tried.unseen().map(|site| format!("{}: {site}", fault.name())));
    }
    assert!(unseen.is_empty(), "{name}: a replay does not find {unseen:#?}");
    cells
}

/// Makes a run with each faulty cloud between cloudcore and the edge. This takes longer than altering what a run has shown,
/// so only some transcripts are played this way.
pub(crate) async fn every_faulty_cloud_is_found_live(name: &str, recorded: &Transcript) {
    let transcript = with_api_lines(recorded);
    for fault in PeerFault::ALL.into_iter().filter(|fault| matters(name, *fault)) {
        let target = ReplayTarget::start().await.expect("an API server and a cloudcore");
        let faulty = FaultyCloud::new(fault, &transcript);
        let outcome = play_edge_of(faulty, &transcript, &target).await.expect("a run").outcome;
        target.stop().await;
        match outcome {
            Err(difference) => println!("{name}: {}: {difference}", fault.name()),
            Ok(summary) => {
                let wrong = wrong_numbers(name, &summary);
                assert!(!wrong.is_empty(), "{name}: a replay does not find {}: {summary:?}", fault.name());
                println!("{name}: {}: {wrong:?}", fault.name());
            }
        }
    }
}

/// The head of the table says why a fault does not matter where it has no site.
#[test]
fn the_table_says_why_a_fault_does_not_matter() {
    let text = include_str!("faults.txt");
    for fault in PeerFault::ALL {
        for (of_cloud, side) in [(true, "cloud"), (false, "edge")] {
            let line = format!("# {side} {}: {}", fault.name(), fault.reason(of_cloud));
            assert!(text.lines().any(|known| known == line), "the head of the table must contain:\n{line}");
        }
    }
}
