//! Versions only move forward: what the local API of a node shows of an object follows the history of the API, and
//! never returns to an older version. Everything that is shown was once written.
//!
//! Revisions of the local API are the node's own, so versions are recognised by UID and content. A node that lost an
//! object may receive it again from a replica that lags, in a version that this replica may have seen. Between two
//! histories, until the node is caught up with the new one, a replica that lags may also send an older version.

use std::collections::BTreeMap;

use crate::observation::{HistoryPosition, Millis, ObjectId, Observation, Seen, SeenVersion};
use crate::oracle::history::History;
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "forward";

/// Kinds that nodes write themselves, so that they may be shown before the API knows them.
const OWN: [&str; 3] = ["events", "events.events.k8s.io", "leases.coordination.k8s.io"];

/// Node, reader and object.
type Shelf = (String, String, ObjectId);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Forward {
    held: BTreeMap<Shelf, Held>,
}

#[derive(Debug, Clone)]
struct Held {
    /// The earliest position at which what was shown last can have been the newest.
    position: HistoryPosition,
    local_revision: u64,
    gone: bool,
}

impl Judge for Forward {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        match &observation.seen {
            Seen::DiskReplaced { node } => self.held.retain(|(owner, _, _), _| owner != node),
            Seen::Shown { node, reader, object, version } if !OWN.contains(&&*object.resource) => {
                let shelf = (node.clone(), reader.clone(), object.clone());
                match version {
                    None => {
                        if let Some(held) = self.held.get_mut(&shelf) {
                            held.gone = true;
                        }
                    }
                    Some(version) => self.shown(context, observation.at, shelf, version, found),
                }
            }
            _ => {}
        }
    }
}

impl Forward {
    fn shown(
        &mut self,
        context: &Context,
        at: Millis,
        shelf: Shelf,
        version: &SeenVersion,
        found: &mut Vec<Violation>,
    ) {
        let (node, _, object) = &shelf;
        let mut report = |seen: String, expected: &str| {
            let (node, object, expected) = (node.clone(), Some(object.clone()), expected.to_owned());
            found.push(Violation { rule: RULE, at, node, object, seen, expected });
        };
        let last = self.held.get(&shelf);
        if last.is_some_and(|last| last.local_revision > version.revision) {
            let seen =
                format!("local revision {} after {}", version.revision, last.map_or(0, |l| l.local_revision));
            report(seen, "that local revisions only grow");
        }
        let bound = match last {
            Some(last) if !last.gone => last.position,
            Some(_) => context.oldest_basis(&object.resource, at),
            None => HistoryPosition::default(),
        };
        let history = &context.history;
        let position = match first_since(history, object, version, bound) {
            Some(position) => position,
            None => match first_since(history, object, version, HistoryPosition::default()) {
                None => {
                    report(format!("{version:?} is shown"), "a version that somebody has written");
                    return;
                }
                Some(position) => {
                    if !context.connections.is_between_histories(node) {
                        let seen = format!("{version:?} of {position:?} is shown after {bound:?}");
                        report(seen, "no version older than that");
                    }
                    position
                }
            },
        };
        let held = Held { position, local_revision: version.revision, gone: false };
        self.held.insert(shelf, held);
    }
}

/// The first position, not before `since`, at which the object had this content.
fn first_since(
    history: &History,
    object: &ObjectId,
    version: &SeenVersion,
    since: HistoryPosition,
) -> Option<HistoryPosition> {
    let mut states = history.states_since(object, since);
    let (position, _) = states.find(|(_, state)| {
        state.is_some_and(|state| {
            let known = &state.facts.version;
            known.uid == version.uid && known.significant == version.significant
        })
    })?;
    Some(position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::testing::{Bench, PUSHED, id, invented, shown};

    #[test]
    fn an_older_version_after_a_newer_one_is_found() {
        let mut bench = Bench::<Forward>::new();
        bench.api.config("c", "1");
        let old = bench.shown("configmaps/d/c");
        bench.api.config("c", "2");
        let new = bench.shown("configmaps/d/c");
        bench.fine(old.clone());
        bench.fine(new);
        bench.wrong(old);
        bench.wrong(shown("configmaps/d/c", Some(invented())));
    }

    #[test]
    fn another_incarnation_does_not_end_the_order() {
        let mut bench = Bench::<Forward>::new();
        bench.api.config("c", "1");
        let old = bench.shown("configmaps/d/c");
        bench.api.delete("configmaps/d/c");
        bench.api.config("c", "1");
        let new = bench.shown("configmaps/d/c");
        bench.fine(new);
        bench.wrong(old);
    }

    #[test]
    fn equal_content_again_is_a_later_version() {
        let mut bench = Bench::<Forward>::new();
        for text in ["1", "2", "1"] {
            bench.api.config("c", text);
            let seen = bench.shown("configmaps/d/c");
            bench.fine(seen);
        }
    }

    #[test]
    fn what_is_gone_comes_back_only_from_a_replica_that_may_know_it() {
        let mut bench = Bench::<Forward>::new();
        bench.api.config("c", "1");
        let old = bench.shown("configmaps/d/c");
        let known = bench.api.now();
        bench.fine(old.clone());
        bench.api.delete("configmaps/d/c");
        bench.fine(shown("configmaps/d/c", None));
        bench.views(&["configmaps"], known);
        bench.fine(old.clone());
        bench.fine(shown("configmaps/d/c", None));
        bench.views(&["configmaps"], bench.api.now());
        bench.wrong(old);
    }

    #[test]
    fn a_restored_backup_brings_back_what_was_there() {
        let mut bench = Bench::<Forward>::new();
        let first = bench.api.config("c", "1");
        let old = bench.shown("configmaps/d/c");
        bench.api.config("c", "2");
        let newer = bench.shown("configmaps/d/c");
        bench.fine(newer.clone());
        bench.api.restore(first.revision);
        bench.fine(old.clone());
        bench.fine(newer.clone());
        bench.fine(crate::oracle::testing::down(
            1,
            crate::observation::SeenFrame::CaughtUp { subscription: 0, epoch: "c/1".to_owned() },
        ));
        bench.fine(old);
        bench.wrong(newer);
    }

    #[test]
    fn revisions_of_the_local_api_only_grow() {
        let mut bench = Bench::<Forward>::new();
        bench.api.config("c", "1");
        let version = bench.api.version("configmaps/d/c");
        let shown = |revision: u64| Seen::Shown {
            node: "n".to_owned(),
            reader: PUSHED.to_owned(),
            object: id("configmaps/d/c"),
            version: Some(SeenVersion { revision, ..version.clone() }),
        };
        bench.fine(shown(9));
        bench.wrong(shown(8));
        bench.fine(Seen::DiskReplaced { node: "n".to_owned() });
        bench.fine(shown(1));
    }
}
