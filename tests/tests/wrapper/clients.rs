//! Clients of the wrapper.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;
use tombolo_tests::informers::{Followed, Informers};

use crate::RESOURCES;

/// A client, the resource that it follows, and the revision of each object that it holds.
pub(crate) type Watched = (String, &'static str, BTreeMap<String, String>);

/// Writes the kubeconfig of a wrapper, which only has its address.
pub(crate) fn kubeconfig(folder: &Path, address: SocketAddr) -> Result<PathBuf> {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "wrapper",
        "clusters": [{"name": "wrapper", "cluster": {"server": format!("http://{address}")}}],
        "contexts": [{"name": "wrapper", "context": {"cluster": "wrapper", "user": ""}}],
    });
    let path = folder.join("wrapper.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// A client with connections of its own.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let parsed = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn kind(resource: &str) -> ApiResource {
    let (group, kind) = match resource {
        "v1/services" => ("", "Service"),
        _ => ("discovery.k8s.io", "EndpointSlice"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

fn entry(object: &DynamicObject) -> (String, String) {
    let metadata = &object.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (format!("{}/{}", text(&metadata.namespace), text(&metadata.name)), text(&metadata.resource_version))
}

/// Revision of each listed object.
pub(crate) async fn list(client: &Client, resource: &str) -> Result<BTreeMap<String, String>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind(resource));
    Ok(api.list(&Default::default()).await?.iter().map(entry).collect())
}

/// Informers of client-go: three of each resource.
pub(crate) struct GoInformers(Informers);

impl GoInformers {
    /// Starts the informers. With `streaming`, the watch begins with the list (`WatchListClient` of client-go).
    pub(crate) fn start(program: &Path, kubeconfig: &Path, streaming: bool) -> Result<Self> {
        let count = 3 * RESOURCES.len();
        let followed = Followed { count, resources: &RESOURCES, selectors: &[], streaming };
        Ok(Self(Informers::start(program, kubeconfig, followed)?))
    }

    /// Returns what every informer holds.
    pub(crate) fn held(&mut self) -> Result<Vec<Watched>> {
        let shown = self.0.held()?;
        ensure!(shown.len() == 3 * RESOURCES.len(), "{} informers answer", shown.len());
        let held = shown.into_iter().map(|one| {
            let resource = RESOURCES.into_iter().find(|known| *known == one.resource);
            Ok((format!("client-go {}", one.client), resource.context("not requested")?, one.objects))
        });
        held.collect()
    }
}

/// Reflectors of kube-rs, both with a list before the watch and with a watch that begins with the list.
pub(crate) struct Reflectors {
    stores: Vec<(String, &'static str, Store<DynamicObject>)>,
    _tasks: JoinSet<()>,
}

impl Reflectors {
    pub(crate) async fn start(kubeconfig: &Path) -> Result<Self> {
        let (mut stores, mut tasks) = (Vec::new(), JoinSet::new());
        for (resource, streaming) in RESOURCES.into_iter().flat_map(|one| [(one, false), (one, true)]) {
            let config = watcher::Config::default();
            let config = if streaming { config.streaming_lists() } else { config };
            let api: Api<DynamicObject> =
                Api::namespaced_with(client(kubeconfig).await?, "default", &kind(resource));
            let writer = reflector::store::Writer::new(kind(resource));
            stores.push((format!("kube-rs, streaming: {streaming}"), resource, writer.as_reader()));
            tasks.spawn(async move {
                let mut events = watcher(api, config).default_backoff().reflect(writer).boxed();
                // Errors are restarts or their consequences: the watcher continues by itself.
                while events.next().await.is_some() {}
            });
        }
        Ok(Self { stores, _tasks: tasks })
    }

    pub(crate) fn held(&self) -> Vec<Watched> {
        let held = self.stores.iter().map(|(name, resource, store)| {
            (name.clone(), *resource, store.state().iter().map(|object| entry(object)).collect())
        });
        held.collect()
    }
}
