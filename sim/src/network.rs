//! The network: a cable for each machine of a node, over which its connections lead to the replicas.
//!
//! Faults belong to the cable. They concern the connections that exist and those that are made later, and each is taken
//! back by the call with the opposite meaning, so that faults may overlap. Everything that a sender hands to a
//! connection is observed, as bytes, and read by the oracle's own reader.

mod cable;
mod connection;
mod documents;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tombolo_link::client::STEP_TIMEOUT;
use tombolo_link::server::{Accepted, AcceptedKubeEdge, Arrival};
use tombolo_link::{DocumentLink, Link, LinkError, mem};
use tombolo_proto::NodeId;

use self::cable::Cable;
use self::connection::{Connection, ConnectionEnds, ConnectionWire, SentPackages};
use crate::observation::{Millis, Seen};
use crate::plan::LinkDirection;

/// Told of what is seen on the network. It is called in the middle of sending, so it must not use the network.
pub type NetworkObserver = Arc<dyn Fn(Seen) + Send + Sync>;

/// The network. Clones are the same one.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<NetworkState>>,
    /// A cable has changed.
    changed: Arc<Notify>,
    tell: NetworkObserver,
    /// Time that a frame takes without faults.
    latency: Duration,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct NetworkState {
    /// Where running replicas get their connections.
    doors: BTreeMap<u32, mpsc::UnboundedSender<Arrival>>,
    cables: BTreeMap<String, Cable>,
    /// Those of which an end lives.
    connections: BTreeMap<u64, Connection>,
    /// Number of the newest connection.
    newest: u64,
}

impl Network {
    /// A network on which each frame takes so long.
    #[must_use]
    pub fn new(latency: Duration, tell: impl Fn(Seen) + Send + Sync + 'static) -> Self {
        Self { state: Arc::default(), changed: Arc::default(), tell: Arc::new(tell), latency }
    }

    /// A replica accepts connections, until what is returned is dropped.
    #[must_use]
    pub fn listen(&self, replica: u32) -> mpsc::UnboundedReceiver<Arrival> {
        let (door, arrivals) = mpsc::unbounded_channel();
        self.state.lock().doors.insert(replica, door);
        self.changed.notify_waiters();
        arrivals
    }

    /// The next connections of a machine lead to this replica, or to the next one that runs.
    pub fn lead(&self, machine: &str, replica: u32) {
        self.state.lock().cable(machine).replica = replica;
    }

    /// Connects a machine with the certificate of this node.
    ///
    /// # Errors
    /// No replica runs, or the cable carried nothing for as long as a client waits.
    pub async fn dial(&self, machine: &str, node: &NodeId) -> Result<Link, LinkError> {
        let (number, replica) = self.reach(machine, node).await?;
        let (cloud, edge, faults) = mem::pair(node.clone());
        let ends = ConnectionEnds::new(number);
        let mut sent = SentPackages::new(ends.clone(), Arc::clone(&self.tell));
        faults.observe(move |crossing| sent.see(&crossing));
        let (remote, transport) = (cloud.peer().remote, cloud.peer().transport);
        let arrival = Arrival::Tombolo(Accepted { link: cloud, node: node.clone(), remote, transport });
        let connection = Connection::new(machine, ConnectionWire::Frames(faults), ends);
        self.made(number, connection, (replica, arrival));
        Ok(edge)
    }

    /// As [`Network::dial`], with dialect `kubeedge`.
    ///
    /// # Errors
    /// As [`Network::dial`].
    pub async fn dial_documents(&self, machine: &str, node: &NodeId) -> Result<DocumentLink, LinkError> {
        let (number, replica) = self.reach(machine, node).await?;
        let ends = ConnectionEnds::new(number);
        let (cloud, edge, faults) =
            documents::pair(node, number, (ends.clone(), Arc::clone(&self.tell))).await;
        let remote = cloud.peer().remote;
        let arrival = Arrival::KubeEdge(AcceptedKubeEdge { link: cloud, node: node.clone(), remote });
        let connection = Connection::new(machine, ConnectionWire::Documents(faults), ends);
        self.made(number, connection, (replica, arrival));
        Ok(edge)
    }

