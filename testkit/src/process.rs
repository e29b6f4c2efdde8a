//! Processes that end with the test.

use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

/// A running process, its output in a file, killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    log: PathBuf,
    inner: std::process::Child,
}

impl Child {
    /// Starts a command with its output in `<folder>/<name>.log`.
    ///
    /// # Errors
    /// When the log cannot be made or the program cannot be started.
    pub fn spawn(name: &str, folder: &Path, command: &mut Command) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let one_at_a_time = COPIES.lock();
        let inner = command.spawn();
        drop(one_at_a_time);
        let inner = inner.with_context(|| format!("start {name}: {:?}", command.get_program()))?;
        Ok(Self { name: name.to_owned(), log, inner })
    }

    /// Process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Sends SIGINT, as Ctrl-C does.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn interrupt(&self) -> Result<()> {
        let id = Pid::from_raw(i32::try_from(self.id())?).context("no process")?;
        Ok(kill_process(id, Signal::INT)?)
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }

    /// Fails with the end of the log when the process has ended.
    ///
    /// # Errors
    /// When the process is no longer running.
    pub fn check_running(&mut self) -> Result<()> {
        match self.inner.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended with {status}:\n{}", self.name, self.log_tail(40)),
        }
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// When the operating system cannot tell.
    pub fn wait(&mut self) -> Result<std::process::ExitStatus> {
        Ok(self.inner.wait()?)
    }

    /// All output so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Last lines of the output.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let text = self.log();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports that [`free_port`] gives: below those that Linux takes for outgoing connections (`ip_local_port_range`), which
/// would otherwise take one between its choice and its use.
const PORTS: Range<u16> = 15_000..32_000;

/// Ports that [`bind_both`] tries.
const BOTH_TRIES: usize = 50;

/// Held while a copy of this process is made that becomes another program, and while ports are tried: the copy would hold
/// them for a moment longer.
static COPIES: Mutex<()> = Mutex::new(());

/// Ports that this process has asked for so far.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A port on 127.0.0.1 that is free for TCP and UDP, for programs that cannot report the port they chose. A process is
/// given every port once, and starts at a place of its own.
///
/// # Errors
/// When no port can be bound.
pub fn free_port() -> Result<u16> {
    let _one_at_a_time = COPIES.lock();
    let start = std::process::id() as usize * 997;
    for _ in PORTS {
        let step = (start + TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS.len();
        let port = PORTS.start + u16::try_from(step)?;
        let address = ("127.0.0.1", port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port of {PORTS:?} is free")
}

/// Sockets of one port on 127.0.0.1 for both protocols, not blocking, for servers of this process. A port that one protocol
/// has free may be taken for the other, so several are tried. [`free_port`] is not for them: a process that is being started
/// elsewhere may hold what it tried a moment longer.
///
/// # Errors
/// When no port can be bound.
pub fn bind_both() -> Result<(UdpSocket, TcpListener)> {
    for _ in 0..BOTH_TRIES {
        let tcp = TcpListener::bind(("127.0.0.1", 0))?;
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr()?) {
            tcp.set_nonblocking(true)?;
            udp.set_nonblocking(true)?;
            return Ok((udp, tcp));
        }
    }
    bail!("of {BOTH_TRIES} ports none was free for both protocols")
}
