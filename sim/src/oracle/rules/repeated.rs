//! Equal content is not sent again: an object of which the edge has acknowledged this incarnation, this content and
//! these dependencies is adopted at most. It may be sent again if the edge refused to adopt it, if its disk was
//! replaced, or if an inventory says that this process of the edge does not hold it.

use std::collections::{BTreeMap, BTreeSet};

use crate::observation::{
    ObjectId, Observation, PUSHED, Seen, SeenChange, SeenDelivery, SeenFrame, SeenVersion,
};
use crate::oracle::connections::UnderWay;
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "repeated";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    /// What each machine holds in the pushed set.
    pushed: BTreeMap<String, Held>,
    /// What is held in subscriptions, whose numbers belong to their connection.
    followed: BTreeMap<(u64, u32), Held>,
    inventories: BTreeMap<u64, BTreeSet<ObjectId>>,
}

type Held = BTreeMap<ObjectId, (SeenVersion, Vec<ObjectId>)>;

impl Judge for Repeated {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        match &observation.seen {
            Seen::DiskReplaced { node } => {
                self.pushed.remove(node);
            }
            // A report of the node has changed what it holds.
            Seen::Shown { node, reader, object, version: Some(shown) } if reader == PUSHED => {
                let held = self.pushed.get_mut(node).and_then(|held| held.get_mut(object));
                if let Some((version, _)) = held.filter(|(version, _)| version.uid == shown.uid) {
                    version.content = shown.content;
                }
            }
            Seen::Restored { .. } => self.restored(),
            Seen::Closed { connection, .. } => self.followed.retain(|(owner, _), _| owner != connection),
            Seen::Sent { connection: number, up: true, frame, .. } => {
                let Some(connection) = context.connections.get(*number) else { return };
                self.edge_sent(*number, &connection.machine, frame);
                self.reported(&connection.machine, frame);
                for stored in &context.answered.stored {
                    self.stored(*number, &connection.machine, stored);
                }
                for refused in &context.answered.refused {
                    self.held(*number, &connection.machine, &refused.delivery)
                        .remove(&refused.delivery.object);
                }
            }
            Seen::Sent { connection: number, up: false, frame: SeenFrame::Deliver(delivery), .. } => {
                let Some(connection) = context.connections.get(*number) else { return };
                let held = self.held(*number, &connection.machine, delivery);
                if let Some(seen) = repetition(held, delivery) {
                    found.push(Violation {
                        rule: RULE,
                        at: observation.at,
                        node: connection.node.clone(),
                        object: Some(delivery.object.clone()),
                        seen,
                        expected: "nothing, or an adoption".to_owned(),
                    });
                }
            }
            _ => {}
        }
    }
}

fn repetition(held: &Held, delivery: &SeenDelivery) -> Option<String> {
    let (version, dependencies) = held.get(&delivery.object)?;
    match &delivery.change {
        SeenChange::Upsert(sent)
            if sent.uid == version.uid
                && sent.content == version.content
                && delivery.dependencies == *dependencies
                // A node learns versions of its Node from the answers to its reports, which are not trimmed as the cloud
                // trims Nodes. So it cannot say that it holds the content.
                && delivery.object.resource != "nodes" =>
        {
            Some(format!("{:?} of UID {} is sent again, which the edge holds", sent.content, sent.uid))
        }
        // Of its pods and its Node, a node learns later versions from the answers to its reports.
        SeenChange::Adopt { uid, revision }
            if *uid == version.uid
                && *revision == version.revision
                && !matches!(&*delivery.object.resource, "nodes" | "pods") =>
        {
            Some(format!("an adoption of revision {revision}, which the edge holds"))
        }
        _ => None,
    }
}

impl Repeated {
    /// Revisions of another history say nothing about what is held, and of a pod the edge holds what it has reported
    /// since, which the restored API has lost.
    fn restored(&mut self) {
        for held in self.pushed.values_mut().chain(self.followed.values_mut()) {
            held.retain(|object, _| object.resource != "pods");
            held.values_mut().for_each(|(version, _)| version.revision = 0);
        }
    }

    fn held(&mut self, connection: u64, machine: &str, delivery: &SeenDelivery) -> &mut Held {
        match delivery.subscription {
            0 => self.pushed.entry(machine.to_owned()).or_default(),
            number => self.followed.entry((connection, number)).or_default(),
        }
    }

    fn stored(&mut self, connection: u64, machine: &str, stored: &UnderWay) {
        let delivery = &stored.delivery;
        let held = self.held(connection, machine, delivery);
        match &delivery.change {
            SeenChange::Upsert(version) => {
                held.insert(delivery.object.clone(), (version.clone(), delivery.dependencies.clone()));
            }
            SeenChange::Adopt { uid, revision } => {
                if let Some((version, _)) =
                    held.get_mut(&delivery.object).filter(|(held, _)| held.uid == *uid)
                {
                    version.revision = *revision;
                }
            }
            SeenChange::Delete | SeenChange::Absent => {
                held.remove(&delivery.object);
            }
            SeenChange::Unreadable => {}
        }
    }

