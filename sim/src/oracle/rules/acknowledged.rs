//! What is acknowledged is on disk after a crash, in that version or one that was delivered later, also if that was
//! refused: after a failed sync nobody knows which writes it made durable. The pushed set is
//! judged; the order of subscriptions is that of their own connections.

use std::collections::BTreeMap;

use crate::observation::{Millis, ObjectId, Observation, Seen, SeenChange, SeenFrame, SeenRow};
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "acknowledged";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    /// By machine: the acknowledgements of a copy say nothing about the disk of the original.
    objects: BTreeMap<(String, ObjectId), Told>,
}

/// What a node was told about one object.
#[derive(Debug, Default)]
struct Told {
    /// The newest that it has acknowledged.
    acknowledged: Option<SeenChange>,
    /// Everything that was delivered after that. A delivery that was refused because a sync failed may be on disk all
    /// the same.
    later: Vec<SeenChange>,
}

impl Judge for Acknowledged {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        match &observation.seen {
            Seen::DiskReplaced { node } => self.objects.retain(|(owner, _), _| owner != node),
            Seen::Sent { connection, up, frame, .. } => {
                let Some(connection) = context.connections.get(*connection) else { return };
                let machine = &connection.machine;
                if let (false, SeenFrame::Deliver(delivery)) = (*up, frame)
                    && delivery.subscription == 0
                {
                    let told = self.objects.entry((machine.clone(), delivery.object.clone())).or_default();
                    told.later.push(delivery.change.clone());
                }
                for stored in &context.answered.stored {
                    let delivery = &stored.delivery;
                    let told = self.objects.get_mut(&(machine.clone(), delivery.object.clone()));
                    if let Some(told) = told.filter(|_| delivery.subscription == 0) {
                        told.stored(&delivery.change);
                    }
                }
            }
            Seen::OnDisk { node, rows } => self.check(observation.at, node, rows, found),
            _ => {}
        }
    }
}

impl Told {
    fn stored(&mut self, change: &SeenChange) {
        if let Some(index) = self.later.iter().position(|later| later == change) {
            self.later.drain(..=index);
            // An object that is held stays held when the cloud cannot read it.
            let stays =
                *change == SeenChange::Unreadable && self.acknowledged.as_ref().is_some_and(has_version);
            if !stays {
                self.acknowledged = Some(change.clone());
            }
        }
    }
}

fn has_version(change: &SeenChange) -> bool {
    matches!(change, SeenChange::Upsert(_) | SeenChange::Adopt { .. })
}

impl Acknowledged {
    fn check(&self, at: Millis, node: &str, rows: &[(ObjectId, SeenRow)], found: &mut Vec<Violation>) {
        let rows: BTreeMap<_, _> = rows.iter().map(|(id, row)| (id, row)).collect();
        for ((owner, id), told) in self.objects.iter().filter(|((owner, _), _)| owner == node) {
            let Some(acknowledged) = &told.acknowledged else { continue };
            let row = rows.get(id).copied();
            let mut lawful = std::iter::once(acknowledged).chain(&told.later);
            if !lawful.any(|change| agrees(change, row)) {
                found.push(Violation {
                    rule: RULE,
                    at,
                    node: owner.clone(),
                    object: Some(id.clone()),
                    seen: format!("after the crash the disk holds {row:?}"),
                    expected: format!("{acknowledged:?}, or what came later: {:?}", told.later),
                });
            }
        }
    }
}

