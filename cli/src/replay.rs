//! `tombolo replay`: replays recorded traffic against this implementation.

mod allotted;
mod api;
mod edge_frames;
mod edge_side;
mod grants;
mod socket;
mod target;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use tombolo_replay::{Difference, Summary, Transcript, play_cloud, with_api_lines};

pub use edge_side::{Run, play_edge};
pub use target::ReplayTarget;

/// Maximum size of a transcript, in bytes.
const FILE_LEN_MAX: u64 = 1024 * 1024 * 1024;

/// The side of the transcript to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// The edge's side, against a cloudcore.
    Edge,
    /// The cloud's side, against an edge session.
    Cloud,
}

/// Options of `tombolo replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayOptions {
    /// The transcript: JSON lines, as written by `cloudcore --record`.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Which side to play.
    #[arg(long = "as", value_enum, default_value_t = Side::Edge)]
    pub side: Side,

    /// As edge: `HOST:PORT` of a cloudcore's WebSocket listener. By default a cloudcore is started for this run.
    #[arg(long, value_name = "HOST:PORT", requires_all = ["join", "kubeconfig"])]
    pub cloud: Option<String>,

    /// With --cloud: `HOST:PORT` of its QUIC listener, for connections recorded over QUIC.
    #[arg(long, value_name = "HOST:PORT", requires = "cloud")]
    pub quic: Option<String>,

    /// With --cloud: `HOST:PORT` of its join endpoints.
    #[arg(long, value_name = "HOST:PORT", requires = "cloud")]
    pub join: Option<String>,

    /// With --cloud: kubeconfig of its cluster's administrator. The run writes to this cluster.
    #[arg(long, value_name = "FILE", requires = "cloud")]
    pub kubeconfig: Option<PathBuf>,

    /// Write the transcript with derived lines for the Kubernetes API to this file, and do not replay.
    #[arg(long, value_name = "FILE")]
    pub derive: Option<PathBuf>,
}

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No difference from the recording.
    Same,
    /// At least one difference; it was printed.
    Different,
}

/// Plays the transcript.
///
/// # Errors
/// When it cannot be read or played.
pub async fn run(options: &ReplayOptions) -> Result<Verdict> {
    let transcript = read(&options.file)?;
    if let Some(line) = transcript.cut {
        println!("the recording ends in the middle of line {line}; this line is ignored");
    }
    if let Some(path) = &options.derive {
        let text = with_api_lines(&transcript).to_text();
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("derived transcript written to {}", path.display());
        return Ok(Verdict::Same);
    }
    let outcome = match options.side {
        Side::Cloud => play_cloud(&transcript),
        Side::Edge => {
            let target = match (&options.cloud, &options.join, &options.kubeconfig) {
                (Some(cloud), Some(join), Some(kubeconfig)) => {
                    ReplayTarget::given(cloud, options.quic.as_deref(), join, kubeconfig).await?
                }
                _ => ReplayTarget::start().await?,
            };
            let played = play_edge(&with_api_lines(&transcript), &target).await;
            target.stop().await;
            let run = played?;
            run.preconditions.iter().for_each(|line| println!("precondition: {line}"));
            run.outcome
        }
    };
    Ok(report(outcome))
}

/// Reads a transcript.
///
/// # Errors
/// The error names the file and the line.
pub fn read(path: &Path) -> Result<Transcript> {
    let length = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(
        length <= FILE_LEN_MAX,
        "{} has {length} bytes; a transcript may have at most {FILE_LEN_MAX}",
        path.display()
    );
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Transcript::parse(&text).with_context(|| format!("{} is not a valid transcript", path.display()))
}

fn report(outcome: Result<Summary, Difference>) -> Verdict {
    match outcome {
        Ok(summary) => {
            for (rule, count) in summary.rules.iter() {
                println!("rule {rule}: {count} ({})", rule.allows());
            }
            let Summary { matched, excused, besides, .. } = summary;
            println!(
                "no difference: {matched} frames as recorded, {excused} excused by rules, {besides} extra"
            );
            Verdict::Same
        }
        Err(difference) => {
            println!("{difference}");
            Verdict::Different
        }
    }
}
