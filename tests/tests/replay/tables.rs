//! What a replay excuses and finds in each transcript, as tables of the repository. A test fails when its line differs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use parking_lot::Mutex;
use tombolo_replay::{PeerFault, Rule, Summary};

use crate::faults::Cells;

/// Set to `write` to replace the lines of the tables by what the tests find; to `widen` to extend numbers that depend on
/// the timing of a run to ranges.
const WRITE_VARIABLE: &str = "TOMBOLO_REPLAY_TABLES";

/// The name of the number of frames that arrived as recorded.
const MATCHED: &str = "+matched";

/// The tests of one process write one after the other.
static WRITING: Mutex<()> = Mutex::new(());

/// How often each rule excuses something in a run. `run` names the transcript and the side that was played.
pub(crate) fn check_excuses(run: &str, summary: &Summary) {
    let file = Table::of("excused.txt");
    file.update(run, |known| render(&written(known.map(parse), &counts(summary))));
    let wrong = wrong_numbers(run, summary);
    assert!(wrong.is_empty(), "{run} in {}: {wrong:#?}", file.0.display());
}

/// How the numbers of a run differ from those of the table. A number without a range must be the same. Of a range, the
/// end that makes a replay say less is a limit: frames that matched must not become fewer, all others not more.
pub(crate) fn wrong_numbers(run: &str, summary: &Summary) -> Vec<String> {
    let counted = counts(summary);
    let known = parse(&Table::of("excused.txt").line(run).unwrap_or_default());
    let names = known.keys().chain(counted.keys()).collect::<BTreeSet<_>>();
    names
        .into_iter()
        .filter_map(|name| {
            let count = counted.get(name).copied().unwrap_or_default();
            let (least, most) = known.get(name).copied().unwrap_or_default();
            let is_wrong = match (least == most, name.as_str()) {
                (true, _) => count != least,
                (false, MATCHED) => count < least,
                (false, _) => count > most,
            };
            is_wrong.then(|| format!("{name}: {count}, and the table has {}", range(least, most)))
        })
        .collect()
}

/// Whether each fault is found in a run: one word for each fault, or several that depend on the timing of the run.
pub(crate) fn check_faults(run: &str, cells: &Cells) {
    let file = Table::of("faults.txt");
    file.update(run, |known| {
        let known = known.map(words).filter(|_| widens()).unwrap_or_default();
        let cell = |(fault, found): &(&str, &str)| {
            let mut all = known.get(*fault).cloned().unwrap_or_default();
            all.insert((*found).to_owned());
            format!("{fault}={}", all.into_iter().collect::<Vec<_>>().join("|"))
        };
        cells.iter().map(cell).collect::<Vec<_>>().join(" ")
    });
    let known = words(&file.line(run).unwrap_or_default());
    for (fault, found) in cells {
        let expected = known.get(*fault).cloned().unwrap_or_default();
        assert!(
            expected.contains(*found),
            "{run}: {fault} is {found}; {} has {expected:?}",
            file.0.display()
        );
    }
}

/// Whether a fault matters in a run, so that it must be found.
pub(crate) fn matters(run: &str, fault: PeerFault) -> bool {
    let line = Table::of("faults.txt").line(run).unwrap_or_default();
    words(&line).get(fault.name()).is_some_and(|found| !found.contains("-"))
}

/// The words for each fault in a line of the table.
fn words(line: &str) -> BTreeMap<String, BTreeSet<String>> {
    let read = |cell: &str| {
        let (fault, found) = cell.split_once('=')?;
        Some((fault.to_owned(), found.split('|').map(str::to_owned).collect()))
    };
    line.split(' ').filter_map(read).collect()
}

/// Frames and rules by name.
fn counts(summary: &Summary) -> BTreeMap<String, usize> {
    let Summary { matched, excused, besides, rules } = summary;
    let frames = [(MATCHED, *matched), ("+excused", *excused), ("+besides", *besides)];
    let frames = frames.into_iter().map(|(name, count)| (name.to_owned(), count));
    let rules = rules.iter().map(|(rule, count): (Rule, usize)| (rule.name().to_owned(), count));
    frames.chain(rules).collect()
}

/// Whether lines of the tables are extended rather than replaced.
fn widens() -> bool {
    std::env::var(WRITE_VARIABLE).as_deref() == Ok("widen")
}

type Ranges = BTreeMap<String, (usize, usize)>;

/// The new numbers of a run, or the known ranges with them.
fn written(known: Option<Ranges>, counted: &BTreeMap<String, usize>) -> Ranges {
    let exact = |count: &usize| (*count, *count);
    let mut ranges: Ranges = counted.iter().map(|(name, count)| (name.clone(), exact(count))).collect();
    let Some(known) = known.filter(|_| widens()) else {
        return ranges;
    };
    for name in known.keys().chain(counted.keys()) {
        let (least, most) = known.get(name).copied().unwrap_or_default();
        let count = counted.get(name).copied().unwrap_or_default();
        ranges.insert(name.clone(), (least.min(count), most.max(count)));
    }
    ranges
}

fn range(least: usize, most: usize) -> String {
    if least == most { least.to_string() } else { format!("{least}..{most}") }
}

fn render(ranges: &Ranges) -> String {
    let all: Vec<String> =
        ranges.iter().map(|(name, (least, most))| format!("{name}={}", range(*least, *most))).collect();
    all.join(" ")
}

fn parse(line: &str) -> Ranges {
    let read = |word: &str| {
        let (name, count) = word.split_once('=')?;
        let (least, most) = count.split_once("..").unwrap_or((count, count));
        Some((name.to_owned(), (least.parse().ok()?, most.parse().ok()?)))
    };
    line.split(' ').filter_map(read).collect()
}

/// A file with one line for each run: its name, a colon, and words.
struct Table(PathBuf);

impl Table {
    fn of(name: &str) -> Self {
        Self(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/replay").join(name))
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).expect("a table")
    }

    fn line(&self, run: &str) -> Option<String> {
        let start = format!("{run}: ");
        self.text().lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned))
    }

    /// Replaces the line of a run, if the table is to be written.
    fn update(&self, run: &str, words: impl FnOnce(Option<&str>) -> String) {
        if std::env::var(WRITE_VARIABLE).is_err() {
            return;
        }
        let _writing = WRITING.lock();
        let line = format!("{run}: {}", words(self.line(run).as_deref()));
        let text = self.text();
        let (comments, mut lines): (Vec<&str>, Vec<&str>) =
            text.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with('#'));
        lines.retain(|line| !line.starts_with(&format!("{run}: ")));
        lines.push(&line);
        lines.sort_unstable();
        let text = format!("{}\n\n{}\n", comments.join("\n"), lines.join("\n"));
        // Other tests read it meanwhile.
        let new = self.0.with_extension("new");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.0)).expect("a table");
    }
}
