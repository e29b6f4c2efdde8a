//! The address under which its pods and other machines reach this node.
//!
//! It is the one from which packets to the cloud leave, which may need a name to be looked up: that must not hold up the start of
//! an agent without a network. What was found last is kept, and it is looked for again whenever the cloud is reached.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tombolo_runtime::files;
use tracing::{info, warn};

use crate::config::{Config, host_and_port};
use crate::hub::HubState;

/// The file in the data folder that keeps what was found last.
const FILE: &str = "address";

/// How long a start waits for the address.
const START_MAX: Duration = Duration::from_secs(2);

/// Pause between attempts while there is none.
const AGAIN: Duration = Duration::from_secs(10);

/// Finds the address; may take as long as the resolver does.
type Look = Arc<dyn Fn() -> Option<IpAddr> + Send + Sync>;

/// See the module.
pub(crate) struct NodeAddress {
    told: watch::Sender<Option<IpAddr>>,
    /// None where the settings give the address.
    look: Option<Look>,
    kept: PathBuf,
}

impl NodeAddress {
    /// The address of the settings, or the one that can be found at once, or else the one that was found last.
    pub(crate) async fn find(config: &Config) -> Self {
        let cloud = config.cloud.websocket.clone();
        let look: Option<Look> = match config.node.address {
            Some(_) => None,
            None => Some(Arc::new(move || local_address(&cloud))),
        };
        let address =
            Self { told: watch::Sender::new(config.node.address), look, kept: config.data_dir.join(FILE) };
        address.start(START_MAX).await;
        address
    }

    /// What is known, now and later.
    pub(crate) fn told(&self) -> watch::Receiver<Option<IpAddr>> {
        self.told.subscribe()
    }

    /// Looks again with every session, and until there is an address.
    pub(crate) async fn keep(self, mut hub: watch::Receiver<HubState>) {
        let Some(look) = self.look.clone() else { return };
        let mut session = 0;
        loop {
            let unknown = self.told.borrow().is_none();
            tokio::select! {
                state = hub.wait_for(|state| state.online() && state.sessions != session) => match state {
                    Ok(state) => session = state.sessions,
                    // The agent ends.
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
                warn!(address = ?kept, "this node's address cannot be found out now: the last one is taken");
                self.told.send_replace(kept);
            }
        }
    }

    fn found(&self, address: Option<IpAddr>) {
        let Some(address) = address.filter(|address| *self.told.borrow() != Some(*address)) else { return };
        info!(%address, "this node's address");
        if let Err(error) = files::replace(&self.kept, address.to_string().as_bytes(), files::PRIVATE) {
            warn!(%error, path = %self.kept.display(), "the node's address cannot be kept");
        }
        self.told.send_replace(Some(address));
    }
}

async fn looked(look: &Look) -> Option<IpAddr> {
    let look = Arc::clone(look);
    tokio::task::spawn_blocking(move || look()).await.ok().flatten()
}

/// The address from which packets to the cloud leave this machine. Nothing is sent to it to find out.
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

    /// What can be found out, which changes.
    type World = Arc<Mutex<Option<IpAddr>>>;

    fn node(folder: &tempfile::TempDir, world: &World) -> NodeAddress {
        let world = Arc::clone(world);
        NodeAddress {
            told: watch::Sender::new(None),
            look: Some(Arc::new(move || *world.lock())),
            kept: folder.path().join(FILE),
        }
    }

    fn known(address: &NodeAddress) -> Option<String> {
        address.told.borrow().map(|address| address.to_string())
    }

    #[tokio::test]
    async fn without_a_network_a_start_takes_the_last_one_and_does_not_wait() {
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
    async fn it_is_looked_for_with_every_session() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::default();
        let address = node(&folder, &world);
        address.start(START_MAX).await;
        assert_eq!(known(&address), None);
        let mut told = address.told();
        let (hub, state) = watch::channel(HubState::default());
        let keeping = tokio::spawn(address.keep(state));
        for (session, found) in [(1, FIRST), (2, SECOND)] {
            *world.lock() = Some(found.parse().unwrap());
            let transport = Some(tombolo_link::Transport::WebSocket);
            hub.send_replace(HubState { sessions: session, transport, ..HubState::default() });
            let found: Option<IpAddr> = Some(found.parse().unwrap());
            let seen = timeout(Duration::from_secs(10), told.wait_for(|told| *told == found)).await;
            assert!(seen.is_ok_and(|seen| seen.is_ok()));
        }
        assert_eq!(std::fs::read_to_string(folder.path().join(FILE)).unwrap(), SECOND);
        drop(hub);
        keeping.await.unwrap();
    }
}
