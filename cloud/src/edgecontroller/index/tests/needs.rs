//! Pods that refer to more objects than a node may have.

use super::*;
use crate::edgecontroller::reference_shares::{NODE_REFERENCES_BYTES_MAX, REFERENCE_LEN_MIN};

/// This many short names are a node's whole share.
const SHARE: usize = NODE_REFERENCES_BYTES_MAX / REFERENCE_LEN_MIN;

impl World {
    /// A pod that refers to so many Secrets, none of which exists.
    fn greedy(&mut self, namespace: &str, name: &str, secrets: usize) {
        let pull: Vec<_> = (0..secrets).map(|number| json!({ "name": format!("{name}-{number}") })).collect();
        let rest = json!({"spec": {"nodeName": "a", "imagePullSecrets": pull}});
        let raw = self.raw(namespace, name, &format!("u-{name}"), &rest);
        self.index.handle(Kind::Pod, ObjectEvent::Applied(raw));
    }

    /// The pod as its node gets it.
    fn told(&self, namespace: &str, name: &str) -> Arc<tombolo_proto::SharedObject> {
        let key = ObjectKey::new(Kind::Pod.resource(), namespace, name);
        match self.down.lookup(&node("a"), &key) {
            Lookup::Present(pod) => pod,
            other => panic!("{other:?}"),
        }
    }

    fn reads(&mut self) -> usize {
        self.offered().iter().filter(|effect| effect.starts_with("fetch")).count()
    }
}

/// References of one tenant's pods take nothing from others, on its node or in this process. Its pods are still
/// delivered.
#[test]
fn pod_with_too_many_references_is_delivered_without_them_until_there_is_room() {
    let mut world = World::synced(&["a"]);
    for number in 0..4 {
        world.greedy("tenant", &format!("greedy-{number}"), 4000);
    }
    assert_eq!((world.reads(), world.down.tally().unserved), (0, 4));
    assert_eq!(world.down.wanted(&node("a")).len(), 5, "the node and four pods");
    assert!(world.told("tenant", "greedy-0").dependencies.is_empty(), "it must not wait for them");
    // Another namespace gets what its pod needs, and so does a pod of the tenant that fits.
    world.pod("honest", "a", &["s"]);
    assert_eq!(world.told("d", "honest").dependencies, [key(Kind::Secret, "s")]);
    world.greedy("tenant", "fits", SHARE - 1);
    assert_eq!(world.reads(), SHARE);
    let with = world.told("tenant", "fits");
    assert_eq!(with.dependencies.len(), SHARE - 1);

    // A smaller pod takes its room: it is offered again, as another content of the same version.
    world.greedy("tenant", "smaller", 10);
    let effects = world.offered();
    assert!(effects.contains(&"a<-fits".to_owned()) && effects.contains(&"a<-fits-7".to_owned()));
    let without = world.told("tenant", "fits");
    assert!(without.dependencies.is_empty() && without.version.hash != with.version.hash);
    assert_eq!((&without.body, without.version.revision), (&with.body, with.version.revision));
    let gone = ObjectKey::new(Kind::Secret.resource(), "tenant", "fits-7");
    assert_eq!(world.state("a", &gone), "unwanted");
    assert!(!world.down.objects.contains_key(&gone), "no state of it is kept");
    assert_eq!(world.down.tally().unserved, 5);

    // The smaller pod is deleted again.
    world.index.pod_deleted(&Uid::parse("u-smaller").expect("valid"));
    let effects = world.offered();
    assert!(effects.contains(&"a<-fits".to_owned()) && effects.contains(&"fetch fits-7".to_owned()));
    assert_eq!(world.told("tenant", "fits").version, with.version);
    assert_eq!((world.state("a", &gone), world.down.tally().unserved), ("pending", 4));
    for number in 0..4 {
        world.index.pod_deleted(&Uid::parse(&format!("u-greedy-{number}")).expect("valid"));
    }
    assert_eq!(world.down.tally().unserved, 0);
}
