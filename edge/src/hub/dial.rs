//! Opens links to the cloud.

use std::sync::Arc;

use futures::future::BoxFuture;
use tombolo_link::client::{Choice, Connector, Target, connect_documents};
use tombolo_link::{DocumentLink, Link};
use tombolo_proto::ids::NodeId;

use super::failure::SessionFailure;
use crate::config::{CloudConfig, ConfigError, Dialect, Transport, host_and_port};
use crate::identity::Identity;

/// A link to the cloud, of either dialect.
pub(crate) enum Connection {
    /// Frames in lanes.
    Tombolo(Box<Link>),
    /// JSON messages.
    KubeEdge(Box<DocumentLink>),
}

/// Opens links to the cloud.
pub(crate) trait Dial: Send {
    /// Opens a link with the node's current identity.
    fn dial<'a>(&'a mut self, identity: &'a Identity) -> BoxFuture<'a, Result<Connection, SessionFailure>>;
}

/// Opens links over the network.
pub(crate) struct NetworkDialer {
    target: Target,
    dialect: Dialect,
    node: NodeId,
    /// Remembers between attempts whether QUIC works.
    connector: Option<(Arc<Identity>, Connector)>,
}

impl NetworkDialer {
    /// # Errors
    /// [`ConfigError`] when an address is invalid.
    pub(crate) fn new(cloud: &CloudConfig, dialect: Dialect, node: NodeId) -> Result<Self, ConfigError> {
        let (host, websocket_port) = host_and_port("cloud.websocket", &cloud.websocket)?;
        let (quic_host, quic_port) = host_and_port("cloud.quic", &cloud.quic)?;
        let (choice, host) = match cloud.transport {
            Transport::Auto => (Choice::Auto, host),
            Transport::Quic => (Choice::Quic, quic_host),
            Transport::Websocket => (Choice::WebSocket, host),
        };
        let target = Target { host: host.to_owned(), websocket_port, quic_port, choice };
        Ok(Self { target, dialect, node, connector: None })
    }
}

impl Dial for NetworkDialer {
    fn dial<'a>(&'a mut self, identity: &'a Identity) -> BoxFuture<'a, Result<Connection, SessionFailure>> {
        Box::pin(async move {
            if self.dialect == Dialect::KubeEdge {
                let link = connect_documents(&self.target, &self.node, &identity.client_tls()?).await?;
                return Ok(Connection::KubeEdge(Box::new(link)));
            }
            let used = self.connector.take().filter(|(used, _)| used.certificate == identity.certificate);
            let (_, connector) = match used {
                Some(used) => self.connector.insert(used),
                None => {
                    let connector = Connector::new(self.target.clone(), identity.client_tls()?);
                    self.connector.insert((Arc::new(identity.clone()), connector))
                }
            };
            Ok(Connection::Tombolo(Box::new(connector.connect().await?)))
        })
    }
}
