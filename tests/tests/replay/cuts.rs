//! Recordings that end early: whatever their last line is, they are judged.

use std::path::PathBuf;

use futures::StreamExt as _;
use tombolo_replay::{Transcript, with_api_lines};

use crate::play;

/// Runs at a time.
const RUNS: usize = 4;

/// A recording and lines behind which it is cut: in the middle of what is under way.
const CUTS: [(&str, &[usize]); 1] = [("odd/kubeedge-many-watches.jsonl", &[48])];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_that_was_cut_ends_with_a_judgement() {
    let cuts = CUTS.iter().flat_map(|(name, lines)| lines.iter().map(move |lines| (*name, *lines)));
    let runs = futures::stream::iter(cuts).map(|(name, lines)| async move {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("transcripts").join(name);
        let text = std::fs::read_to_string(&path).expect("readable");
        let text: Vec<&str> = text.lines().take(lines).collect();
        let transcript = Transcript::parse(&(text.join("\n") + "\n")).expect("a transcript");
        println!("{name} cut behind line {lines}");
        play(&with_api_lines(&transcript)).await;
    });
    runs.buffer_unordered(RUNS).collect::<Vec<()>>().await;
}
