//! One address for several cloudcores: a load balancer at TCP level.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;
use rand::Rng;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use crate::network::{relay, serve_each};

/// Relays each connection to the first port of its list that answers. It stops when dropped.
#[derive(Debug)]
pub struct Balancer {
    /// Its port on loopback.
    pub port: u16,
    targets: Arc<Mutex<Vec<u16>>>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    _tasks: JoinSet<()>,
}

impl Balancer {
    /// Starts a balancer for these ports on loopback.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(targets: Vec<u16>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (port, targets) = (listener.local_addr()?.port(), Arc::new(Mutex::new(targets)));
        let (mut tasks, connections) = (JoinSet::new(), Arc::default());
        tasks.spawn(serve(listener, Arc::clone(&targets), Arc::clone(&connections)));
        Ok(Self { port, targets, connections, _tasks: tasks })
    }

    /// Tries this port first for new connections. Open connections are not moved.
    pub fn prefer(&self, port: u16) {
        let mut targets = self.targets.lock();
        targets.retain(|target| *target != port);
        targets.insert(0, port);
    }

    /// Cuts one in `number` of the open connections, chosen at random, and returns how many were cut.
    pub fn cut_one_in(&self, number: u32, rng: &mut impl Rng) -> usize {
        let mut connections = self.connections.lock();
        connections.retain(|connection| !connection.is_finished());
        let mut cut = 0;
        for connection in connections.iter().filter(|_| rng.random_range(0..number) == 0) {
            connection.abort();
            cut += 1;
        }
        cut
    }
}

async fn serve(listener: TcpListener, targets: Arc<Mutex<Vec<u16>>>, open: Arc<Mutex<Vec<AbortHandle>>>) {
    let serve = |client| {
        let targets = targets.lock().iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
        relay(client, targets)
    };
    serve_each(listener, serve, |connection| open.lock().push(connection)).await;
}
