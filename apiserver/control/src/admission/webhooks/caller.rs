//! Calls to webhooks over HTTPS.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use parking_lot::Mutex;
use rand::seq::IndexedRandom as _;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;
use tombolo_runtime::sentence;

use super::configuration::{ClientConfig, Service};
use crate::objects::{Objects, core, items, text, v1};

/// Longest response that is read, in bytes. A base64 patch with an object of maximum size fits.
const ANSWER_LEN_MAX: usize = 8 * 1024 * 1024;

/// Maximum number of clients that are kept for later calls. When it is reached, all are dropped.
const CLIENTS_MAX: usize = 64;

/// Port of a Service that names none (Kubernetes default).
const PORT: u16 = 443;

/// The server to connect to for a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Peer {
    authority: String,
    /// Name that its certificate must have, if it is not the host in `authority`.
    server_name: Option<String>,
    ca_bundle: Option<String>,
}

/// Calls webhooks.
pub(super) struct Caller {
    objects: Objects,
    clients: Mutex<HashMap<Peer, kube::Client>>,
}

impl Caller {
    /// Finds Services among these objects.
    pub(super) fn new(objects: Objects) -> Self {
        Self { objects, clients: Mutex::default() }
    }

    /// Sends a review and returns the body of the response.
    ///
    /// # Errors
    /// A message that says why the call failed.
    pub(super) async fn ask(
        &self,
        config: &ClientConfig,
        timeout: Duration,
        review: &Value,
    ) -> Result<Bytes, String> {
        let (peer, path) = self.find(config)?;
        let target = format!("{path}?timeout={}s", timeout.as_secs());
        let shown = match &peer.server_name {
            Some(name) => format!("https://{name}{target}"),
            None => format!("https://{}{target}", peer.authority),
        };
        let call = async {
            let client = self.client(&peer)?;
            let request = Request::post(&target)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json")
                .body(Body::from(review.to_string().into_bytes()))
                .map_err(|error| error.to_string())?;
            let response = client.send(request).await.map_err(|error| sentence(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_LEN_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            if status.is_success() { Ok(body) } else { Err(format!("the webhook answered {status}")) }
        };
        let answer = match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer,
            Err(_) => Err("context deadline exceeded".to_owned()),
        };
        answer.map_err(|why| format!("failed to call webhook: Post {shown:?}: {why}"))
    }

    /// The server to connect to, and the request path.
    fn find(&self, config: &ClientConfig) -> Result<(Peer, String), String> {
        let ca_bundle = config.ca_bundle.clone().filter(|bundle| !bundle.is_empty());
        if let Some(service) = &config.service {
            let authority = self.endpoint(service)?;
            let server_name = Some(format!("{}.{}.svc", service.name, service.namespace));
            let path = service.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
            return Ok((Peer { authority, server_name, ca_bundle }, path));
        }
        let url = config.url.as_deref().unwrap_or_default();
        let uri: Uri = url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
        let authority = uri.authority().ok_or("webhook configuration must have either service or URL")?;
        let path = match uri.path() {
            "" => "/",
            path => path,
        };
        Ok((Peer { authority: authority.to_string(), server_name: None, ca_bundle }, path.to_owned()))
    }

    /// An endpoint address of a Service: this server has no proxy for cluster addresses.
    fn endpoint(&self, service: &Service) -> Result<String, String> {
        let (namespace, name) = (service.namespace.as_str(), service.name.as_str());
        let found = self.objects.get(core("services"), namespace, name);
        let found = found.ok_or_else(|| format!("service {name:?} not found"))?;
        let wanted = service.port.unwrap_or(PORT);
        if found.text("/spec/type") == "ExternalName" {
            return Ok(format!("{}:{wanted}", found.text("/spec/externalName")));
        }
        let port = items(&found.value, "/spec/ports").iter().find(|port| port["port"] == wanted);
        let port = port.ok_or_else(|| format!("no service port {wanted} found for service {name:?}"))?;
        let port_name = text(port, "/name");
        let mut endpoints = Vec::new();
        for slice in self.objects.list(&v1("discovery.k8s.io", "endpointslices"), Some(namespace)) {
            let labels = slice.value.pointer("/metadata/labels/kubernetes.io~1service-name");
            if labels.and_then(Value::as_str) != Some(name) {
                continue;
            }
            let number = items(&slice.value, "/ports").iter().find(|port| text(port, "/name") == port_name);
            let Some(number) = number.and_then(|port| port["port"].as_u64()) else { continue };
            let ready =
                |endpoint: &&Value| endpoint.pointer("/conditions/ready") != Some(&Value::Bool(false));
            let ready = items(&slice.value, "/endpoints").iter().filter(ready);
            let addresses = ready.filter_map(|endpoint| endpoint.pointer("/addresses/0")?.as_str());
            endpoints.extend(addresses.map(|address| match address.contains(':') {
                true => format!("[{address}]:{number}"),
                false => format!("{address}:{number}"),
            }));
        }
        let chosen = endpoints.choose(&mut rand::rng());
        chosen.cloned().ok_or_else(|| format!("no endpoints available for service {name:?}"))
    }

    fn client(&self, peer: &Peer) -> Result<kube::Client, String> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(peer) {
            return Ok(client.clone());
        }
        if clients.len() >= CLIENTS_MAX {
            clients.clear();
        }
        let uri = format!("https://{}", peer.authority).parse::<Uri>().map_err(|error| error.to_string())?;
        let mut config = kube::Config::new(uri);
        config.default_retry = false;
        config.tls_server_name.clone_from(&peer.server_name);
        config.root_cert = peer.ca_bundle.as_deref().map(certificates).transpose()?;
        let client = kube::Client::try_from(config).map_err(|error| sentence(&error))?;
        clients.insert(peer.clone(), client.clone());
        Ok(client)
    }
}

/// The certificates of a `caBundle`, DER.
///
/// # Errors
/// What is wrong with it.
pub(super) fn certificates(ca_bundle: &str) -> Result<Vec<Vec<u8>>, String> {
    let pem = STANDARD.decode(ca_bundle).map_err(|error| error.to_string())?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("unable to load root certificates: unable to parse bytes as PEM block".to_owned());
    }
    Ok(certificates.iter().map(|certificate| certificate.to_vec()).collect())
}
