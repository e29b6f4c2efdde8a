//! What Linux tells about another process and about the machine.

use std::fs;

use anyhow::Context;

/// CPU time of all threads of a process, in nanoseconds.
pub(crate) fn cpu_nanos(pid: u32) -> anyhow::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = entry?.path().join("schedstat");
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(path) else { continue };
        let nanos = text.split_whitespace().next().context("empty schedstat")?;
        total += nanos.parse::<u64>()?;
    }
    Ok(total)
}

/// CPU time as the kernel accounts it, user and system, in clock ticks of 10 ms: a check on the finer figure.
pub(crate) fn cpu_ticks(pid: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold spaces; utime and stime are the 12th and 13th fields after it.
    let fields = text.rsplit_once(')').context("bad stat")?.1;
    let mut times = fields.split_whitespace().skip(11);
    let mut next = || times.next().context("short stat")?.parse::<u64>().context("bad stat");
    Ok(next()? + next()?)
}

/// Resident memory, in bytes.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}

/// One line about the machine: processor, cores, kernel, load.
pub(crate) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    format!("{model}, {cores} cores, Linux {}, load {load}", kernel.trim())
}
