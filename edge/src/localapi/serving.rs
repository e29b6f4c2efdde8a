//! The serving certificate of the local API. It contains the names under which pods reach the API of a cluster, so that
//! their usual configuration works with the local API (docs/edge-node.md#pods-at-the-local-api). It is issued again
//! when the addresses of the Service or of the node change.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;
use tombolo_apicore::store::Store as ServedStore;
use tombolo_link::tls::HttpsTls;
use tombolo_proto::object::{ObjectKey, Resource};
use tracing::warn;

use super::credentials::{LocalCredentials, SubjectAltNames};
use super::{LocalApiError, certificate};
use crate::follow::{Following, News};

impl SubjectAltNames {
    /// These names with the address of the node and those of the Service, as far as they are known.
    fn with(&self, node: Option<IpAddr>, services: &dyn ServedStore) -> Self {
        let mut names = self.clone();
        names.addresses.extend(node);
        names.addresses.extend(service_addresses(services));
        names
    }
}

/// The certificate, kept up to date.
pub(super) struct ServingCertificate {
    credentials: LocalCredentials,
    names: SubjectAltNames,
    /// Address of this node.
    address: watch::Receiver<Option<IpAddr>>,
    tls: HttpsTls,
}

impl ServingCertificate {
    /// Issues a certificate for these names and for the known addresses of the Service.
    pub(super) fn new(
        credentials: LocalCredentials,
        names: SubjectAltNames,
        address: watch::Receiver<Option<IpAddr>>,
        services: &dyn ServedStore,
    ) -> Result<Self, LocalApiError> {
        let identity = credentials.certify(&names.with(*address.borrow(), services))?;
        let tls = HttpsTls::new(identity, None).map_err(certificate)?;
        Ok(Self { credentials, names, address, tls })
    }

    /// TLS of a listener.
    pub(super) fn config(&self) -> Result<Arc<rustls::ServerConfig>, LocalApiError> {
        self.tls.config().map_err(certificate)
    }

    /// Follows the addresses of the node and of the Service until the agent stops.
    pub(super) async fn follow(mut self, services: Arc<dyn ServedStore>) {
        let service = kubernetes_service();
        let mut following =
            Following::new(Arc::clone(&services), [service.resource().clone()]).without_lists();
        let mut named = self.names.with(*self.address.borrow(), &*services);
        loop {
            tokio::select! {
                Ok(()) = self.address.changed() => {}
                news = following.next() => if let News::Changed(_, changes) = news
                    && !changes.iter().any(|change| change.object.key == service)
                {
                    continue;
                }
            }
            let names = self.names.with(*self.address.borrow_and_update(), &*services);
            if names == named {
                continue;
            }
            if let Err(error) = self.certify(&names) {
                warn!(%error, "cannot renew the local API's certificate for a new address");
            }
            named = names;
        }
    }

    fn certify(&self, names: &SubjectAltNames) -> Result<(), LocalApiError> {
        self.tls.replace_identity(self.credentials.certify(names)?).map_err(certificate)
    }
}

fn kubernetes_service() -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "services"), "default", "kubernetes")
}

/// Addresses of the Service `default/kubernetes`, as far as this node knows them.
fn service_addresses(services: &dyn ServedStore) -> Vec<IpAddr> {
    let Ok(Some(service)) = services.get(&kubernetes_service()) else { return Vec::new() };
    let service: Value = serde_json::from_slice(&service.body()).unwrap_or_default();
    let addresses = service.pointer("/spec/clusterIPs").and_then(Value::as_array);
    addresses.into_iter().flatten().filter_map(|address| address.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_a_cluster_and_of_this_machine() {
        let names =
            SubjectAltNames::new("example.org.", ["10.1.2.3".parse().unwrap(), "0.0.0.0".parse().unwrap()]);
        assert!(names.hosts.iter().any(|name| name == "kubernetes.default.svc.example.org"));
        let addresses: Vec<String> = names.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.1.2.3", "127.0.0.1", "::1"]);
    }
}
