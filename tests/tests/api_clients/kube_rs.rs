//! Watchers of kube-rs, each with connections of its own.

use std::path::PathBuf;

use anyhow::Result;
use futures::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::task::JoinSet;

use crate::server::client;
use crate::writes::{RESOURCES, entry, kind};
use crate::{Held, SELECTORS};

pub(crate) struct Reflectors {
    stores: Vec<(String, &'static str, &'static str, Store<DynamicObject>)>,
    _tasks: JoinSet<()>,
}

impl Reflectors {
    /// Starts watchers for every resource and every selector, with a list before the watch and with a watch that begins
    /// with the list.
    pub(crate) async fn start(kubeconfig: PathBuf, count: usize) -> Result<Self> {
        let (mut stores, mut tasks) = (Vec::new(), JoinSet::new());
        for number in 0..count {
            let resource = RESOURCES[number % RESOURCES.len()];
            let selector = SELECTORS[number / RESOURCES.len() % SELECTORS.len()];
            let streaming = number / RESOURCES.len() / SELECTORS.len() % 2 == 1;
            let mut config = watcher::Config::default().labels(selector);
            if streaming {
                config = config.streaming_lists();
            }
            let api: Api<DynamicObject> =
                Api::default_namespaced_with(client(&kubeconfig).await?, &kind(resource));
            let writer = reflector::store::Writer::new(kind(resource));
            let name = format!("kube-rs {number}{}", if streaming { ", streaming" } else { "" });
            stores.push((name, resource, selector, writer.as_reader()));
            tasks.spawn(async move {
                let mut events = watcher(api, config).default_backoff().reflect(writer).boxed();
                // Errors are cut connections or their consequences: the watcher continues by itself.
                while events.next().await.is_some() {}
            });
        }
        Ok(Self { stores, _tasks: tasks })
    }

    pub(crate) fn held(&self) -> Vec<Held> {
        let held = self.stores.iter().map(|(watcher, resource, selector, store)| Held {
            watcher: watcher.clone(),
            resource,
            selector,
            objects: store.state().iter().map(|object| entry(object)).collect(),
        });
        held.collect()
    }
}
