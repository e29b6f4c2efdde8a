//! Clients of the wrapper.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::RESOURCES;

/// A client, what it follows, and the revision of each object that it holds.
pub(crate) type Watched = (String, &'static str, BTreeMap<String, String>);

/// Writes the kubeconfig of a wrapper: its address and nothing else.
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

/// Revision of each object that is listed.
pub(crate) async fn list(client: &Client, resource: &str) -> Result<BTreeMap<String, String>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind(resource));
    Ok(api.list(&Default::default()).await?.iter().map(entry).collect())
}

/// Informers of client-go, in a process of `tests/clients`: three of each resource.
pub(crate) struct GoInformers {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct Shown {
    client: String,
    resource: String,
    synced: bool,
    objects: BTreeMap<String, String>,
}

impl GoInformers {
    /// Starts them. `streaming`: the watch begins with the list (`WatchListClient` of client-go).
    pub(crate) fn start(program: &Path, kubeconfig: &Path, streaming: bool) -> Result<Self> {
        let mut process = Command::new(program)
            .env("KUBE_FEATURE_WatchListClient", streaming.to_string())
            .arg("-kubeconfig")
            .arg(kubeconfig)
            .args(["-count", &(3 * RESOURCES.len()).to_string(), "-resources", &RESOURCES.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let questions = process.stdin.take().context("piped")?;
        let answers = BufReader::new(process.stdout.take().context("piped")?);
        Ok(Self { process, questions, answers })
    }

    /// What every informer holds.
    pub(crate) fn held(&mut self) -> Result<Vec<Watched>> {
        self.questions.write_all(b"\n")?;
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the informers have ended");
        let shown: Vec<Shown> = serde_json::from_str(&line)?;
        ensure!(shown.len() == 3 * RESOURCES.len(), "{} informers answer", shown.len());
        let held = shown.into_iter().map(|one| {
            ensure!(one.synced, "{} of {} is not synced", one.client, one.resource);
            let resource = RESOURCES.into_iter().find(|known| *known == one.resource);
            Ok((format!("client-go {}", one.client), resource.context("nobody asked for it")?, one.objects))
        });
        held.collect()
    }
}

impl Drop for GoInformers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reflectors of kube-rs, with a list before the watch and with a watch that begins with it.
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
                // Errors are restarts, or what follows from them: the watcher goes on by itself.
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
