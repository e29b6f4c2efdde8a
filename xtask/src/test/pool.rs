//! Runs the test programs of the workspace side by side: one that computes beside [`WAITING_WORKERS`] that mostly wait
//! for the programs they start.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::repeat::Report;
use crate::run;

/// How many of the slowest tests are listed at the end.
const SLOWEST: usize = 10;

/// The package whose programs start others and wait for them.
const WAITING_PACKAGE: &str = "tombolo-tests";

/// How many programs of [`WAITING_PACKAGE`] run at a time. More of them miss deadlines on two cores.
const WAITING_WORKERS: usize = 2;

/// A compiled test program.
#[derive(Debug)]
pub(super) struct Program {
    /// As cargo names it: the package and the target.
    name: String,
    path: PathBuf,
    /// Folder of its package, which is the working directory that tests expect.
    folder: PathBuf,
}

/// Builds the test programs that `command`, a `cargo test`, would run.
///
/// # Errors
/// The programs do not build, or cargo's messages cannot be read.
pub(super) fn build(command: &mut Command) -> Result<VecDeque<Program>> {
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    eprintln!("$ {}", run::describe(command));
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test does not start")?;
    let output = child.stdout.take().context("cargo test has no output")?;
    let mut programs = VecDeque::new();
    for line in BufReader::new(output).lines() {
        let message: Value = serde_json::from_str(&line?).context("cannot read a message of cargo")?;
        programs.extend(program(&message));
    }
    if !child.wait()?.success() {
        bail!("the tests cannot be built: see above");
    }
    Ok(programs)
}

/// The program that a message of cargo describes; none for other messages.
fn program(message: &Value) -> Option<Program> {
    let path = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = message["package_id"].as_str()?.rsplit(['/', '#']).next()?;
    let package = package.split('@').next().unwrap_or(package);
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    Some(Program { name: format!("{package} {kind} {target}"), path: path.into(), folder })
}

/// Runs the programs with the variables of `environment`. Prints each program's output once it has ended, and the
/// slowest tests.
///
/// # Errors
/// A program cannot be started or read.
pub(super) fn run(programs: VecDeque<Program>, environment: &Command) -> Result<Report> {
    let (waiting, computing): (VecDeque<_>, VecDeque<_>) =
        programs.into_iter().partition(|program| program.name.starts_with(WAITING_PACKAGE));
    let outcome = Mutex::new((Report::passing(), Vec::new()));
    let work = |programs: &Mutex<VecDeque<Program>>| -> Result<()> {
        while let Some(program) = lock(programs, VecDeque::pop_front) {
            let (output, success, took) = program.run(environment)?;
            lock(&outcome, |(report, times)| -> Result<()> {
                let mut out = std::io::stdout().lock();
                writeln!(out, "\n     Running {} ({:.1} s)", program.name, took.as_secs_f64())?;
                out.write_all(&output)?;
                for line in String::from_utf8_lossy(&output).lines() {
                    report.take(line);
                    times.extend(time(line).map(|(test, time)| (time, format!("{}: {test}", program.name))));
                }
                report.and(success);
                Ok(())
            })?;
        }
        Ok(())
    };
    let (waiting, computing) = (Mutex::new(waiting), Mutex::new(computing));
    std::thread::scope(|scope| {
        let mut workers: Vec<_> = (0..WAITING_WORKERS).map(|_| scope.spawn(|| work(&waiting))).collect();
        workers.push(scope.spawn(|| work(&computing)));
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    let (report, mut times) = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    times.sort_by(|one, other| other.0.total_cmp(&one.0));
    println!("\nthe slowest tests:");
    times.iter().take(SLOWEST).for_each(|(time, test)| println!("  {time:6.1} s  {test}"));
    Ok(report)
}

fn lock<T, R>(what: &Mutex<T>, with: impl FnOnce(&mut T) -> R) -> R {
    with(&mut what.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

impl Program {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs the program to its end. Returns its output, whether all tests passed, and the duration.
    fn run(&self, environment: &Command) -> Result<(Vec<u8>, bool, Duration)> {
        let set: BTreeMap<_, _> = environment.get_envs().collect();
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        for (name, value) in set {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // Reporting times of single tests is an unstable option of libtest. This variable enables it on every channel.
        command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]);
        let (started, name) = (Instant::now(), &self.name);
        let ended = command.stderr(Stdio::piped()).stdout(Stdio::piped()).output();
        let mut ended = ended.with_context(|| format!("{name} does not start"))?;
        ended.stdout.append(&mut ended.stderr);
        Ok((ended.stdout, ended.status.success(), started.elapsed()))
    }
}

/// The test that a line of libtest names, and its duration in seconds.
fn time(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let time = rest.split_once('<')?.1.strip_suffix("s>")?;
    Some((name, time.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(time("test a::b ... ok <1.250s>"), Some(("a::b", 1.25)));
        assert_eq!(time("test a::b ... FAILED <0.001s>"), Some(("a::b", 0.001)));
        assert_eq!(time("test a::b ... ignored"), None);
        assert_eq!(time("running 3 tests"), None);
    }

    #[test]
    fn test_programs_are_found_among_the_messages_of_cargo() {
        let message = |test: bool| {
            json!({"reason": "compiler-artifact", "package_id": "path+file:///w/tests#tombolo-tests@0.1.0",
                "manifest_path": "/w/tests/Cargo.toml", "target": {"kind": ["test"], "name": "docs"},
                "profile": {"test": test}, "executable": "/w/target/debug/deps/docs-1"})
        };
        let found = program(&message(true)).unwrap();
        assert_eq!((found.name.as_str(), found.folder), ("tombolo-tests test docs", "/w/tests".into()));
        assert!(program(&message(false)).is_none(), "a program of the product");
        assert!(program(&json!({"reason": "build-finished", "success": true})).is_none());
    }
}
