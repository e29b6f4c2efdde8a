//! What the operating system says about the process under test.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Clock ticks a second of `/proc/PID/stat`: fixed at 100 for user space on Linux.
const TICKS_PER_SECOND: u64 = 100;

/// A process, watched from outside through `/proc`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process {
    pid: u32,
}

/// One reading.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reading {
    /// Processor time since the process started, user and system.
    pub(super) cpu: Duration,
    /// Resident memory, in bytes.
    pub(super) resident: u64,
}

impl Process {
    /// Watches the process with this id.
    ///
    /// # Errors
    /// When there is no such process.
    pub(super) fn new(pid: u32) -> Result<Self> {
        let process = Self { pid };
        process.read()?;
        Ok(process)
    }

    /// Processor time and memory now.
    ///
    /// # Errors
    /// When the process is gone.
    pub(super) fn read(self) -> Result<Reading> {
        let gone = || format!("process {} is gone", self.pid);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).with_context(gone)?;
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).with_context(gone)?;
        Ok(Reading {
            cpu: cpu_from_stat(&stat).context("cannot read /proc/PID/stat")?,
            resident: resident_from_status(&status).context("cannot read /proc/PID/status")?,
        })
    }
}

fn cpu_from_stat(stat: &str) -> Option<Duration> {
    // The command name may have spaces and parentheses: fields are counted after the last one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let total = ticks(11)?.checked_add(ticks(12)?)?;
    Some(Duration::from_millis(total * (1000 / TICKS_PER_SECOND)))
}

fn resident_from_status(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Process, cpu_from_stat, resident_from_status};

    #[test]
    fn reads_what_linux_writes() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 4 0 100 1 1";
        assert_eq!(cpu_from_stat(stat), Some(Duration::from_secs(3)));
        assert_eq!(resident_from_status("Name:\tx\nVmRSS:\t     512 kB\n"), Some(512 * 1024));
        assert!(Process::new(std::process::id()).unwrap().read().unwrap().resident > 0);
        assert!(Process::new(u32::MAX).is_err());
    }
}
