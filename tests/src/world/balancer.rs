//! One address before several cloudcores: a load balancer that knows TCP and nothing more.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Relays each connection to the first port of its list that answers; ends when dropped.
#[derive(Debug)]
pub struct Balancer {
    /// Where it listens on loopback.
    pub port: u16,
    targets: Arc<Mutex<Vec<u16>>>,
    _tasks: JoinSet<()>,
}

impl Balancer {
    /// Starts before these ports of loopback.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(targets: Vec<u16>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (port, targets) = (listener.local_addr()?.port(), Arc::new(Mutex::new(targets)));
        let mut tasks = JoinSet::new();
        tasks.spawn(relay(listener, Arc::clone(&targets)));
        Ok(Self { port, targets, _tasks: tasks })
    }

    /// Gives new connections to this port first. Those that are open stay where they are.
    pub fn prefer(&self, port: u16) {
        let mut targets = self.targets.lock();
        targets.retain(|target| *target != port);
        targets.insert(0, port);
    }
}

async fn relay(listener: TcpListener, targets: Arc<Mutex<Vec<u16>>>) {
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let targets = targets.lock().clone();
        connections.spawn(async move {
            for target in targets {
                if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await {
                    // Either end may break off, as on any network.
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    return;
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}
