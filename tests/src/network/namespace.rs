//! A network namespace in which a test can set firewall rules.

use std::ffi::OsStr;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::connections::{relay, serve_each};

/// Backlog of a listener inside.
const BACKLOG: u32 = 128;

/// Number of namespaces that this process has created.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// A network namespace; it is removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    relays: JoinSet<()>,
}

impl Namespace {
    /// Creates a namespace with a loopback interface.
    ///
    /// # Errors
    /// When that is not permitted, or programs are missing.
    pub fn new() -> Result<Self> {
        let name = format!("tombolo-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name, relays: JoinSet::new() };
        namespace.ip(&["link", "set", "lo", "up"])?;
        run(&mut namespace.command("iptables-save")).context("iptables")?;
        Ok(namespace)
    }

    /// Its name in iproute2.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs inside the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip` of iproute2 inside the namespace.
    ///
    /// # Errors
    /// What it wrote to standard error.
    pub fn ip(&self, arguments: &[&str]) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name]).args(arguments)).map(drop)
    }

    /// The address translation rules inside.
    ///
    /// # Errors
    /// What `iptables-save` wrote to standard error.
    pub fn rules(&self) -> Result<String> {
        let output = run(self.command("iptables-save").args(["-t", "nat"]))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Removes the address translation rules inside, as a restart of a machine does.
    ///
    /// # Errors
    /// What `iptables` wrote to standard error.
    pub fn flush_rules(&self) -> Result<()> {
        for action in ["-F", "-X"] {
            run(self.command("iptables").args(["-t", "nat", action]))?;
        }
        Ok(())
    }

    /// Opens a listener inside.
    ///
    /// # Errors
    /// When the address cannot be bound there.
    pub fn listen(&self, inside: SocketAddr) -> Result<TcpListener> {
        let socket = self.socket()?;
        socket.set_reuseaddr(true)?;
        socket.bind(inside).with_context(|| format!("bind {inside} in {}", self.name))?;
        Ok(socket.listen(BACKLOG)?)
    }

    /// Opens a connection from inside.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        Ok(self.socket()?.connect(to).await?)
    }

    /// A socket belongs to the network of the thread that creates it, and this thread ends here.
    fn socket(&self) -> Result<TcpSocket> {
        let path = format!("/run/netns/{}", self.name);
        let made = std::thread::spawn(move || -> Result<TcpSocket> {
            let namespace = File::open(&path)?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(TcpSocket::new_v4()?)
        });
        made.join().ok().context("the thread has panicked")?
    }

    /// Makes an outside address reachable at an inside address, and returns the latter. Port 0 inside means any port.
    ///
    /// # Errors
    /// When the address inside cannot be bound.
    pub fn let_reach(&mut self, outside: SocketAddr, inside: SocketAddr) -> Result<SocketAddr> {
        let listener = self.listen(inside)?;
        let inside = listener.local_addr()?;
        self.relays.spawn(serve_each(listener, move |client| relay(client, vec![outside]), drop));
        Ok(inside)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}