    /// A node that reports about a pod holds it with the status that it reports.
    fn reported(&mut self, machine: &str, frame: &SeenFrame) {
        let SeenFrame::Request { what, .. } = frame else { return };
        let path =
            what.strip_prefix("PATCH /api/v1/namespaces/").and_then(|path| path.strip_suffix("/status"));
        let pod = path.and_then(|path| path.split_once("/pods/"));
        if let (Some((namespace, name)), Some(held)) = (pod, self.pushed.get_mut(machine)) {
            held.remove(&ObjectId::new("pods", namespace, name));
        }
    }

    /// An inventory says what the store of this process holds; a copy of a disk holds less than the original.
    fn edge_sent(&mut self, connection: u64, machine: &str, frame: &SeenFrame) {
        let listed = match frame {
            SeenFrame::Hello { inventory } => inventory.as_ref().map(|all| all.iter().cloned().collect()),
            SeenFrame::InventoryPart { subscription: 0, objects, last } => {
                self.inventories.entry(connection).or_default().extend(objects.iter().cloned());
                last.then(|| self.inventories.remove(&connection).unwrap_or_default())
            }
            _ => None,
        };
        if let (Some(listed), Some(held)) = (listed, self.pushed.get_mut(machine)) {
            let listed: BTreeSet<ObjectId> = listed;
            held.retain(|object, _| listed.contains(object));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::testing::{Bench, ack, deliver, down, id, up};

    fn bench() -> Bench<Repeated> {
        let mut bench = Bench::new();
        bench.api.config("c", "1");
        let first = bench.upsert(1, "configmaps/d/c");
        bench.fine(first);
        bench
    }

    #[test]
    fn content_that_the_edge_has_acknowledged_is_not_sent_again() {
        let mut bench = bench();
        bench.fine(ack(1));
        let again = bench.upsert(2, "configmaps/d/c");
        assert_eq!(bench.wrong(again).rule, "repeated");
        bench.api.config("c", "2");
        let news = bench.upsert(3, "configmaps/d/c");
        bench.fine(news);
    }

    #[test]
    fn what_was_never_acknowledged_is_sent_again() {
        let mut bench = bench();
        let again = bench.upsert(2, "configmaps/d/c");
        bench.fine(again.clone());
        bench.fine(ack(2));
        bench.fine(down(1, deliver(3, &id("configmaps/d/c"), SeenChange::Delete)));
        bench.fine(ack(3));
        bench.fine(again);
    }

    #[test]
    fn a_refused_adoption_a_lost_disk_and_an_inventory_are_reasons() {
        let adopt = |revision| SeenChange::Adopt { uid: "uid-1".to_owned(), revision };
        let object = id("configmaps/d/c");
        for reason in ["adoption", "disk", "inventory", "none"] {
            let mut bench = bench();
            bench.fine(ack(1));
            match reason {
                "adoption" => {
                    bench.fine(down(1, deliver(2, &object, adopt(7))));
                    bench.fine(up(1, SeenFrame::Refuse { lane: 1, seq: 2 }));
                }
                "disk" => bench.fine(Seen::DiskReplaced { node: "n".to_owned() }),
                "inventory" => bench.fine(up(1, SeenFrame::Hello { inventory: Some(Vec::new()) })),
                _ => bench.fine(up(1, SeenFrame::Hello { inventory: Some(vec![object.clone()]) })),
            }
            let again = bench.upsert(3, "configmaps/d/c");
            assert_eq!(bench.see(again).is_empty(), reason != "none", "{reason}");
        }
    }

    #[test]
    fn an_adoption_that_changes_nothing_is_found() {
        let mut bench = bench();
        bench.fine(ack(1));
        let adopt = |seq, revision| {
            let change = SeenChange::Adopt { uid: "uid-1".to_owned(), revision };
            down(1, deliver(seq, &id("configmaps/d/c"), change))
        };
        bench.fine(adopt(2, 9));
        bench.fine(ack(2));
        bench.wrong(adopt(3, 9));
    }

    #[test]
    fn a_report_of_the_node_changes_what_it_holds() {
        let mut bench = bench();
        bench.api.pod("p", "n", &[]);
        let pod = bench.upsert(2, "pods/d/p");
        bench.fine(pod.clone());
        bench.fine(ack(2));
        bench.wrong(pod.clone());
        let what = "PATCH /api/v1/namespaces/d/pods/p/status".to_owned();
        bench.fine(up(1, SeenFrame::Request { id: 1, what, token: None }));
        bench.fine(pod);
    }

    #[test]
    fn a_restored_backup_counts_revisions_anew_and_has_lost_reports() {
        let mut bench = bench();
        bench.api.pod("p", "n", &[]);
        let pod = bench.upsert(2, "pods/d/p");
        bench.fine(pod.clone());
        bench.fine(ack(2));
        let held = bench.api.version("configmaps/d/c");
        bench.api.restore(held.revision);
        let adopt = SeenChange::Adopt { uid: held.uid, revision: held.revision };
        bench.fine(down(1, deliver(3, &id("configmaps/d/c"), adopt)));
        bench.fine(pod);
        let again = bench.upsert(4, "configmaps/d/c");
        bench.wrong(again);
    }
}
