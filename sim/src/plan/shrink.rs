//! Makes a failing plan smaller: the fewest nodes, replicas, faults and operations that still break the same rule, at
//! the shortest times.
//!
//! The steps are those of delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input"):
//! parts of halving size are left out as long as the rest still fails. The result depends only on the plan and on what
//! the runs say.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{PlanOperation, SimPlan, TimedOperation};

/// A run that broke a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// Name of the rule.
    pub rule: String,
    /// What is printed about it.
    pub message: String,
}

/// A plan that was made smaller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrunk {
    /// The smallest plan that failed.
    pub plan: SimPlan,
    /// Its failure.
    pub failure: RunFailure,
    /// Runs that it took.
    pub runs: u32,
}

/// Makes a plan smaller that has failed like this, with at most so many runs. A smaller plan counts only if it breaks
/// the same rule.
pub fn shrink(
    plan: SimPlan,
    failure: RunFailure,
    max_runs: u32,
    run: impl FnMut(&SimPlan) -> Option<RunFailure>,
) -> Shrunk {
    let mut shrinker = Shrinker { best: Shrunk { plan, failure, runs: 0 }, max_runs, run };
    loop {
        let before = shrinker.best.plan.clone();
        shrinker.fewer_operations(|_| true);
        shrinker.fewer_nodes();
        shrinker.fewer_replicas();
        shrinker.fewer_operations(PlanOperation::is_fault);
        shrinker.simpler_operations();
        shrinker.shorter_times();
        if shrinker.best.plan == before || shrinker.is_over() {
            return shrinker.best;
        }
    }
}

struct Shrinker<R> {
    best: Shrunk,
    max_runs: u32,
    run: R,
}

impl<R: FnMut(&SimPlan) -> Option<RunFailure>> Shrinker<R> {
    fn is_over(&self) -> bool {
        self.best.runs >= self.max_runs
    }

    /// Keeps a plan that fails like the best one.
    fn attempt(&mut self, plan: SimPlan) -> bool {
        if self.is_over() || plan == self.best.plan {
            return false;
        }
        self.best.runs += 1;
        match (self.run)(&plan) {
            Some(failure) if failure.rule == self.best.failure.rule => {
                (self.best.plan, self.best.failure) = (plan, failure);
                true
            }
            _ => false,
        }
    }

    /// Leaves out operations of some sort, in parts of halving size.
    fn fewer_operations(&mut self, of_sort: impl Fn(&PlanOperation) -> bool) {
        let candidates = |plan: &SimPlan| -> Vec<usize> {
            let all = plan.operations.iter().enumerate();
            all.filter(|(_, operation)| of_sort(&operation.operation)).map(|(index, _)| index).collect()
        };
        let mut size = candidates(&self.best.plan).len();
        while size > 0 {
            let mut from = 0;
            loop {
                let indices = candidates(&self.best.plan);
                let Some(part) =
                    indices.get(from..(from + size).min(indices.len())).filter(|part| !part.is_empty())
                else {
                    break;
                };
                let part: BTreeSet<usize> = part.iter().copied().collect();
                let mut plan = self.best.plan.clone();
                plan.operations = without(&plan.operations, &part);
                if self.is_over() {
                    return;
                }
                // What follows has moved to the place of what is left out.
                if !self.attempt(plan) {
                    from += size;
                }
            }
            size /= 2;
        }
    }

    fn fewer_nodes(&mut self) {
        for index in (0..self.best.plan.nodes.len()).rev() {
            if self.best.plan.nodes.len() < 2 {
                return;
            }
            let mut plan = self.best.plan.clone();
            let node = plan.nodes.remove(index);
            plan.operations.retain(|operation| operation.operation.node() != Some(&node.name));
            self.attempt(plan);
        }
    }

    /// The replica with the highest number goes, with its faults.
    fn fewer_replicas(&mut self) {
        while self.best.plan.replicas > 1 {
            let mut plan = self.best.plan.clone();
            plan.replicas -= 1;
            let left = plan.replicas;
            plan.operations
                .retain(|operation| operation.operation.replica().is_none_or(|replica| replica < left));
            if !self.attempt(plan) {
                return;
            }
        }
    }

    /// Contents without padding, labels and references, smaller floods, deletions at once.
    fn simpler_operations(&mut self) {
        for index in 0..self.best.plan.operations.len() {
            loop {
                let simpler = simplified(&self.best.plan.operations[index].operation);
                let accepted = simpler.into_iter().any(|operation| {
                    let mut plan = self.best.plan.clone();
                    plan.operations[index].operation = operation;
                    self.attempt(plan)
                });
                if !accepted {
                    break;
                }
            }
        }
    }

    /// Halves what each fault lasts, the time before each operation, and the time at the end.
    fn shorter_times(&mut self) {
        for index in 0..self.best.plan.operations.len() {
            loop {
                let mut plan = self.best.plan.clone();
                match &mut plan.operations[index].operation {
                    PlanOperation::Fault(fault) if fault.lasts > 1 => fault.lasts /= 2,
                    _ => break,
                }
                if !self.attempt(plan) {
                    break;
                }
            }
            loop {
                let mut plan = self.best.plan.clone();
                let before = index.checked_sub(1).map_or(0, |before| plan.operations[before].at);
                let gap = plan.operations[index].at - before;
                if gap < 2 {
                    break;
                }
                for later in &mut plan.operations[index..] {
                    later.at -= gap / 2;
                }
                if !self.attempt(plan) {
                    break;
                }
            }
        }
        let settle = self.best.plan.settle;
        for settle in [settle / 8, settle / 2] {
            let plan = SimPlan { settle, ..self.best.plan.clone() };
            if self.attempt(plan) {
                return;
            }
        }
    }
}

