//! Figures from the operating system about a process under test, and about the machine.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Interval between memory readings while waiting for memory to settle.
const REST_INTERVAL: Duration = Duration::from_secs(1);

/// How long memory may take to settle; after that the current reading counts.
const REST_DEADLINE: Duration = Duration::from_secs(20);

/// A process, observed from outside through `/proc`.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    pid: u32,
}

/// One reading.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    /// Processor time of all its threads since they started, user and system, as the scheduler counts it.
    pub cpu: Duration,
    /// Resident memory, in bytes.
    pub resident: u64,
}

impl Process {
    /// Observes the process with this id.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn new(pid: u32) -> Result<Self> {
        let process = Self { pid };
        process.read()?;
        Ok(process)
    }

    /// Current processor time and memory.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn read(self) -> Result<Reading> {
        let gone = || format!("process {} does not exist", self.pid);
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).with_context(gone)?;
        let resident = resident_from_status(&status).context("cannot read /proc/PID/status")?;
        let mut cpu = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid)).with_context(gone)? {
            // A thread may end between the listing and the reading.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            cpu += cpu_from_schedstat(&text).context("cannot read /proc/PID/task/TID/schedstat")?;
        }
        Ok(Reading { cpu, resident })
    }

    /// The first reading whose memory differs by less than a thousandth from that of the reading a second before; after
    /// 20 seconds, the current reading.
    ///
    /// # Errors
    /// When the process is gone.
    pub async fn at_rest(self) -> Result<Reading> {
        let mut last = self.read()?;
        let end = Instant::now() + REST_DEADLINE;
        loop {
            tokio::time::sleep(REST_INTERVAL).await;
            let reading = self.read()?;
            if reading.resident.abs_diff(last.resident) < last.resident / 1000 || Instant::now() >= end {
                return Ok(reading);
            }
            last = reading;
        }
    }
}

/// One line about this machine: processor, cores, kernel.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{}, {cores} cores, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}

fn cpu_from_schedstat(text: &str) -> Option<Duration> {
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn resident_from_status(status: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Process, cpu_from_schedstat, resident_from_status};

    #[test]
    fn process_figures_of_linux_are_parsed() {
        assert_eq!(cpu_from_schedstat("3000000001 5 7\n"), Some(Duration::new(3, 1)));
        assert_eq!(cpu_from_schedstat(""), None);
        assert_eq!(resident_from_status("Name:\tx\nVmRSS:\t     512 kB\n"), Some(512 * 1024));
        let own = Process::new(std::process::id()).unwrap().read().unwrap();
        assert!(own.resident > 0 && own.cpu > Duration::ZERO);
        assert!(Process::new(u32::MAX).is_err());
    }
}
