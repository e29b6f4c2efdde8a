//! A network of its own, in which rules can be made.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A network namespace; it is removed when dropped.
pub(crate) struct Namespace {
    name: String,
    relays: JoinSet<()>,
}

impl Namespace {
    /// Makes one with a loopback interface.
    ///
    /// # Errors
    /// Where that is not allowed, or programs are missing.
    pub(crate) fn new() -> Result<Self> {
        let name = format!("tombolo-{}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name, relays: JoinSet::new() };
        run(namespace.command("ip").args(["link", "set", "lo", "up"]))?;
        run(&mut namespace.command("iptables-save")).context("iptables")?;
        Ok(namespace)
    }

    /// A command that will run inside.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// The rules of address translation inside.
    pub(crate) fn rules(&self) -> Result<String> {
        let output = run(self.command("iptables-save").args(["-t", "nat"]))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lets programs inside reach an address outside: gives where, on the loopback interface inside.
    pub(crate) fn let_reach(&mut self, outside: SocketAddr) -> Result<SocketAddr> {
        let path = format!("/run/netns/{}", self.name);
        // A socket belongs to the network that its thread is in when it is made, and that thread ends here.
        let made = std::thread::spawn(move || -> Result<TcpListener> {
            let namespace = std::fs::File::open(&path)?;
            move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(LinkNameSpaceType::Network),
            )?;
            let listener = TcpListener::bind("127.0.0.1:0")?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = made.join().ok().context("the thread has panicked")??;
        let inside = listener.local_addr()?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
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
