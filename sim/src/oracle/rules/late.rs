//! An undisturbed node gets what it needs, whatever happens to others and to other kinds: an object that has been
//! needed, and has not changed, for [`OracleLimits::late`](crate::oracle::OracleLimits::late) is shown in its version.
//!
//! A fault excuses what it may delay, and the same time after it. Faults of one kind excuse objects of that kind: a pod
//! whose Secrets cannot be read is shown without them, and nobody else waits for them. Faults of pods and Nodes excuse
//! everything. Judged every ten seconds until the faults have ended; then [`converged`](super::converged) judges.

use std::collections::{BTreeMap, BTreeSet};

use crate::observation::{
    FaultScope, HistoryPosition, Millis, ObjectId, Observation, PUSHED, Seen, SeenVersion,
};
use crate::oracle::needs::{exceeds_share, needed_since, needs};
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "late";

/// Time between two judgements.
const INTERVAL: Millis = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Late {
    shown: BTreeMap<(String, ObjectId), SeenVersion>,
    /// Everything is excused until then.
    everything: Excuse,
    kinds: BTreeMap<String, Excuse>,
    /// Kinds whose lists are delayed.
    lists: BTreeMap<String, Excuse>,
    nodes: BTreeMap<String, Excuse>,
    reported: BTreeSet<(String, ObjectId)>,
    judged: Millis,
}

/// Faults of one scope.
#[derive(Debug, Default)]
struct Excuse {
    lasting: u32,
    until: Millis,
}

impl Excuse {
    fn counts(&self, at: Millis) -> bool {
        self.lasting > 0 || at < self.until
    }
}

impl Judge for Late {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        let at = observation.at;
        match &observation.seen {
            Seen::Shown { node, reader, object, version } if reader == PUSHED => {
                let key = (node.clone(), object.clone());
                match version {
                    Some(version) => drop(self.shown.insert(key, version.clone())),
                    None => drop(self.shown.remove(&key)),
                }
            }
            Seen::FaultBegan { scope } => self.excuse(scope).lasting += 1,
            Seen::FaultOver { scope } => {
                let limits = &context.limits;
                let time = match scope {
                    FaultScope::Identity(_) | FaultScope::Hostile(_) => limits.late_after_contest,
                    FaultScope::Kind(_) | FaultScope::Lists(_) | FaultScope::Everything => {
                        limits.late_of_watches
                    }
                    FaultScope::Node(_) => limits.late,
                };
                let excuse = self.excuse(scope);
                excuse.lasting = excuse.lasting.saturating_sub(1);
                excuse.until = excuse.until.max(at + time);
            }
            Seen::DiskReplaced { node } => {
                let excuse = self.nodes.entry(node.clone()).or_default();
                excuse.until = excuse.until.max(at + context.limits.late);
            }
            _ => {}
        }
        let is_time = at >= self.judged + INTERVAL && at > context.limits.late && !context.is_settled(at);
        if is_time && !self.everything.counts(at) {
            self.judged = at;
            for node in &context.nodes {
                let is_excused = self.nodes.get(node).is_some_and(|excuse| excuse.counts(at));
                if !is_excused && context.node_may_connect(node) {
                    found.extend(self.judge(context, node, at));
                }
            }
            self.reported.extend(
                found
                    .iter()
                    .filter(|one| one.rule == RULE)
                    .filter_map(|one| Some((one.node.clone(), one.object.clone()?))),
            );
        }
    }
}

impl Late {
    fn excuse(&mut self, scope: &FaultScope) -> &mut Excuse {
        match scope {
            FaultScope::Everything => &mut self.everything,
            FaultScope::Kind(kind) => self.kinds.entry(kind.clone()).or_default(),
            FaultScope::Lists(kind) => self.lists.entry(kind.clone()).or_default(),
            FaultScope::Node(node) | FaultScope::Identity(node) | FaultScope::Hostile(node) => {
                self.nodes.entry(node.clone()).or_default()
            }
        }
    }

    fn judge(&self, context: &Context, node: &str, at: Millis) -> Vec<Violation> {
        let history = &context.history;
        let since = history.at(at - context.limits.late);
        if exceeds_share(history, node, since, context.limits.share) {
            return Vec::new();
        }
        let counts = |excuses: &BTreeMap<String, Excuse>, kind: &str| {
            excuses.get(kind).is_some_and(|excuse| excuse.counts(at))
        };
        let refers = |pod: &ObjectId| {
            let present = history.present(pod).into_iter();
            let mut references = present.flat_map(|pod| &pod.facts.references);
            references.any(|reference| counts(&self.lists, &reference.resource))
        };
        let is_excused = |id: &ObjectId| {
            let of_kind = counts(&self.kinds, &id.resource) || counts(&self.lists, &id.resource);
            of_kind || (id.resource == "pods" && refers(id))
        };
        let late = needs(history, node).into_iter().filter(|id| !is_excused(id));
        let late = late.filter_map(|id| self.lateness(context, node, &id, since).map(|seen| (id, seen)));
        late.map(|(id, (seen, expected))| Violation {
            rule: RULE,
            at,
            node: node.to_owned(),
            object: Some(id),
            seen,
            expected,
        })
        .collect()
    }

