//! Making links to the cloud.

use std::sync::Arc;

use futures::future::BoxFuture;
use tombolo_link::Link;
use tombolo_link::client::{Choice, Connector, Target};

use crate::config::{CloudConfig, ConfigError, Transport, host_and_port};
use crate::identity::Identity;

/// Makes links to the cloud.
pub(crate) trait Dial: Send {
    /// Makes one, with the node's present identity.
    fn dial<'a>(&'a mut self, identity: &'a Identity) -> BoxFuture<'a, Result<Link, String>>;
}

/// Links over the network.
pub(crate) struct NetworkDialer {
    target: Target,
    /// Remembers between attempts whether QUIC gets through.
    connector: Option<(Arc<Identity>, Connector)>,
}

impl NetworkDialer {
    /// # Errors
    /// [`ConfigError`] when an address is none.
    pub(crate) fn new(cloud: &CloudConfig) -> Result<Self, ConfigError> {
        let (host, websocket_port) = host_and_port("cloud.websocket", &cloud.websocket)?;
        let (quic_host, quic_port) = host_and_port("cloud.quic", &cloud.quic)?;
        let (choice, host) = match cloud.transport {
            Transport::Auto => (Choice::Auto, host),
            Transport::Quic => (Choice::Quic, quic_host),
            Transport::Websocket => (Choice::WebSocket, host),
        };
        let target = Target { host: host.to_owned(), websocket_port, quic_port, choice };
        Ok(Self { target, connector: None })
    }
}

impl Dial for NetworkDialer {
    fn dial<'a>(&'a mut self, identity: &'a Identity) -> BoxFuture<'a, Result<Link, String>> {
        Box::pin(async move {
            let stale =
                self.connector.as_ref().is_none_or(|(used, _)| used.certificate != identity.certificate);
            if stale {
                let tls = identity.client_tls().map_err(|error| error.to_string())?;
                let connector = Connector::new(self.target.clone(), tls);
                self.connector = Some((Arc::new(identity.clone()), connector));
            }
            let (_, connector) = self.connector.as_mut().ok_or("no connector")?;
            connector.connect().await.map_err(|error| error.to_string())
        })
    }
}
