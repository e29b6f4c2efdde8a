//! No pod of an edge is stopped without the API's word: since it was bound to the node, the API must once have said
//! that it is deleted, is being deleted, or is bound elsewhere.

use crate::observation::{ObjectId, Observation, Seen};
use crate::oracle::history::History;
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "stopped";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Stopped;

impl Judge for Stopped {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        let Seen::PodStopped { node, object, uid } = &observation.seen else { return };
        if !has_word(&context.history, node, object, uid) {
            found.push(Violation {
                rule: RULE,
                at: observation.at,
                node: node.clone(),
                object: Some(object.clone()),
                seen: format!("the pod with UID {uid} is stopped"),
                expected: "that it runs until the API says otherwise".to_owned(),
            });
        }
    }
}

fn has_word(history: &History, node: &str, object: &ObjectId, uid: &str) -> bool {
    let runs = |change: &&crate::oracle::history::PastChange| {
        change.state.as_ref().is_some_and(|pod| {
            let facts = &pod.facts;
            facts.version.uid == uid && facts.node == node && !facts.ending
        })
    };
    let mut since = history.changes(object).iter().skip_while(|change| !runs(change));
    since.any(|change| !runs(&change))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::oracle::testing::{Bench, id};

    fn stop(uid: &str) -> Seen {
        Seen::PodStopped { node: "n".to_owned(), object: id("pods/d/p"), uid: uid.to_owned() }
    }

    #[test]
    fn a_pod_runs_until_the_api_says_otherwise() {
        let mut bench = Bench::<Stopped>::new();
        bench.api.pod("p", "n", &[]);
        bench.api.pod("p", "n", &["configmaps/d/c"]);
        assert_eq!(bench.wrong(stop("uid-1")).rule, "stopped");
        let body = json!({"metadata": {"deletionTimestamp": "t"}, "spec": {"nodeName": "n"}});
        bench.api.put("pods/d/p", "user", body);
        bench.fine(stop("uid-1"));
    }

    #[test]
    fn the_end_of_one_incarnation_is_not_that_of_the_next() {
        let mut bench = Bench::<Stopped>::new();
        bench.api.pod("p", "n", &[]);
        bench.api.delete("pods/d/p");
        bench.api.pod("p", "n", &[]);
        bench.fine(stop("uid-1"));
        bench.wrong(stop("uid-2"));
        bench.wrong(stop("uid-3"));
        bench.api.restore(1);
        bench.fine(stop("uid-2"));
    }
}
