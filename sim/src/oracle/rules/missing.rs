//! No object is ever missing at an edge that it needed all along. A wrong removal counts also if it is mended later.
//!
//! "All along" is the time since the oldest position on which the removal may rest. For a frame that is what its
//! replica had seen of the kind when it sent the frame. What the local API stops showing may rest on the view of any
//! replica that had a view within [`OracleLimits::flight`](crate::oracle::OracleLimits::flight). A need that was
//! interrupted since then may have been seen to end, and an object that did not exist in between to be gone.

use std::collections::{BTreeMap, BTreeSet};

use crate::observation::{
    HistoryPosition, ObjectId, Observation, PUSHED, Seen, SeenChange, SeenDelivery, SeenFrame, Selection,
};
use crate::oracle::history::{History, PastObject};
use crate::oracle::needs::{exceeds_share, needed_since};
use crate::oracle::rbac::{Subject, may_follow_since};
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "missing";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Missing {
    selections: BTreeMap<(String, String), Followed>,
    /// The incarnations that readers were shown last.
    shown: BTreeMap<(String, String, ObjectId), String>,
    /// Nodes whose disk was replaced and that have not been caught up since.
    empty: BTreeSet<String>,
}

impl Judge for Missing {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        let at = observation.at;
        match &observation.seen {
            Seen::Following { node, reader, selection, account } => {
                let subject = Subject::follower(node, account.as_deref());
                let followed = Followed { selection: selection.clone(), subject, is_node: account.is_none() };
                self.selections.insert((node.clone(), reader.clone()), followed);
            }
            Seen::Unfollowed { node, reader } => {
                self.selections.remove(&(node.clone(), reader.clone()));
            }
            Seen::DiskReplaced { node } => {
                self.empty.insert(node.clone());
            }
            Seen::Shown { node, reader, object, version: Some(version) } => {
                self.shown.insert((node.clone(), reader.clone(), object.clone()), version.uid.clone());
            }
            Seen::Shown { node, reader, object, version: None } if !self.empty.contains(node) => {
                let uid = self.shown.remove(&(node.clone(), reader.clone(), object.clone()));
                let present = context.history.present(object).map(|object| &object.facts.version.uid);
                if present != uid.as_ref() {
                    // Another incarnation follows it.
                    return;
                }
                let lost = match self.selections.get(&(node.clone(), reader.clone())) {
                    followed if is_own(reader, object, followed) => {
                        let basis = |resource: &str| context.oldest_basis(resource, at);
                        must_stay(context, node, object, &basis)
                    }
                    Some(Followed { selection, subject, .. }) => {
                        let since = context.oldest_basis(&object.resource, at);
                        let reviewed = context.history.at(at.saturating_sub(context.limits.review));
                        selected_since(&context.history, selection, object, since)
                            && may_follow_since(&context.history, subject, selection, reviewed)
                    }
                    None => false,
                };
                if lost {
                    let seen = format!("the local API no longer shows it to {reader}");
                    found.push(violation(at, node, object, seen));
                }
            }
            Seen::Sent { connection, up: false, frame, .. } => {
                let Some(connection) = context.connections.get(*connection) else { return };
                match frame {
                    SeenFrame::CaughtUp { subscription: 0, .. } => {
                        self.empty.remove(&connection.node);
                    }
                    SeenFrame::Deliver(delivery) if delivery.subscription == 0 => {
                        let basis = |resource: &str| context.basis_of(connection.replica, resource, at);
                        if let Some(seen) = taken(context, &connection.node, delivery, &basis) {
                            let seen = format!("replica {} {seen}", connection.replica);
                            found.push(violation(at, &connection.node, &delivery.object, seen));
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// What a local client follows.
#[derive(Debug)]
struct Followed {
    selection: Selection,
    subject: Subject,
    /// It shows the node's own credentials.
    is_node: bool,
}

/// Whether a reader sees what the node needs by itself.
fn is_own(reader: &str, object: &ObjectId, followed: Option<&Followed>) -> bool {
    reader == PUSHED || followed.is_some_and(|followed| followed.is_node && is_pushed(&object.resource))
}

/// Whether a client with the node's own credentials is shown only what the node needs of this kind.
pub(super) fn is_pushed(resource: &str) -> bool {
    matches!(resource, "pods" | "configmaps" | "secrets")
}

fn violation(at: u64, node: &str, object: &ObjectId, seen: String) -> Violation {
    let expected = "that it stays: it is needed and exists all along".to_owned();
    Violation { rule: RULE, at, node: node.to_owned(), object: Some(object.clone()), seen, expected }
}

/// How a delivery wrongly takes an object away.
fn taken(
    context: &Context,
    node: &str,
    delivery: &SeenDelivery,
    basis: &dyn Fn(&str) -> HistoryPosition,
) -> Option<&'static str> {
    let object = &delivery.object;
    let word = match delivery.change {
        SeenChange::Delete => "deletes it",
        SeenChange::Absent => "says that it does not exist",
        SeenChange::Upsert(_) | SeenChange::Adopt { .. } | SeenChange::Unreadable => return None,
    };
    must_stay(context, node, object, basis).then_some(word)
}

/// Whether the object existed and was needed by the node in everything that the remover may have seen.
fn must_stay(context: &Context, node: &str, id: &ObjectId, basis: &dyn Fn(&str) -> HistoryPosition) -> bool {
    let history = &context.history;
    let existed = history.existed_since(id, basis(&id.resource));
    let pods = basis("pods");
    existed
        && needed_since(history, node, id, pods)
        && !exceeds_share(history, node, pods, context.limits.share)
}

/// Whether the selection contained the object all the time since a position. Field selectors are not judged.
fn selected_since(history: &History, selection: &Selection, id: &ObjectId, since: HistoryPosition) -> bool {
    let is_selected = |state: Option<&PastObject>| state.is_some_and(|object| selects(selection, id, object));
    let mut states = history.states_since(id, since);
    selection.fields.is_empty()
        && history.existed_since(id, since)
        && states.all(|(_, state)| is_selected(state.map(AsRef::as_ref)))
}

/// Whether a selection without fields contains an object.
pub(super) fn selects(selection: &Selection, id: &ObjectId, object: &PastObject) -> bool {
    let mut labels = selection.labels.split(',').filter(|label| !label.is_empty());
    let has = |label: &str| {
        let (name, value) = label.split_once('=').unwrap_or((label, ""));
        object.facts.labels.get(name).is_some_and(|found| found == value)
    };
    selection.resource == id.resource
        && (selection.namespace.is_empty() || selection.namespace == id.namespace)
        && labels.all(has)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::oracle::testing::{Bench, deliver, down, id, shown};

    fn bench() -> Bench<Missing> {
        let mut bench = Bench::new();
        bench.api.config("c", "1");
        bench.api.pod("p", "n", &["configmaps/d/c"]);
        bench
    }

    /// The node shows the present incarnation, and then no more.
    fn lost(bench: &mut Bench<Missing>, object: &str) {
        let held = bench.shown(object);
        bench.fine(held);
        bench.wrong(shown(object, None));
    }

    /// A reader whose list has changed from one incarnation to the next sees the end of the first one.
    #[test]
    fn the_end_of_an_older_incarnation_takes_nothing_away() {
        let mut bench = bench();
        let old = bench.shown("configmaps/d/c");
        bench.fine(old);
        bench.api.delete("configmaps/d/c");
        bench.api.config("c", "1");
        bench.views(&["configmaps", "pods"], bench.api.now());
        bench.pass(10);
        bench.fine(shown("configmaps/d/c", None));
        lost(&mut bench, "configmaps/d/c");
    }

    #[test]
    fn a_pod_that_a_lagging_replica_does_not_know_is_not_deleted() {
        let mut bench = bench();
        let known = bench.api.now();
        bench.api.pod("p", "n", &["configmaps/d/c"]);
        bench.views(&["pods"], known);
        let found = bench.wrong(down(1, deliver(1, &id("pods/d/p"), SeenChange::Delete)));
        assert_eq!((found.rule, &*found.node), ("missing", "n"));
        bench.wrong(down(1, deliver(2, &id("configmaps/d/c"), SeenChange::Absent)));
        lost(&mut bench, "pods/d/p");
    }

    #[test]
    fn an_end_that_the_replica_has_seen_is_told_however_late() {
        let mut bench = bench();
        bench.views(&["pods", "configmaps"], bench.api.now());
        bench.api.delete("pods/d/p");
        let without = bench.api.now();
        bench.api.pod("q", "n", &["configmaps/d/c"]);
        // The replica has seen that the first pod is gone, and nothing of the second one.
        bench.views(&["pods"], without);
        bench.fine(down(1, deliver(1, &id("pods/d/p"), SeenChange::Delete)));
        bench.fine(down(1, deliver(2, &id("configmaps/d/c"), SeenChange::Delete)));
        bench.fine(shown("configmaps/d/c", None));
        // From now on it knows both.
        bench.views(&["pods"], bench.api.now());
        bench.wrong(down(1, deliver(3, &id("configmaps/d/c"), SeenChange::Delete)));
    }

    #[test]
    fn the_need_alone_and_the_existence_alone_are_no_reason_to_keep() {
        let mut bench = bench();
        bench.fine(shown("configmaps/d/other", None));
        bench.api.config("unneeded", "1");
        bench.fine(shown("configmaps/d/unneeded", None));
        bench.api.delete("configmaps/d/c");
        bench.fine(shown("configmaps/d/c", None));
        bench.api.config("c", "2");
        bench.fine(down(1, deliver(1, &id("configmaps/d/c"), SeenChange::Unreadable)));
        lost(&mut bench, "configmaps/d/c");
    }

    #[test]
    fn a_lost_disk_takes_what_it_held_along() {
        let mut bench = bench();
        bench.fine(Seen::DiskReplaced { node: "n".to_owned() });
        bench.fine(shown("configmaps/d/c", None));
        bench.fine(down(1, SeenFrame::CaughtUp { subscription: 0, epoch: String::new() }));
        lost(&mut bench, "configmaps/d/c");
    }

    #[test]
    fn what_a_client_follows_stays_while_it_is_selected() {
        let mut bench = bench();
        let (node, reader) = ("n".to_owned(), "proxy".to_owned());
        let labels = "app=web".to_owned();
        let selection = Selection { resource: "services".to_owned(), labels, ..Selection::default() };
        let service = |app: &str| json!({"metadata": {"labels": {"app": app}}});
        bench.api.put("services/d/s", "user", service("web"));
        bench.api.grant("tombolo:edge-nodes", &selection.resource);
        bench.fine(Seen::Following { node: node.clone(), reader: reader.clone(), selection, account: None });
        bench.pass(400_000);
        let version = bench.api.version("services/d/s");
        let shows = |version| {
            let (node, reader) = (node.clone(), reader.clone());
            Seen::Shown { node, reader, object: id("services/d/s"), version }
        };
        bench.fine(shows(Some(version.clone())));
        bench.wrong(shows(None));
        bench.fine(shows(Some(version)));
        bench.api.put("services/d/s", "user", service("other"));
        bench.fine(shows(None));
    }
}
