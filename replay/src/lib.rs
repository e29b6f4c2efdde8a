//! Replay of recorded traffic: transcripts, what they say about the Kubernetes API, and whether other traffic means the
//! same.
//!
//! Nothing here has sockets or a clock. [`Transcript`] is what was recorded; [`with_api_lines`] adds what the API saw;
//! a [`Matcher`] is told what a cloud under test does and says where that differs; [`play_cloud`] plays the cloud's side
//! against an edge session. Where a difference is meant, a [`Rule`] says so and why.

mod application;
mod cloud_side;
mod compare;
mod derive;
mod frame;
mod holdings;
mod identifiers;
mod kinds;
mod matcher;
mod own;
mod redact;
mod rules;
mod run;
mod soundness;
mod tombolo;
mod transcript;
mod value;

pub use cloud_side::play_cloud;
pub use compare::Mismatch;
pub use derive::with_api_lines;
pub use frame::{Ask, Frame, Key};
pub use holdings::Holdings;
pub use matcher::{Call, Difference, Matcher, Progress, Summary, approved, call_of};
pub use own::{is_clusters_own, is_machinery};
pub use redact::{redact, redact_object};
pub use rules::{Rule, Tally};
pub use run::{Happening, judge};
pub use tombolo::{DIALECT as TOMBOLO, ReadError, render, wire};
pub use transcript::{Event, LINE_LEN_MAX, LINES_MAX, Line, Transcript, TranscriptError, Verb};
