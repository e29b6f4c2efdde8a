//! A network of its own, in which rules can be made.

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

/// Connections that may wait to be accepted by a listener inside.
const BACKLOG: u32 = 128;

/// Namespaces that this process has made.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// A network namespace; it is removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    relays: JoinSet<()>,
}

impl Namespace {
    /// Makes one with a loopback interface.
    ///
    /// # Errors
    /// Where that is not allowed, or programs are missing.
    pub fn new() -> Result<Self> {
        let name = format!("tombolo-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name, relays: JoinSet::new() };
        namespace.ip(&["link", "set", "lo", "up"])?;
        run(&mut namespace.command("iptables-save")).context("iptables")?;
        Ok(namespace)
    }

    /// Its name, as iproute2 knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip` of iproute2 on the inside.
    ///
    /// # Errors
    /// What it wrote to standard error.
    pub fn ip(&self, arguments: &[&str]) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name]).args(arguments)).map(drop)
    }

    /// The rules of address translation inside.
    ///
    /// # Errors
    /// What `iptables-save` wrote to standard error.
    pub fn rules(&self) -> Result<String> {
        let output = run(self.command("iptables-save").args(["-t", "nat"]))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Forgets the rules of address translation inside, as a machine does that starts again.
    ///
    /// # Errors
    /// What `iptables` wrote to standard error.
    pub fn flush_rules(&self) -> Result<()> {
        for action in ["-F", "-X"] {
            run(self.command("iptables").args(["-t", "nat", action]))?;
        }
        Ok(())
    }

    /// A listener inside.
    ///
    /// # Errors
    /// When the address cannot be bound there.
    pub fn listen(&self, inside: SocketAddr) -> Result<TcpListener> {
        let socket = self.socket()?;
        socket.set_reuseaddr(true)?;
        socket.bind(inside).with_context(|| format!("bind {inside} in {}", self.name))?;
        Ok(socket.listen(BACKLOG)?)
    }

    /// A connection from inside.
    ///
    /// # Errors
    /// When nobody answers there.
    pub async fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        Ok(self.socket()?.connect(to).await?)
    }

    /// A socket belongs to the network that its thread is in when it is made, and that thread ends here.
    fn socket(&self) -> Result<TcpSocket> {
        let path = format!("/run/netns/{}", self.name);
        let made = std::thread::spawn(move || -> Result<TcpSocket> {
            let namespace = File::open(&path)?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(TcpSocket::new_v4()?)
        });
        made.join().ok().context("the thread has panicked")?
    }

    /// Lets programs inside reach an address outside by one inside; port 0 stands for any. Gives the one inside.
    ///
    /// # Errors
    /// When the address inside cannot be bound.
    pub fn let_reach(&mut self, outside: SocketAddr, inside: SocketAddr) -> Result<SocketAddr> {
        let listener = self.listen(inside)?;
        let inside = listener.local_addr()?;
        self.relays.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(outside).await {
                        // Either end may break off, as on any network.
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
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
