//! One watch, endless: list, follow, start again after every kind of end.

use std::time::Duration;

use futures::StreamExt as _;
use kube::Client;
use kube::api::{Api, ApiResource};
use kube::runtime::watcher;
use tokio::sync::mpsc;
use tombolo_proto::Resource;
use tombolo_runtime::{Backoff, BackoffConfig};

use super::RawObject;

/// Objects asked for at a time while listing.
const PAGE_SIZE: u32 = 500;

/// What a watch tells, in the order of the cloud's history. Objects between `RelistStart` and `RelistEnd` are all
/// there are: whatever was known before and is not among them went away while nobody watched.
#[derive(Debug)]
pub enum ObjectEvent {
    /// The object is there, in this version.
    Applied(RawObject),
    /// The object is gone; this was its last version.
    Deleted(RawObject),
    /// A complete list begins.
    RelistStart,
    /// The list is complete.
    RelistEnd,
}

/// What to watch.
#[derive(Debug, Clone)]
pub struct WatchSpec {
    /// Group, version, plural.
    pub resource: Resource,
    /// Kind, for error texts; may be empty.
    pub kind: String,
    /// One namespace, or all when empty.
    pub namespace: String,
    /// Label selector; empty for all.
    pub label_selector: String,
    /// Field selector; empty for all.
    pub field_selector: String,
}

impl WatchSpec {
    /// Everything of one resource, in all namespaces.
    #[must_use]
    pub fn all(resource: Resource) -> Self {
        Self {
            resource,
            kind: String::new(),
            namespace: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
        }
    }

    /// Only objects whose fields match.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.field_selector);
        self
    }

    /// The objects themselves.
    pub(crate) fn api(&self, client: Client) -> Api<RawObject> {
        let resource = &self.resource;
        let api_version = match &*resource.group {
            "" => resource.version.to_string(),
            group => format!("{group}/{}", resource.version),
        };
        let kind = ApiResource {
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            api_version,
            kind: self.kind.clone(),
            plural: resource.name.to_string(),
        };
        match self.namespace.as_str() {
            "" => Api::all_with(client, &kind),
            namespace => Api::namespaced_with(client, namespace, &kind),
        }
    }

    fn settings(&self) -> watcher::Config {
        // Paged lists work with every server; the streamed form needs a feature gate before Kubernetes 1.34.
        let mut settings = watcher::Config::default().page_size(PAGE_SIZE);
        if !self.label_selector.is_empty() {
            settings = settings.labels(&self.label_selector);
        }
        if !self.field_selector.is_empty() {
            settings = settings.fields(&self.field_selector);
        }
        settings
    }
}

/// Watches until the receiver is gone. Failures are told through `failed`, then retried with a growing, jittered
/// wait; the wait starts anew with the first event that works.
pub async fn watch<T: Send>(
    client: Client,
    spec: WatchSpec,
    out: mpsc::Sender<T>,
    into: impl Fn(ObjectEvent) -> T,
    failed: impl Fn(&watcher::Error),
) {
    let mut backoff = Backoff::new(BackoffConfig {
        first: Duration::from_millis(200),
        max: Duration::from_secs(30),
        ..BackoffConfig::default()
    });
    let mut stream = std::pin::pin!(watcher::watcher(spec.api(client), spec.settings()));
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = out.closed() => return,
        };
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                failed(&error);
                let delay = backoff.next_delay(&mut rand::rng());
                tokio::time::sleep(delay).await;
                continue;
            }
            None => return,
        };
        if !matches!(event, watcher::Event::Init) {
            backoff.reset();
        }
        if out.send(into(normalise(event))).await.is_err() {
            return;
        }
    }
}

fn normalise(event: watcher::Event<RawObject>) -> ObjectEvent {
    match event {
        watcher::Event::Apply(object) | watcher::Event::InitApply(object) => ObjectEvent::Applied(object),
        watcher::Event::Delete(object) => ObjectEvent::Deleted(object),
        watcher::Event::Init => ObjectEvent::RelistStart,
        watcher::Event::InitDone => ObjectEvent::RelistEnd,
    }
}
