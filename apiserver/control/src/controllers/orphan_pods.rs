//! Removes pods that no kubelet will ever report on: bound to a node that is gone, or deleted before they were bound.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;
use tombolo_apicore::store::Stored;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::ObjectKey;

use super::deletion::Deletion;
use super::{Context, NamedTasks, is_settled};
use crate::objects::{Objects, core};

/// How often such pods are removed.
const INTERVAL: Duration = Duration::from_secs(20);

/// How long a node must be missing: a pod may be bound before its node has registered.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Removes such pods until the server stops.
pub(super) async fn run(context: &Context) {
    let mut missing = Missing::default();
    let mut tick = tokio::time::interval(INTERVAL);
    let mut removing = NamedTasks::default();
    loop {
        tokio::select! {
            _ = removing.ended() => continue,
            _ = tick.tick() => {}
        }
        let pods = all(&context.objects);
        let exists = |node: &str| context.objects.exists(core("nodes"), "", node);
        let mut doomed: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in missing.doomed(pods, exists, Instant::now()) {
            doomed.entry(pod.key.namespace().to_owned()).or_default().push(pod);
        }
        for (namespace, pods) in doomed {
            removing.begin(&namespace, remove(context, pods));
        }
    }
}

/// The needed fields of a pod. Whole trees are not kept, because users who write pods decide how much memory they take,
/// and all pods are read here.
#[derive(Debug)]
struct Pod {
    key: ObjectKey,
    uid: Uid,
    /// Empty before it is bound.
    node: Box<str>,
    is_terminating: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<Box<str>>,
}

fn all(objects: &Objects) -> Vec<Pod> {
    objects.list_raw(&core("pods"), None).iter().map(|stored| Pod::read(stored)).collect()
}

impl Pod {
    fn read(stored: &Stored) -> Self {
        let Body { metadata, spec } = serde_json::from_slice(&stored.body()).unwrap_or_default();
        Self {
            key: stored.key.clone(),
            uid: stored.uid.clone(),
            node: spec.node_name.unwrap_or_default(),
            is_terminating: metadata.deletion_timestamp.is_some(),
        }
    }
}

/// Removes pods of one namespace.
async fn remove(context: &Context, pods: Vec<Pod>) {
    for pod in pods {
        let deletion =
            Deletion::by_controller("pod-garbage-collector", pod.uid.as_str(), "Background").at_once();
        if let Err(error) = context.deletions.delete(&pod.key, deletion).await
            && !is_settled(&error)
        {
            tracing::warn!(key = %pod.key, %error, "a pod without a node was not removed");
        }
    }
}

/// Nodes that pods name but that do not exist, and since when.
#[derive(Debug, Default)]
struct Missing(HashMap<Box<str>, Instant>);

impl Missing {
    fn doomed(&mut self, pods: Vec<Pod>, exists: impl Fn(&str) -> bool, now: Instant) -> Vec<Pod> {
        let named = pods.iter().map(|pod| &*pod.node).filter(|node| !node.is_empty());
        let named: HashMap<&str, bool> = named.map(|node| (node, exists(node))).collect();
        self.0.retain(|node, _| named.get(&**node) == Some(&false));
        for (node, exists) in &named {
            if !exists {
                self.0.entry((*node).into()).or_insert(now);
            }
        }
        let gone =
            |node: &str| self.0.get(node).is_some_and(|since| now.duration_since(*since) >= QUARANTINE);
        let is_doomed = |pod: &Pod| if pod.node.is_empty() { pod.is_terminating } else { gone(&pod.node) };
        pods.into_iter().filter(is_doomed).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;
    use tombolo_apicore::store::{Expect, Mutation, Revision, Write, WriteStore as _};
    use tombolo_testkit::{Growth, alone};

    use super::*;

    fn pod(name: &str, value: &Value) -> Pod {
        let key = ObjectKey::new(core("pods"), "default", name);
        Pod::read(&Stored::new(key, Uid::parse("u").unwrap(), Revision(1), value.to_string().into()))
    }

    /// A user who controls only a node can write pods, and the tree of each may take a hundred times its text.
    #[tokio::test]
    async fn orphan_pod_scan_keeps_no_parsed_pods() {
        if !alone(module_path!(), "orphan_pod_scan_keeps_no_parsed_pods") {
            return;
        }
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        // Written as text: memory that was freed before would be reused and not count as growth.
        let parts = r#"{"":0},"#.repeat(60_000);
        for number in 0..8 {
            let key = ObjectKey::new(core("pods"), "default", &number.to_string());
            let head = format!(
                r#""metadata":{{"namespace":"default","name":"{number}"}},"spec":{{"nodeName":"n"}}"#
            );
            let body = format!(r#"{{{head},"status":{{"x":[{parts}0]}}}}"#).into();
            let write = Write::Put { uid: Uid::parse("u").unwrap(), body };
            objects.store().commit(Mutation { key, expected: Expect::Absent, write }).await.unwrap();
        }
        let growth = Growth::begin();
        assert_eq!(all(&objects).iter().filter(|pod| &*pod.node == "n").count(), 8);
        let grown = growth.most() / 1024 / 1024;
        assert!(grown < 16, "{grown} MiB");
        // A controller that needs whole pods holds one of them at a time.
        assert_eq!(objects.list(&core("pods"), None).count(), 8);
        let grown = growth.most() / 1024 / 1024;
        assert!(grown < 128, "{grown} MiB, and each takes 45");
    }

    #[test]
    fn orphan_pods_are_kept_while_a_node_is_missing_briefly() {
        let undone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}});
        let pods = || {
            vec![
                pod("here", &json!({"spec": {"nodeName": "a"}})),
                pod("orphan", &json!({"spec": {"nodeName": "b"}})),
                pod("waiting", &json!({"spec": {}})),
                pod("undone", &undone),
            ]
        };
        let names = |doomed: Vec<Pod>| doomed.iter().map(|pod| pod.key.name().to_owned()).collect::<Vec<_>>();
        let mut missing = Missing::default();
        let start = Instant::now();
        let only_a = |node: &str| node == "a";
        assert_eq!(names(missing.doomed(pods(), only_a, start)), ["undone"]);
        let came = missing.doomed(pods(), |_| true, start + QUARANTINE / 2);
        assert_eq!(names(came), ["undone"], "the node came");
        let went = missing.doomed(pods(), only_a, start + QUARANTINE);
        assert_eq!(names(went), ["undone"], "and went again");
        let late = missing.doomed(pods(), only_a, start + QUARANTINE * 2);
        assert_eq!(names(late), ["orphan", "undone"]);
        missing.doomed(Vec::new(), only_a, start);
        assert!(missing.0.is_empty());
    }
}
