//! A recording that ends early: whatever its last line is, it is judged.

use std::path::{Path, PathBuf};

use tombolo_replay::{Transcript, play_cloud};

/// Every transcript in a folder and in those within it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("transcripts");
    let (folders, mut files): (Vec<_>, Vec<_>) =
        entries.map(|entry| entry.expect("an entry").path()).partition(|path| path.is_dir());
    files.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    files.extend(folders.iter().flat_map(|folder| self::files(folder)));
    files
}

#[test]
fn an_edge_session_says_what_the_stock_edge_said_until_the_recording_was_cut() {
    let files = files(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts"));
    assert!(files.len() > 20, "{files:?}");
    let mut wrong = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        let mut transcript = Transcript::parse(&text).expect("a transcript");
        while let Some(last) = transcript.lines.pop() {
            if let Err(difference) = play_cloud(&transcript) {
                wrong.push(format!("{} cut before line {}: {difference}", path.display(), last.number));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