fn without(operations: &[TimedOperation], left_out: &BTreeSet<usize>) -> Vec<TimedOperation> {
    let kept = operations.iter().enumerate().filter(|(index, _)| !left_out.contains(index));
    kept.map(|(_, operation)| operation.clone()).collect()
}

/// Simpler operations in the place of one, the simplest first.
fn simplified(operation: &PlanOperation) -> Vec<PlanOperation> {
    let mut simpler = Vec::new();
    let mut without = |change: &dyn Fn(&mut PlanOperation)| {
        let mut copy = operation.clone();
        change(&mut copy);
        if copy != *operation {
            simpler.push(copy);
        }
    };
    without(&|copy| match copy {
        PlanOperation::Flood { count, .. } | PlanOperation::Ebb { count, .. } => *count = (*count / 2).max(1),
        PlanOperation::Delete { grace_seconds, .. } => *grace_seconds = 0,
        _ => {}
    });
    let parts: [fn(&mut super::ObjectContent); 4] = [
        |content| content.bytes = 0,
        |content| content.labels.clear(),
        |content| drop(content.references.pop()),
        |content| {
            if !content.references.is_empty() {
                content.references.remove(0);
            }
        },
    ];
    for part in parts {
        without(&|copy| match copy {
            PlanOperation::Put { content, .. }
            | PlanOperation::Recreate { content, .. }
            | PlanOperation::Flood { content, .. } => part(content),
            _ => {}
        });
    }
    simpler
}

#[cfg(test)]
mod tests {
    use super::super::{InjectedFault, PlanSize};
    use super::*;

    fn failure(rule: &str) -> RunFailure {
        RunFailure { rule: rule.to_owned(), message: String::new() }
    }

    /// Fails when a watch of pods lags at replica 1 while a pod is written, on whatever node.
    fn lag_and_write(plan: &SimPlan) -> Option<RunFailure> {
        let lags = plan.operations.iter().filter(|operation| {
            let PlanOperation::Fault(fault) = &operation.operation else { return false };
            matches!(&fault.fault, InjectedFault::WatchLag { replica: 1, resource } if resource == "pods")
        });
        let is_write = |operation: &TimedOperation| match &operation.operation {
            PlanOperation::Put { object, .. } | PlanOperation::Recreate { object, .. } => {
                object.resource == "pods"
            }
            _ => false,
        };
        let mut pairs = lags.flat_map(|lag| plan.operations.iter().map(move |write| (lag, write)));
        let is_within =
            |lag: &TimedOperation, write: &TimedOperation| write.at >= lag.at && write.at <= lag.end();
        pairs.any(|(lag, write)| is_write(write) && is_within(lag, write)).then(|| failure("missing"))
    }

    fn failing_plan() -> SimPlan {
        let plans = (0..200).map(|seed| SimPlan::generate(seed, &PlanSize::medium()));
        plans.into_iter().find(|plan| lag_and_write(plan).is_some()).expect("one of them fails")
    }

    #[test]
    fn what_matters_is_left() {
        let plan = failing_plan();
        let operations = plan.operations.len();
        let shrunk = shrink(plan, failure("missing"), 2_000, lag_and_write);
        assert!(lag_and_write(&shrunk.plan).is_some());
        assert_eq!(shrunk.plan.operations.len(), 2, "{} of {operations}: {}", 2, shrunk.plan.to_json());
        assert_eq!((shrunk.plan.nodes.len(), shrunk.plan.replicas), (1, 2));
        assert!(shrunk.plan.quiet_from() < 10, "{}", shrunk.plan.to_json());
        assert!(shrunk.runs < 2_000);
    }

    #[test]
    fn the_result_is_the_same_each_time_and_runs_are_bounded() {
        let once = |max| shrink(failing_plan(), failure("missing"), max, lag_and_write);
        assert_eq!(once(300), once(300));
        for max in [0, 1, 17] {
            let mut runs = 0;
            let shrunk = shrink(failing_plan(), failure("missing"), max, |plan| {
                runs += 1;
                lag_and_write(plan)
            });
            assert!(runs <= max && shrunk.runs == runs, "{runs} of {max}");
            assert!(lag_and_write(&shrunk.plan).is_some());
        }
    }

    #[test]
    fn another_failure_is_not_the_same_one() {
        let shrunk = shrink(failing_plan(), failure("missing"), 500, |plan| {
            lag_and_write(plan).or_else(|| Some(failure("quiet")))
        });
        assert!(lag_and_write(&shrunk.plan).is_some());
        assert_eq!(shrunk.failure.rule, "missing");
    }

    #[test]
    fn contents_become_simple() {
        let json = r#"{"seed": 1, "replicas": 1, "nodes": [{"name": "n", "zone": "a"}], "settle": 8, "operations": [
            {"at": 1000, "put": {"object": "pods/team/p", "content": {"text": "v", "bytes": 900, "node": "n",
                "labels": {"a": "b"}, "references": [{"secret_volume": "s"}, {"config_volume": "c"}]}}}]}"#;
        let shrunk = shrink(SimPlan::from_json(json).unwrap(), failure("x"), 100, |plan| {
            plan.to_json().contains("config_volume").then(|| failure("x"))
        });
        let text = shrunk.plan.to_json();
        for gone in ["bytes", "labels", "secret_volume"] {
            assert!(!text.contains(gone), "{text}");
        }
        assert_eq!(shrunk.plan.operations[0].at, 1);
    }
}
