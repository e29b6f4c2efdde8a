//! Processes that are killed when the test ends.

use std::fs::{File, TryLockError};
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// A running process. Its output goes to a file. It is killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    log: PathBuf,
    inner: std::process::Child,
}

impl Child {
    /// Starts a command. Its output goes to `<folder>/<name>.log`.
    ///
    /// # Errors
    /// The log cannot be created or the program cannot be started.
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
    /// The process has ended.
    pub fn interrupt(&self) -> Result<()> {
        let id = Pid::from_raw(i32::try_from(self.id())?).context("no process")?;
        Ok(kill_process(id, Signal::INT)?)
    }

    /// Sends SIGKILL and waits for the process to end.
    pub fn kill(&mut self) {
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }

    /// Fails with the last lines of the log if the process has ended.
    ///
    /// # Errors
    /// The process is no longer running.
    pub fn check_running(&mut self) -> Result<()> {
        match self.inner.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended with {status}:\n{}", self.name, self.log_tail(40)),
        }
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// The operating system cannot report the exit status.
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

/// Ports that [`free_port`] returns: below those that Linux uses for outgoing connections (`ip_local_port_range`). Such
/// a connection could otherwise occupy a port between its choice and its use.
const PORTS: Range<u16> = 15_000..32_000;

/// Number of ports that [`bind_both`] tries.
const BOTH_TRIES: usize = 50;

/// Held while this process forks a child, and while ports are tried: the forked copy would otherwise keep the port open
/// for a moment longer.
static COPIES: Mutex<()> = Mutex::new(());

/// Ports of this process: the locked files keep other test programs away from them until this process ends.
static CLAIMED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A port on 127.0.0.1 that is free for TCP and UDP, for programs that cannot report the port they chose. No two
/// processes that run at the same time get the same port, and a process gets each port only once.
///
/// # Errors
/// No port can be bound, or the folder of the locks cannot be written.
pub fn free_port() -> Result<u16> {
    let mut claimed = CLAIMED.lock();
    let _no_forks = COPIES.lock();
    // Programs that start at different ports seldom try one that another program has locked.
    let start = std::process::id() as usize * 997 + claimed.len();
    for step in 0..PORTS.len() {
        let port = PORTS.start + u16::try_from((start + step) % PORTS.len())?;
        let address = ("127.0.0.1", port);
        if let Some(lock) = claim(port)?
            && TcpListener::bind(address).is_ok()
            && UdpSocket::bind(address).is_ok()
        {
            claimed.push(lock);
            return Ok(port);
        }
    }
    bail!("no port of {PORTS:?} is free")
}

/// Locks the file of a port, which lasts as long as the file is open; none if a process has locked it.
fn claim(port: u16) -> Result<Option<File>> {
    let folder = std::env::temp_dir().join(format!("tombolo-ports-{}", geteuid().as_raw()));
    std::fs::create_dir_all(&folder)?;
    let file = File::options().create(true).append(true).open(folder.join(port.to_string()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Non-blocking sockets of one port on 127.0.0.1 for both protocols, for servers in this process. A port that is free
/// for one protocol may be in use for the other, so several are tried. [`free_port`] does not suit such servers: a
/// process that is being started elsewhere may keep a tried port open for a moment longer.
///
/// # Errors
/// No port can be bound.
pub fn bind_both() -> Result<(UdpSocket, TcpListener)> {
    for _ in 0..BOTH_TRIES {
        let tcp = TcpListener::bind(("127.0.0.1", 0))?;
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr()?) {
            tcp.set_nonblocking(true)?;
            udp.set_nonblocking(true)?;
            return Ok((udp, tcp));
        }
    }
    bail!("none of {BOTH_TRIES} ports was free for both protocols")
}
