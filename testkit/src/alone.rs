//! Measures the memory of a piece of work, in a process that does nothing else meanwhile.

use std::process::Command;

/// Tells a process that it is the one that measures.
const ALONE: &str = "TOMBOLO_TEST_ALONE";

/// Whether this process runs only this test. If not, such a process is started, and the test fails unless it passes
/// there; the caller has nothing more to do. `module` is the caller's `module_path!()`.
///
/// # Panics
/// The process cannot be started, or the test does not exist or pass in it.
#[must_use]
pub fn alone(module: &str, test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("the path of the tests");
    let path =
        module.split_once("::").map_or_else(|| test.to_owned(), |(_, module)| format!("{module}::{test}"));
    let output = Command::new(own).args([&*path, "--exact", "--nocapture"]).env(ALONE, "1").output();
    let output = output.expect("a process for the test");
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{path} alone:\n{out}\n{error}");
    false
}

/// The memory growth of this process.
#[derive(Debug)]
pub struct Growth(usize);

impl Growth {
    /// Begins measuring.
    ///
    /// # Panics
    /// The system does not report the memory of the process.
    #[must_use]
    pub fn begin() -> Self {
        std::fs::write("/proc/self/clear_refs", "5").expect("reset of the memory peak");
        Self(status("VmRSS:"))
    }

    /// The largest growth since [`Self::begin`], in bytes.
    ///
    /// # Panics
    /// See [`Self::begin`].
    #[must_use]
    pub fn most(&self) -> usize {
        status("VmHWM:").saturating_sub(self.0)
    }
}

/// A figure from this process's status, in bytes.
fn status(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let figure = text.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
    let kibibytes = figure.trim().trim_end_matches("kB").trim_end();
    kibibytes.parse::<usize>().expect("a number") * 1024
}
