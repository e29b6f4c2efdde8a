//! Late events: versions older than the known one, and versions after others that were missed.

use super::*;

fn secret_at(revision: u64) -> RawObject {
    RawObject::new(json!({
        "metadata": {"name": "s", "namespace": "d", "uid": "u-s", "resourceVersion": revision.to_string()},
        "data": {"k": revision.to_string()},
    }))
}

impl World {
    fn secret_applied(&mut self, revision: u64) {
        self.index.handle(Kind::Secret, ObjectEvent::Applied(secret_at(revision)));
    }

    fn secret_deleted(&mut self, revision: u64) {
        self.index.handle(Kind::Secret, ObjectEvent::Deleted(secret_at(revision)));
    }

    /// The changes sent to the node since the last call, and the objects that it holds.
    fn told_of_s(&mut self) -> (Vec<String>, &'static str) {
        (self.offered(), self.state("a", &key(Kind::Secret, "s")))
    }

    /// The revision of an object, and the one since which its node acts on the same content.
    fn same_since(&self, key: &ObjectKey) -> (u64, u64) {
        match self.down.lookup(&node("a"), key) {
            Lookup::Present(object) => (object.version.revision.0, object.same_since.0),
            other => panic!("{other:?}"),
        }
    }

    /// Has the index learn the next version of an object in this way.
    fn learns(&mut self, way: &str, kind: Kind, raw: RawObject) {
        let key = raw.key(&kind.resource());
        match way {
            "a list of the watch" => {
                self.index.handle(kind, ObjectEvent::RelistStart);
                self.index.handle(kind, ObjectEvent::Applied(raw));
                self.index.handle(kind, ObjectEvent::RelistEnd);
            }
            "the last of several events" => {
                self.index.set_merged([key].into());
                self.index.handle(kind, ObjectEvent::Applied(raw));
            }
            "a read" => self.index.fetched(&key, None, Some(raw)),
            "a list of the node's pods" => self.index.pods_listed(&node("a"), listed([raw])),
            _ => self.index.handle(kind, ObjectEvent::Applied(raw)),
        }
    }
}

fn needing_s() -> World {
    let mut world = World::synced(&["a"]);
    world.pod("p", "a", &["s"]);
    world.offered();
    world
}

#[test]
fn deletion_older_than_the_known_version_is_ignored() {
    let mut world = needing_s();
    world.secret_applied(200);
    assert_eq!(world.told_of_s(), (vec!["a<-s".to_owned()], "present"));
    world.secret_deleted(199);
    assert_eq!(world.told_of_s(), (vec![], "present"));
    world.secret_deleted(200);
    assert_eq!(world.told_of_s(), (vec!["a<-s".to_owned()], "absent"), "its own deletion");

    // An object whose body is not kept.
    let mut world = needing_s();
    let large = of_many_values(Kind::Secret, "s", 300, "");
    world.index.handle(Kind::Secret, ObjectEvent::Applied(large));
    assert_eq!(world.told_of_s(), (vec!["a<-s".to_owned()], "unreadable"));
    world.secret_deleted(299);
    assert_eq!(world.told_of_s(), (vec![], "unreadable"));
    world.secret_deleted(301);
    assert_eq!(world.told_of_s(), (vec!["a<-s".to_owned()], "absent"));
}

#[test]
fn late_deletion_does_not_revive_an_object() {
    let mut world = needing_s();
    world.secret_deleted(300);
    assert_eq!(world.told_of_s(), (vec!["a<-s".to_owned()], "absent"));
    world.secret_deleted(250);
    assert_eq!(world.told_of_s(), (vec![], "absent"));
    world.secret_applied(270);
    assert_eq!(world.told_of_s(), (vec![], "absent"), "it is from before the last deletion");
    world.secret_applied(301);
    assert_eq!(world.told_of_s(), (vec!["a<-s".to_owned()], "present"), "it was created again");
}

#[test]
fn deletions_of_unneeded_objects_are_not_kept() {
    let mut world = World::synced(&["a"]);
    let before = world.down.objects.len();
    world.secret_applied(200);
    world.secret_deleted(201);
    assert_eq!(world.down.objects.len(), before);
}

/// The content may have changed and changed back in a version that was missed. An edge that holds an older version must
/// get the newest one.
#[test]
fn missed_versions_are_not_assumed_equal() {
    let missing = ["a list of the watch", "the last of several events", "a read"];
    for (kind, own) in [(Kind::Pod, key(Kind::Pod, "p")), (Kind::Node, node_key(&node("a")))] {
        let of_pods = (kind == Kind::Pod).then_some("a list of the node's pods");
        for way in ["an event"].into_iter().chain(missing).chain(of_pods) {
            let mut world = World::synced(&["a"]);
            let next = |world: &mut World| match kind {
                Kind::Pod => world.pod_raw("p", "a", &[]),
                _ => world.raw("", "a", "u-node", &json!({"metadata": {"labels": {nodes::EDGE_LABEL: ""}}})),
            };
            let raw = next(&mut world);
            world.learns("an event", kind, raw);
            let first = world.same_since(&own);
            let raw = next(&mut world);
            world.learns(way, kind, raw);
            let second = world.revision;
            let expected = if missing.contains(&way) || Some(way) == of_pods { second } else { first.1 };
            assert_eq!(world.same_since(&own), (second, expected), "{kind:?} from {way}");
            // From here on nothing is missed.
            world.index.set_merged(HashSet::new());
            let raw = next(&mut world);
            world.learns("an event", kind, raw);
            assert_eq!(world.same_since(&own), (world.revision, expected), "{kind:?} after {way}");
        }
    }
}
