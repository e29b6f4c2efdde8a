//! Replay of recorded traffic: transcripts, the Kubernetes API changes that they imply, and comparison with other
//! traffic.
//!
//! Nothing here uses sockets or a clock. [`Transcript`] is the recording. [`with_api_lines`] adds the changes that the
//! API saw. A [`Matcher`] is fed what a cloud under test does, and reports differences. [`play_cloud`] plays the
//! cloud's side against an edge session. A [`Rule`] names each intended difference and the reason for it.

mod application;
mod cloud_side;
mod cluster_objects;
mod compare;
mod derive;
mod frame;
mod holdings;
mod identifiers;
mod kinds;
mod matcher;
mod redact;
mod rules;
mod run;
mod soundness;
mod tombolo;
mod transcript;
mod value;

pub use cloud_side::play_cloud;
pub use cluster_objects::{is_clusters_own, is_machinery};
pub use compare::Mismatch;
pub use derive::with_api_lines;
pub use frame::{Ask, Frame, Key};
pub use holdings::Holdings;
pub use matcher::{Call, Difference, Matcher, Progress, Summary, approved, call_of};
pub use redact::{redact, redact_object};
pub use rules::{Rule, Tally};
pub use run::{Happening, judge};
pub use tombolo::{DIALECT as TOMBOLO, ReadError, render, wire};
pub use transcript::{Event, LINE_LEN_MAX, LINES_MAX, Line, Transcript, TranscriptError, Verb};
pub use value::without_empty;
