//! A report that was accepted at a node arrives in the API, and the newest last. Reports that were overtaken may be
//! left out. Leases are renewed without an order (docs/consistency.md): of them only the arrival of a renewal counts.
//!
//! A report that was accepted before a backup was restored, or before the disk was replaced, may be lost with it. One
//! about an object that has ended, or that somebody else has written since it arrived, has arrived nowhere to stay.

use std::collections::{BTreeMap, BTreeSet};

use crate::observation::{ApiWrite, Millis, ObjectId, Observation, Seen};
use crate::oracle::content::marker;
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "reports";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reports {
    objects: BTreeMap<(String, ObjectId), Reported>,
    /// Markers that arrived before the node has told its client so: a report may be accepted by the API first.
    early: BTreeMap<(String, ObjectId), BTreeSet<String>>,
    is_judged: bool,
}

/// Reports of one node about one object.
#[derive(Debug, Default)]
struct Reported {
    /// Markers in the order in which the node accepted them, with the incarnation that they are about.
    accepted: Vec<Accepted>,
    /// Index of the newest that has arrived.
    arrived: Option<usize>,
}

#[derive(Debug)]
struct Accepted {
    at: Millis,
    uid: String,
    marker: String,
}

impl Judge for Reports {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        let at = observation.at;
        match &observation.seen {
            Seen::ReportAccepted { node, object, uid, marker } => {
                let key = (node.clone(), object.clone());
                let has_arrived = self.early.get(&key).is_some_and(|early| early.contains(marker));
                let reported = self.objects.entry(key).or_default();
                reported.accepted.push(Accepted { at, uid: uid.clone(), marker: marker.clone() });
                if has_arrived {
                    reported.arrived = Some(reported.accepted.len() - 1);
                }
            }
            Seen::DiskReplaced { node } => self.objects.retain(|(owner, _), _| owner != node),
            Seen::Restored { .. } => {
                self.objects.clear();
                self.early.clear();
            }
            Seen::Wrote(write) => self.wrote(at, write, found),
            _ => {}
        }
        if context.is_settled(at) && !self.is_judged {
            self.is_judged = true;
            self.check_arrival(context, at, found);
        }
    }

    fn is_satisfied(&self, context: &Context) -> bool {
        let mut found = Vec::new();
        self.check_arrival(context, 0, &mut found);
        found.is_empty()
    }
}

impl Reports {
    fn wrote(&mut self, at: Millis, write: &ApiWrite, found: &mut Vec<Violation>) {
        let Some(node) = write.caller.strip_prefix("system:node:") else { return };
        let Some(body) = &write.body else { return };
        let key = (node.to_owned(), write.object.clone());
        let Some(shown) = marker(&write.object.resource, body) else { return };
        let reported = self.objects.entry(key.clone()).or_default();
        let Some(index) = reported.accepted.iter().rposition(|report| report.marker == shown) else {
            self.early.entry(key).or_default().insert(shown.to_owned());
            return;
        };
        let is_lease = write.object.resource.starts_with("leases.");
        if let Some(newest) = reported.arrived.filter(|newest| *newest > index && !is_lease) {
            found.push(Violation {
                rule: RULE,
                at,
                node: node.to_owned(),
                object: Some(write.object.clone()),
                seen: format!("report {shown:?} is written after {:?}", reported.accepted[newest].marker),
                expected: "the newest report last".to_owned(),
            });
        }
        reported.arrived = reported.arrived.max(Some(index));
    }

