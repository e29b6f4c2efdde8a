//! Replaces a container runtime: runs the program of each pod, at the pod's address in the network of its node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tombolo_tests::network::{Namespace, serve_each};

/// Networks by the name of their node.
pub(crate) type Networks = BTreeMap<String, Arc<Namespace>>;

/// Follows the pods of the namespace `default`; all programs end when it is dropped.
pub(crate) struct Containers {
    _task: JoinSet<()>,
}

impl Containers {
    pub(crate) fn start(client: Client, networks: Networks) -> Self {
        let mut task = JoinSet::new();
        task.spawn(async move {
            let pods: Api<Pod> = Api::namespaced(client, "default");
            let mut events = watcher(pods, watcher::Config::default()).default_backoff().boxed();
            let mut runtime = Runtime { networks, running: BTreeMap::new(), servers: JoinSet::new() };
            let mut listed = BTreeSet::new();
            // Errors are those of an unavailable API server: the watch restarts.
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Init) => listed.clear(),
                    Ok(watcher::Event::InitApply(pod)) => {
                        listed.extend(pod.metadata.uid.clone());
                        runtime.consider(&pod);
                    }
                    Ok(watcher::Event::InitDone) => runtime.keep(&listed),
                    Ok(watcher::Event::Apply(pod)) => runtime.consider(&pod),
                    Ok(watcher::Event::Delete(pod)) => runtime.end(pod.metadata.uid.as_deref()),
                    Err(_) => {}
                }
            }
        });
        Self { _task: task }
    }
}

struct Runtime {
    networks: Networks,
    /// By the UID of the pod.
    running: BTreeMap<String, Container>,
    servers: JoinSet<()>,
}

struct Container {
    node: String,
    address: IpAddr,
    server: AbortHandle,
}

impl Runtime {
    fn consider(&mut self, pod: &Pod) {
        let Some(uid) = &pod.metadata.uid else { return };
        let is_running = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
        if is_running && !self.running.contains_key(uid) {
            match self.run(pod) {
                Ok(container) => drop(self.running.insert(uid.clone(), container)),
                // Requests to it will get no answer, and the test's failure then shows this message.
                Err(error) => eprintln!("the container of {:?}: {error:#}", pod.metadata.name),
            }
        }
    }

    fn run(&mut self, pod: &Pod) -> Result<Container> {
        let pod = serde_json::to_value(pod)?;
        let node = pod["spec"]["nodeName"].as_str().context("no node")?.to_owned();
        let network = self.networks.get(&node).with_context(|| format!("no network of {node}"))?;
        let address: IpAddr = pod["status"]["podIP"].as_str().context("no address")?.parse()?;
        let container = &pod["spec"]["containers"][0];
        let port = container["ports"][0]["containerPort"].as_u64().context("no port")?;
        network.ip(&["address", "add", &format!("{address}/32"), "dev", "lo"])?;
        let listener = network.listen(SocketAddr::new(address, u16::try_from(port)?))?;
        let said = ["NODE_NAME", "POD_NAME"].map(|name| variable(&pod, name)).join("\n");
        let server = self.servers.spawn(serve(listener, format!("{said}\n")));
        Ok(Container { node, address, server })
    }

    fn keep(&mut self, listed: &BTreeSet<String>) {
        let gone: Vec<String> = self.running.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        gone.iter().for_each(|uid| self.end(Some(uid)));
    }

    fn end(&mut self, uid: Option<&str>) {
        let Some(Container { node, address, server }) = uid.and_then(|uid| self.running.remove(uid)) else {
            return;
        };
        server.abort();
        let removed = self.networks[&node].ip(&["address", "del", &format!("{address}/32"), "dev", "lo"]);
        if let Err(error) = removed {
            eprintln!("cannot remove the address of a deleted pod: {error:#}");
        }
    }
}

/// A variable of the pod's first container that is set by a field reference; empty if it has none.
fn variable(pod: &Value, name: &str) -> String {
    let all = pod["spec"]["containers"][0]["env"].as_array().map(Vec::as_slice).unwrap_or_default();
    let path = all
        .iter()
        .find(|variable| variable["name"] == name)
        .and_then(|variable| variable["valueFrom"]["fieldRef"]["fieldPath"].as_str());
    let pointer = path.map(|path| format!("/{}", path.replace('.', "/")));
    let value = pointer.and_then(|pointer| pod.pointer(&pointer)?.as_str().map(str::to_owned));
    value.unwrap_or_default()
}

/// Serves one page, like `httpd` in the manifests.
async fn serve(listener: TcpListener, page: String) {
    let page: Arc<str> = page.into();
    let serve = |stream| {
        let page = Arc::clone(&page);
        async move {
            // The client may have disconnected.
            let _ = answer(stream, &page).await;
        }
    };
    serve_each(listener, serve, drop).await;
}

async fn answer(mut stream: TcpStream, page: &str) -> std::io::Result<()> {
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece).await? {
            0 => return Ok(()),
            length => request.extend_from_slice(&piece[..length]),
        }
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
    stream.write_all(format!("{head}{page}").as_bytes()).await?;
    stream.shutdown().await
}