    /// What the node shows of an object that it should have had for long, and what it should show.
    fn lateness(
        &self,
        context: &Context,
        node: &str,
        id: &ObjectId,
        since: HistoryPosition,
    ) -> Option<(String, String)> {
        let history = &context.history;
        let version = &history.present(id)?.facts.version;
        let is_same = |held: &SeenVersion| held.uid == version.uid && held.significant == version.significant;
        let key = (node.to_owned(), id.clone());
        let held = self.shown.get(&key);
        if held.is_some_and(is_same) || self.reported.contains(&key) {
            return None;
        }
        let mut states = history.states_since(id, since);
        let unchanged = states.all(|(_, state)| state.is_some_and(|state| is_same(&state.facts.version)));
        let is_late = unchanged && needed_since(history, node, id, since);
        is_late.then(|| (format!("the node still shows {held:?}"), format!("{version:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::testing::{Bench, id};

    const SECRETS: &str = "secrets";

    fn tick(bench: &mut Bench<Late>, millis: Millis) -> Vec<String> {
        bench.pass(millis);
        let found = bench.see(Seen::ReplicaDown { replica: 9 });
        found.iter().filter_map(|one| Some(one.object.as_ref()?.to_string())).collect()
    }

    fn bench() -> Bench<Late> {
        let mut bench = Bench::new();
        bench.api.config("c", "1");
        bench.api.put("secrets/d/s", "user", serde_json::json!({}));
        bench.api.pod("p", "n", &["configmaps/d/c", "secrets/d/s"]);
        bench
    }

    #[test]
    fn what_does_not_arrive_in_time_is_found_once() {
        let mut bench = bench();
        assert_eq!(tick(&mut bench, 1), [""; 0]);
        let pod = bench.shown("pods/d/p");
        bench.fine(pod);
        assert_eq!(tick(&mut bench, 19_000), [""; 0]);
        assert_eq!(tick(&mut bench, 11_000), ["configmaps/d/c", "secrets/d/s"]);
        assert_eq!(tick(&mut bench, 15_000), [""; 0], "reported once");
    }

    #[test]
    fn a_fault_of_one_kind_excuses_that_kind_alone() {
        let mut bench = bench();
        let scope = FaultScope::Kind(SECRETS.to_owned());
        bench.fine(Seen::FaultBegan { scope: scope.clone() });
        assert_eq!(tick(&mut bench, 40_000), ["configmaps/d/c", "pods/d/p"]);
        bench.fine(Seen::FaultOver { scope });
        assert_eq!(tick(&mut bench, 15_000), [""; 0]);
        assert_eq!(tick(&mut bench, 10_000), ["secrets/d/s"]);
    }

    #[test]
    fn a_list_that_fails_delays_pods_that_refer_to_its_kind() {
        let mut bench = bench();
        bench.api.pod("other", "n", &["configmaps/d/c"]);
        bench.fine(Seen::FaultBegan { scope: FaultScope::Lists(SECRETS.to_owned()) });
        assert_eq!(tick(&mut bench, 40_000), ["configmaps/d/c", "pods/d/other"]);
    }

    #[test]
    fn a_disturbed_node_and_a_changed_object_have_time() {
        for scope in [FaultScope::Everything, FaultScope::Node("n".to_owned())] {
            let mut bench = bench();
            bench.fine(Seen::FaultBegan { scope: scope.clone() });
            assert_eq!(tick(&mut bench, 90_000), [""; 0]);
            bench.fine(Seen::FaultOver { scope });
            assert_eq!(tick(&mut bench, 15_000), [""; 0]);
            bench.api.config("c", "2");
            assert_eq!(tick(&mut bench, 15_000), ["pods/d/p", "secrets/d/s"]);
        }
        let mut contested = bench();
        let scope = FaultScope::Identity("n".to_owned());
        contested.fine(Seen::FaultBegan { scope: scope.clone() });
        contested.fine(Seen::FaultOver { scope });
        assert_eq!(tick(&mut contested, 50_000), [""; 0]);
        let seen = contested.shown("configmaps/d/c");
        contested.fine(seen);
        assert_eq!(tick(&mut contested, 15_000), ["pods/d/p", "secrets/d/s"]);
        assert_eq!(id("pods/d/p").resource, "pods");
    }
}
