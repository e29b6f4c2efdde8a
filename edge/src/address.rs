//! The address at which pods and other machines reach this node.
//!
//! It is the local address from which packets to the cloud leave. Finding it may need a DNS lookup, which must not
//! delay the start of an agent without a network. The last address found is saved, and the agent looks it up again
//! with every new session.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tombolo_runtime::{blocking, files};
use tracing::{info, warn};

use crate::config::{Config, host_and_port};
use crate::hub::HubState;

/// File in the data folder with the last address found.
const FILE: &str = "address";

/// How long a start waits for the address.
const START_MAX: Duration = Duration::from_secs(2);

/// Pause between attempts while no address is known.
const AGAIN: Duration = Duration::from_secs(10);

/// Finds the address; may take as long as the resolver does.
type Look = Arc<dyn Fn() -> Option<IpAddr> + Send + Sync>;

/// The node's address, updated while the agent runs.
pub(crate) struct NodeAddress {
    published: watch::Sender<Option<IpAddr>>,
    /// None if the settings give the address.
    look: Option<Look>,
    kept: PathBuf,
}

impl NodeAddress {
    /// Takes the address from the settings, else looks it up for up to [`START_MAX`], else uses the last one found.
    pub(crate) async fn find(config: &Config) -> Self {
        let cloud = config.cloud.websocket.clone();
        let look: Option<Look> = match config.node.address {
            Some(_) => None,
            None => Some(Arc::new(move || local_address(&cloud))),
        };
        let address = Self {
            published: watch::Sender::new(config.node.address),
            look,
            kept: config.data_dir.join(FILE),
        };
        address.start(START_MAX).await;
        address
    }

    /// Receives the current address and later changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<IpAddr>> {
        self.published.subscribe()
    }

    /// Looks the address up with every new session, and repeatedly while none is known.
    pub(crate) async fn keep(self, mut hub: watch::Receiver<HubState>) {
        let Some(look) = self.look.clone() else { return };
        let mut session = 0;
        loop {
            let unknown = self.published.borrow().is_none();
            tokio::select! {
                state = hub.wait_for(|state| state.online() && state.sessions != session) => match state {
                    Ok(state) => session = state.sessions,
                    // The agent stops.
                    Err(_) => return,
                },
                () = sleep(AGAIN), if unknown => {}
            }
            self.found(looked(&look).await);
        }
    }

    async fn start(&self, within: Duration) {
        let Some(look) = &self.look else { return };
        match timeout(within, looked(look)).await {
            Ok(Some(address)) => self.found(Some(address)),
            Ok(None) | Err(_) => {
                let kept = std::fs::read_to_string(&self.kept).ok().and_then(|text| text.trim().parse().ok());
                warn!(address = ?kept, "cannot determine this node's address; using the last known one");
                self.published.send_replace(kept);
            }
        }
    }

    fn found(&self, address: Option<IpAddr>) {
        let Some(address) = address.filter(|address| *self.published.borrow() != Some(*address)) else {
            return;
        };
        info!(%address, "this node's address");
        if let Err(error) = files::replace(&self.kept, address.to_string().as_bytes(), files::PRIVATE) {
            warn!(%error, path = %self.kept.display(), "cannot save the node's address");
        }
        self.published.send_replace(Some(address));
    }
}

async fn looked(look: &Look) -> Option<IpAddr> {
    let look = Arc::clone(look);
    blocking::run(move || look()).await.ok().flatten()
}

/// The address from which packets to the cloud leave this machine. Sends no packet to find out.
fn local_address(cloud: &str) -> Option<IpAddr> {
    let (host, port) = host_and_port("cloud.websocket", cloud).ok()?;
    let target = (host, port).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().ok()?;
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    const FIRST: &str = "10.1.2.3";
    const SECOND: &str = "10.1.2.4";

    /// The address that the lookup finds; tests change it.
    type World = Arc<Mutex<Option<IpAddr>>>;

    fn node(folder: &tempfile::TempDir, world: &World) -> NodeAddress {
        let world = Arc::clone(world);
        NodeAddress {
            published: watch::Sender::new(None),
            look: Some(Arc::new(move || *world.lock())),
            kept: folder.path().join(FILE),
        }
    }

    fn known(address: &NodeAddress) -> Option<String> {
        address.published.borrow().map(|address| address.to_string())
    }

    #[tokio::test]
    async fn start_without_a_network_uses_the_last_address() {
        let folder = tempfile::tempdir().unwrap();
        let first = node(&folder, &Arc::new(Mutex::new(Some(FIRST.parse().unwrap()))));
        first.start(START_MAX).await;
        assert_eq!(known(&first).as_deref(), Some(FIRST));

        let (answer, question) = std::sync::mpsc::channel::<()>();
        let question = Mutex::new(question);
        let hangs: Look = Arc::new(move || question.lock().recv().ok().map(|()| SECOND.parse().unwrap()));
        let second = NodeAddress { look: Some(hangs), ..node(&folder, &World::default()) };
        second.start(Duration::from_millis(10)).await;
        assert_eq!(known(&second).as_deref(), Some(FIRST));
        drop(answer);
    }

    #[tokio::test]
    async fn address_is_determined_again_with_every_session() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let address = node(&folder, &world);
        address.start(START_MAX).await;
        assert_eq!(known(&address), None);
        let mut published = address.subscribe();
        let (hub, state) = watch::channel(HubState::default());
        let keeping = tokio::spawn(address.keep(state));
        for (session, found) in [(1, FIRST), (2, SECOND)] {
            *world.lock() = Some(found.parse().unwrap());
            let transport = Some(tombolo_link::Transport::WebSocket);
            hub.send_replace(HubState { sessions: session, transport, ..HubState::default() });
            let found: Option<IpAddr> = Some(found.parse().unwrap());
            let seen =
                timeout(Duration::from_secs(10), published.wait_for(|published| *published == found)).await;
            assert!(seen.is_ok_and(|seen| seen.is_ok()));
        }
        assert_eq!(std::fs::read_to_string(folder.path().join(FILE)).unwrap(), SECOND);
        drop(hub);
        keeping.await.unwrap();
    }
}
