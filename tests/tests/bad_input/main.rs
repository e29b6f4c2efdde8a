//! Bad input for running processes: nothing crashes, and every answer says what was wrong, where, and what to do. The
//! table in docs/operations.md names these tests.

mod api;
mod away;
mod clock;
mod command_line;
mod disk;
mod frames;
mod join;
mod objects;

use std::process::Output;

/// Standard error of a command that must have failed, as one line.
fn refusal(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert!(!output.status.success(), "the command succeeded: {text}");
    assert!(output.status.code().is_some(), "a signal killed the command: {text}");
    assert!(output.stdout.is_empty(), "the command also printed {}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(text.lines().count(), 1, "not exactly one line: {text}");
    text
}

/// Fails unless the text contains all of these.
#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