/// Whether the row is what is stored for a change.
fn agrees(change: &SeenChange, row: Option<&SeenRow>) -> bool {
    match (change, row) {
        (SeenChange::Upsert(version), Some(SeenRow::Present(held))) => {
            // The answer to a report may have brought a later version of the same incarnation, and a version that became
            // unreadable in a later history has revision 0.
            held.uid == version.uid && (held.revision >= version.revision || held.revision == 0)
        }
        (SeenChange::Adopt { uid, revision }, Some(SeenRow::Present(held))) => {
            held.uid == *uid && (held.revision >= *revision || held.revision == 0)
        }
        (SeenChange::Delete, None)
        | (SeenChange::Absent, Some(SeenRow::Absent))
        | (SeenChange::Unreadable, Some(SeenRow::Unreadable)) => true,
        // What was held stays held.
        (SeenChange::Unreadable, Some(SeenRow::Present(held))) => held.revision == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::testing::{Bench, ack, deliver, down, id, up};

    fn disk(rows: &[(&str, SeenRow)]) -> Seen {
        let rows = rows.iter().map(|(object, row)| (id(object), row.clone())).collect();
        Seen::OnDisk { node: "n".to_owned(), rows }
    }

    fn present(bench: &Bench<Acknowledged>) -> SeenRow {
        SeenRow::Present(bench.api.version("configmaps/d/c"))
    }

    #[test]
    fn an_acknowledged_object_that_the_crash_took_is_found() {
        let mut bench = Bench::<Acknowledged>::new();
        bench.api.config("c", "1");
        let old = present(&bench);
        let first = bench.upsert(1, "configmaps/d/c");
        bench.fine(first);
        bench.fine(disk(&[]));
        bench.fine(ack(1));
        bench.wrong(disk(&[]));
        bench.api.config("c", "2");
        let second = bench.upsert(2, "configmaps/d/c");
        bench.fine(second);
        bench.fine(disk(&[("configmaps/d/c", old.clone())]));
        bench.fine(ack(2));
        let found = bench.wrong(disk(&[("configmaps/d/c", old)]));
        assert_eq!(found.object, Some(id("configmaps/d/c")));
    }

    #[test]
    fn what_was_delivered_later_may_be_there_already() {
        let mut bench = Bench::<Acknowledged>::new();
        bench.api.config("c", "1");
        let first = bench.upsert(1, "configmaps/d/c");
        bench.fine(first);
        bench.fine(ack(1));
        bench.api.config("c", "2");
        let second = bench.upsert(2, "configmaps/d/c");
        bench.fine(second);
        let row = present(&bench);
        bench.fine(disk(&[("configmaps/d/c", row)]));
        bench.fine(down(1, deliver(3, &id("configmaps/d/c"), SeenChange::Delete)));
        bench.fine(disk(&[]));
        bench.fine(ack(3));
        let row = present(&bench);
        bench.wrong(disk(&[("configmaps/d/c", row)]));
        bench.fine(Seen::DiskReplaced { node: "n".to_owned() });
        bench.fine(disk(&[]));
    }

    #[test]
    fn what_was_refused_may_be_there_and_what_a_copy_acknowledged_need_not() {
        let mut bench = Bench::<Acknowledged>::new();
        bench.api.config("c", "1");
        let first = bench.upsert(1, "configmaps/d/c");
        bench.fine(first);
        bench.fine(ack(1));
        bench.api.config("c", "2");
        let second = bench.upsert(2, "configmaps/d/c");
        bench.fine(second);
        bench.fine(up(1, SeenFrame::Refuse { lane: 1, seq: 2 }));
        bench.fine(disk(&[("configmaps/d/c", present(&bench))]));
        bench.api.config("other", "1");
        let (node, machine) = ("n".to_owned(), "n-copy".to_owned());
        bench.fine(Seen::Connected { connection: 2, node, machine, replica: 0 });
        let other = SeenChange::Upsert(bench.api.version("configmaps/d/other"));
        bench.fine(down(2, deliver(1, &id("configmaps/d/other"), other)));
        bench.fine(up(2, SeenFrame::Ack { lanes: vec![(1, 1)] }));
        bench.fine(disk(&[("configmaps/d/c", present(&bench))]));
    }

    #[test]
    fn known_absences_and_unreadable_objects_are_rows_too() {
        let mut bench = Bench::<Acknowledged>::new();
        let object = id("secrets/d/s");
        bench.fine(down(1, deliver(1, &object, SeenChange::Absent)));
        bench.fine(ack(1));
        bench.wrong(disk(&[]));
        bench.fine(disk(&[("secrets/d/s", SeenRow::Absent)]));
        bench.fine(down(1, deliver(2, &object, SeenChange::Unreadable)));
        bench.fine(ack(2));
        bench.wrong(disk(&[("secrets/d/s", SeenRow::Absent)]));
        bench.fine(disk(&[("secrets/d/s", SeenRow::Unreadable)]));
    }
}