    fn check_arrival(&self, context: &Context, at: Millis, found: &mut Vec<Violation>) {
        let honest = self
            .objects
            .iter()
            .filter(|((node, _), _)| context.nodes.contains(node) && context.node_may_connect(node));
        for ((node, object), reported) in honest {
            let Some(last) = reported.accepted.last() else { continue };
            if reported.arrived == Some(reported.accepted.len() - 1) {
                continue;
            }
            let lives = match context.history.present(object) {
                Some(present) => last.uid.is_empty() || present.facts.version.uid == last.uid,
                // What the report was to create is not there: nobody may have deleted it.
                None => last.uid.is_empty() && context.history.changes(object).iter().all(|c| c.at < last.at),
            };
            if lives {
                found.push(Violation {
                    rule: RULE,
                    at,
                    node: node.clone(),
                    object: Some(object.clone()),
                    seen: format!("report {:?} of {} ms has not arrived", last.marker, last.at),
                    expected: "every accepted report in the API, or a newer one".to_owned(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::oracle::testing::{Bench, id};

    fn accept(object: &str, uid: &str, marker: &str) -> Seen {
        let (node, uid, marker) = ("n".to_owned(), uid.to_owned(), marker.to_owned());
        Seen::ReportAccepted { node, object: id(object), uid, marker }
    }

    fn status(text: &str) -> Value {
        json!({"spec": {"nodeName": "n"}, "status": {"message": text}})
    }

    fn end(bench: &mut Bench<Reports>) -> Vec<Violation> {
        bench.fine(Seen::FaultsEnded);
        bench.pass(1000);
        bench.see(Seen::Finished)
    }

    #[test]
    fn an_older_report_after_a_newer_one_is_found() {
        let mut bench = Bench::<Reports>::new();
        bench.api.pod("p", "n", &[]);
        for text in ["1", "2", "3"] {
            bench.fine(accept("pods/d/p", "uid-1", text));
        }
        bench.api.put("pods/d/p", "system:node:n", status("1"));
        bench.api.put("pods/d/p", "system:node:n", status("3"));
        bench.api.put("pods/d/p", "user", status("2"));
        bench.fine(Seen::ReplicaDown { replica: 7 });
        bench.api.put("pods/d/p", "system:node:n", status("2"));
        assert_eq!(bench.wrong(Seen::ReplicaDown { replica: 7 }).object, Some(id("pods/d/p")));
        assert_eq!(end(&mut bench), []);
    }

    #[test]
    fn a_report_may_arrive_before_its_client_is_told() {
        let mut bench = Bench::<Reports>::new();
        bench.api.pod("p", "n", &[]);
        bench.api.put("pods/d/p", "system:node:n", status("1"));
        bench.fine(Seen::ReplicaDown { replica: 7 });
        bench.fine(accept("pods/d/p", "uid-1", "1"));
        assert_eq!(end(&mut bench), []);
    }

    #[test]
    fn an_accepted_report_that_never_arrives_is_found() {
        let mut bench = Bench::<Reports>::new();
        bench.api.pod("p", "n", &[]);
        bench.fine(accept("pods/d/p", "uid-1", "1"));
        bench.api.put("pods/d/p", "system:node:n", status("1"));
        bench.fine(accept("pods/d/p", "uid-1", "2"));
        bench.fine(accept("events/d/e", "", "3"));
        let found = end(&mut bench);
        assert_eq!(
            found.iter().filter_map(|one| one.object.clone()).collect::<Vec<_>>(),
            [id("events/d/e"), id("pods/d/p")]
        );
    }

    #[test]
    fn reports_end_with_their_object_their_disk_and_a_restored_backup() {
        let mut bench = Bench::<Reports>::new();
        bench.api.pod("p", "n", &[]);
        bench.fine(accept("pods/d/p", "uid-1", "1"));
        bench.api.delete("pods/d/p");
        bench.api.pod("p", "n", &[]);
        bench.fine(accept("events/d/e", "", "2"));
        bench.fine(Seen::DiskReplaced { node: "n".to_owned() });
        bench.fine(accept("events/d/f", "", "3"));
        bench.api.restore(1);
        assert_eq!(end(&mut bench), []);
    }

    #[test]
    fn a_late_renewal_of_a_lease_is_lawful() {
        let mut bench = Bench::<Reports>::new();
        let lease = "leases.coordination.k8s.io/kube-node-lease/n";
        let at = |time: &str| json!({"spec": {"renewTime": time}});
        for time in ["1", "2"] {
            bench.fine(accept(lease, "", time));
        }
        bench.api.put(lease, "system:node:n", at("2"));
        bench.api.put(lease, "system:node:n", at("1"));
        assert_eq!(end(&mut bench), []);
    }
}