    /// Takes a new connection into the network, and hands it to its replica.
    fn made(&self, number: u64, connection: Connection, (replica, arrival): (u32, Arrival)) {
        let mut state = self.state.lock();
        connection.apply(state.cable(&connection.machine), self.latency);
        state.connections.insert(number, connection);
        if let Some(door) = state.doors.get(&replica) {
            // A replica that ends now drops it, which the edge is told.
            let _ = door.send(arrival);
        }
    }

    /// Waits for an answer through the cable. Returns the number of the connection, and the replica that answered.
    async fn reach(&self, machine: &str, node: &NodeId) -> Result<(u64, u32), LinkError> {
        let reached = async {
            loop {
                let changed = self.changed.notified();
                if self.state.lock().cable(machine).is_whole() {
                    return;
                }
                changed.await;
            }
        };
        let reached = tokio::time::timeout(STEP_TIMEOUT, reached).await;
        reached.map_err(|_| broken(io::ErrorKind::TimedOut))?;
        tokio::time::sleep(2 * self.latency).await;
        let mut state = self.state.lock();
        let replica = state.running(machine).ok_or_else(|| broken(io::ErrorKind::ConnectionRefused))?;
        state.newest += 1;
        let number = state.newest;
        drop(state);
        let (node, machine) = (node.to_string(), machine.to_owned());
        (self.tell)(Seen::Connected { connection: number, node, machine, replica });
        Ok((number, replica))
    }

    /// The cable of a machine carries nothing that way from now on, and nobody is told; or it does again, and what was
    /// written meanwhile arrives.
    pub fn cut(&self, machine: &str, direction: LinkDirection, cut: bool) {
        self.change(machine, |cable| cable.cut(direction, cut));
    }

    /// Each frame that way takes so much longer from now on, or no longer.
    pub fn delay(&self, machine: &str, direction: LinkDirection, millis: Millis, begins: bool) {
        self.change(machine, |cable| cable.delay(direction, millis, begins));
    }

    /// A lane carries nothing that way from now on, or does again.
    pub fn hold(&self, machine: &str, lane: u8, direction: LinkDirection, held: bool) {
        self.change(machine, |cable| cable.hold(lane, direction, held));
    }

    /// The connections of a machine break, and both ends are told.
    pub fn reset(&self, machine: &str) {
        self.each(machine, Connection::cut);
    }

    /// A machine loses power. Call this before its program ends: nobody is told of that. The other ends of its
    /// connections live until they notice, at the latest when the machine is [back](Self::power_back).
    pub fn power_lost(&self, machine: &str) {
        self.change(machine, |cable| cable.is_dark = true);
    }

    /// A machine has power again. It answers what belongs to connections of before with a reset.
    pub fn power_back(&self, machine: &str) {
        self.reset(machine);
        self.change(machine, |cable| cable.is_dark = false);
    }

    /// Numbers of the connections of a machine that live at both ends.
    #[must_use]
    pub fn living(&self, machine: &str) -> Vec<u64> {
        let state = self.state.lock();
        let living =
            state.connections.iter().filter(|(_, one)| one.machine == machine && one.lives_at_both_ends());
        living.map(|(number, _)| *number).collect()
    }

    fn change(&self, machine: &str, change: impl FnOnce(&mut Cable)) {
        let mut state = self.state.lock();
        change(state.cable(machine));
        let cable = state.cable(machine).clone();
        drop(state);
        self.each(machine, |connection| connection.apply(&cable, self.latency));
        self.changed.notify_waiters();
    }

    fn each(&self, machine: &str, change: impl Fn(&Connection)) {
        let mut state = self.state.lock();
        state.connections.retain(|_, connection| !connection.is_over());
        state.connections.values().filter(|connection| connection.machine == machine).for_each(change);
    }
}

impl NetworkState {
    fn cable(&mut self, machine: &str) -> &mut Cable {
        self.cables.entry(machine.to_owned()).or_default()
    }

    /// The replica to which a new connection leads.
    fn running(&mut self, machine: &str) -> Option<u32> {
        let wanted = self.cable(machine).replica;
        self.doors.retain(|_, door| !door.is_closed());
        let next = self.doors.range(wanted..).chain(self.doors.range(..wanted)).next();
        next.map(|(replica, _)| *replica)
    }
}

fn broken(kind: io::ErrorKind) -> LinkError {
    LinkError::Io(Arc::new(kind.into()))
}

#[cfg(test)]
mod tests;
