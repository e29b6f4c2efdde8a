//! When the faults have ended and the system has had its time, each honest node shows exactly what it needs, in the
//! newest version, and each client exactly what it follows. Judged once, at the first observation after that time.
//!
//! A node whose Node was deleted has to join again, and is left out. A node whose pods ask for more than its share may
//! lack objects, and shows no others. Selections by fields are not judged, nor those to which a client has no right.

use std::collections::{BTreeMap, BTreeSet};

use super::missing::{is_pushed, selects};
use crate::observation::{Millis, ObjectId, Observation, PUSHED, Seen, SeenVersion, Selection};
use crate::oracle::needs::{exceeds_share, needs};
use crate::oracle::rbac::{Subject, may_follow_since};
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "converged";

/// Differences that are reported of one reader.
const REPORTED_MAX: usize = 5;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Converged {
    shown: BTreeMap<(String, String), BTreeMap<ObjectId, SeenVersion>>,
    selections: BTreeMap<(String, String), (Selection, Option<String>)>,
    is_judged: bool,
}

impl Judge for Converged {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        match &observation.seen {
            Seen::Shown { node, reader, object, version } => {
                let shown = self.shown.entry((node.clone(), reader.clone())).or_default();
                match version {
                    Some(version) => drop(shown.insert(object.clone(), version.clone())),
                    None => drop(shown.remove(object)),
                }
            }
            Seen::Following { node, reader, selection, account } => {
                let followed = (selection.clone(), account.clone());
                self.selections.insert((node.clone(), reader.clone()), followed);
            }
            Seen::Unfollowed { node, reader } => {
                let key = (node.clone(), reader.clone());
                self.selections.remove(&key);
                self.shown.remove(&key);
            }
            _ => {}
        }
        if context.is_settled(observation.at) && !self.is_judged {
            self.is_judged = true;
            self.judge_all(context, observation.at, found);
        }
    }

    fn is_satisfied(&self, context: &Context) -> bool {
        let mut found = Vec::new();
        self.judge_all(context, 0, &mut found);
        found.is_empty()
    }
}

impl Converged {
    fn judge_all(&self, context: &Context, at: Millis, found: &mut Vec<Violation>) {
        for node in context.nodes.iter().filter(|node| context.node_may_connect(node)) {
            self.judge(context, node, at, found);
        }
    }

    fn judge(&self, context: &Context, node: &str, at: Millis, found: &mut Vec<Violation>) {
        let history = &context.history;
        let may_lack = exceeds_share(history, node, history.now(), context.limits.share);
        self.compare(context, (node, PUSHED), needs(history, node).into_iter(), may_lack, at, found);
        let of_node = self.selections.iter().filter(|((owner, _), _)| owner == node);
        for ((_, reader), (selection, account)) in of_node {
            // With the node's own credentials, a client sees what the node needs.
            let is_own = account.is_none() && is_pushed(&selection.resource);
            let subject = Subject::follower(node, account.as_deref());
            let may_follow = is_own || may_follow_since(history, &subject, selection, history.now());
            if !selection.fields.is_empty() || !may_follow {
                continue;
            }
            let all = history.of_kind(&selection.resource, &selection.namespace);
            let needed = if is_own { needs(history, node) } else { BTreeSet::new() };
            let wanted = all.filter(|(id, changes)| {
                let present = changes.last().and_then(|change| change.state.as_ref());
                let is_selected = present.is_some_and(|present| selects(selection, id, present));
                is_selected && (!is_own || needed.contains(*id))
            });
            self.compare(context, (node, reader), wanted.map(|(id, _)| id.clone()), false, at, found);
        }
    }

    /// Compares what a reader sees with the objects that it should see, if they exist.
    fn compare(
        &self,
        context: &Context,
        (node, reader): (&str, &str),
        wanted: impl Iterator<Item = ObjectId>,
        may_lack: bool,
        at: Millis,
        found: &mut Vec<Violation>,
    ) {
        let key = (node.to_owned(), reader.to_owned());
        let mut shown = self.shown.get(&key).cloned().unwrap_or_default();
        let mut differences = Vec::new();
        for id in wanted {
            let Some(present) = context.history.present(&id) else { continue };
            let version = &present.facts.version;
            match shown.remove(&id) {
                Some(held) if held.uid == version.uid && held.significant == version.significant => {}
                None if may_lack => {}
                held => differences.push((id, format!("{held:?}"), format!("{version:?}"))),
            }
        }
        let more = shown.into_iter().map(|(id, held)| (id, format!("{held:?}"), "nothing".to_owned()));
        for (id, seen, expected) in differences.into_iter().chain(more).take(REPORTED_MAX) {
            let (node, object, seen) = (node.to_owned(), Some(id), format!("{reader} sees {seen}"));
            found.push(Violation { rule: RULE, at, node, object, seen, expected });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::oracle::testing::{Bench, id, shown};

    fn bench() -> Bench<Converged> {
        let mut bench = Bench::new();
        bench.api.config("c", "1");
        bench.api.pod("p", "n", &["configmaps/d/c", "configmaps/d/none"]);
        for object in ["pods/d/p", "configmaps/d/c"] {
            let seen = bench.shown(object);
            bench.fine(seen);
        }
        bench
    }

    fn end(mut bench: Bench<Converged>) -> Vec<Violation> {
        bench.fine(Seen::FaultsEnded);
        bench.pass(1000);
        let found = bench.see(Seen::Finished);
        assert_eq!(bench.see(Seen::Finished), [], "judged once");
        found
    }

    #[test]
    fn a_node_that_has_exactly_what_it_needs_has_converged() {
        assert_eq!(end(bench()), []);
    }

    #[test]
    fn an_old_version_a_lost_object_and_one_too_many_are_found() {
        let mut old = bench();
        old.api.config("c", "2");
        assert_eq!(end(old).len(), 1);
        let mut lost = bench();
        lost.fine(shown("pods/d/p", None));
        assert_eq!(end(lost)[0].object, Some(id("pods/d/p")));
        let mut many = bench();
        many.api.config("other", "1");
        let other = many.shown("configmaps/d/other");
        many.fine(other);
        assert_eq!(end(many)[0].expected, "nothing");
        let mut another = bench();
        another.api.delete("configmaps/d/c");
        another.api.config("c", "1");
        assert_eq!(end(another).len(), 1, "another incarnation");
    }

    #[test]
    fn a_node_whose_node_was_deleted_has_to_join_again() {
        let mut bench = bench();
        bench.api.put("nodes//n", "system:node:n", json!({}));
        bench.api.delete("nodes//n");
        bench.fine(shown("pods/d/p", None));
        assert_eq!(end(bench), []);
    }

    #[test]
    fn a_client_sees_its_selection() {
        let labels = "app=web".to_owned();
        let selection = Selection { resource: "services".to_owned(), labels, ..Selection::default() };
        let (node, reader) = ("n".to_owned(), "proxy".to_owned());
        for (app, differences) in [("web", 1), ("other", 0)] {
            let mut bench = bench();
            bench.api.put("services/d/s", "user", json!({"metadata": {"labels": {"app": app}}}));
            let (node, reader, selection) = (node.clone(), reader.clone(), selection.clone());
            bench.api.grant("tombolo:edge-nodes", "services");
            bench.fine(Seen::Following { node, reader, selection, account: None });
            assert_eq!(end(bench).len(), differences, "{app}");
        }
    }
}
