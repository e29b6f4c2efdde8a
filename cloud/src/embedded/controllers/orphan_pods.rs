//! Pods that no kubelet will ever report on: bound to a node that is gone, or deleted before they were bound.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::deletion::Deletion;
use super::{Beside, Context, is_settled};
use crate::embedded::objects::{Object, core};

/// How often they are looked for.
const INTERVAL: Duration = Duration::from_secs(20);

/// How long a node must be missing: a pod may be bound before its node has registered.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Removes such pods until the server stops.
pub(super) async fn run(context: &Context) {
    let mut missing = Missing::default();
    let mut tick = tokio::time::interval(INTERVAL);
    let mut removing = Beside::default();
    loop {
        tokio::select! {
            _ = removing.ended() => continue,
            _ = tick.tick() => {}
        }
        let pods = context.objects.list(&core("pods"), None);
        let exists = |node: &str| context.objects.exists(core("nodes"), "", node);
        let mut doomed: BTreeMap<String, Vec<Object>> = BTreeMap::new();
        for pod in missing.doomed(&pods, exists, Instant::now()) {
            doomed.entry(pod.key.namespace().to_owned()).or_default().push(pod.clone());
        }
        for (namespace, pods) in doomed {
            removing.begin(&namespace, remove(context, pods));
        }
    }
}

/// Removes pods of one namespace.
async fn remove(context: &Context, pods: Vec<Object>) {
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

/// Nodes that pods name and that do not exist, and since when.
#[derive(Debug, Default)]
struct Missing(HashMap<String, Instant>);

impl Missing {
    fn doomed<'a>(
        &mut self,
        pods: &'a [Object],
        exists: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<&'a Object> {
        let named: HashMap<&str, bool> = pods
            .iter()
            .map(|pod| pod.text("/spec/nodeName"))
            .filter(|node| !node.is_empty())
            .map(|node| (node, exists(node)))
            .collect();
        self.0.retain(|node, _| named.get(node.as_str()) == Some(&false));
        for (node, exists) in &named {
            if !exists {
                self.0.entry((*node).to_owned()).or_insert(now);
            }
        }
        let gone =
            |node: &str| self.0.get(node).is_some_and(|since| now.duration_since(*since) >= QUARANTINE);
        pods.iter()
            .filter(|pod| match pod.text("/spec/nodeName") {
                "" => pod.is_terminating(),
                node => gone(node),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tombolo_apiserve::store::Revision;
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::ObjectKey;

    use super::*;

    fn pod(name: &str, value: Value) -> Object {
        let key = ObjectKey::new(core("pods"), "default", name);
        Object { key, uid: Uid::parse("u").unwrap(), revision: Revision(1), value }
    }

    #[test]
    fn a_node_must_be_missing_for_a_while() {
        let pods = [
            pod("here", json!({"spec": {"nodeName": "a"}})),
            pod("orphan", json!({"spec": {"nodeName": "b"}})),
            pod("waiting", json!({"spec": {}})),
            pod("undone", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}})),
        ];
        let names =
            |doomed: Vec<&Object>| doomed.iter().map(|pod| pod.key.name().to_owned()).collect::<Vec<_>>();
        let mut missing = Missing::default();
        let start = Instant::now();
        let only_a = |node: &str| node == "a";
        assert_eq!(names(missing.doomed(&pods, only_a, start)), ["undone"]);
        assert_eq!(
            names(missing.doomed(&pods, |_| true, start + QUARANTINE / 2)),
            ["undone"],
            "the node came"
        );
        assert_eq!(names(missing.doomed(&pods, only_a, start + QUARANTINE)), ["undone"], "and went again");
        assert_eq!(names(missing.doomed(&pods, only_a, start + QUARANTINE * 2)), ["orphan", "undone"]);
        missing.doomed(&[], only_a, start);
        assert!(missing.0.is_empty());
    }
}
