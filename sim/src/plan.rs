//! What happens in one simulation: a list of timed operations as data.
//!
//! An operation names nodes, objects and faults. It contains no number that is looked up somewhere, so a plan means the
//! same after the code has changed, and a failing one is kept as a file. A change of the generator
//! ([`SimPlan::generate`]) changes which plan a seed stands for.

mod fault;
mod generate;
mod manifest;
mod names;
mod operation;
mod random;
mod shrink;
mod size;

pub use fault::{CrashPoint, DiskFault, HostileAct, InjectedFault, LinkDirection, SimulatedHost};
pub use manifest::{ObjectContent, PlannedReference, manifest};
pub use operation::{PlanOperation, TimedFault, TimedOperation};
pub use shrink::{RunFailure, Shrunk, shrink};
pub use size::PlanSize;

use serde::{Deserialize, Serialize};

use crate::observation::Millis;

/// One simulation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimPlan {
    /// Seed of the random numbers that the programs draw, such as those of their back-off. What happens does not depend
    /// on it.
    pub seed: u64,
    /// Replicas of cloudcore, numbered from 0.
    pub replicas: u32,
    /// The nodes.
    pub nodes: Vec<PlannedNode>,
    /// What happens, in the order of time.
    pub operations: Vec<TimedOperation>,
    /// How long the system is left alone after the last operation and the end of the last fault.
    pub settle: Millis,
}

/// A node of the plan. It connects to replica 0 at first, or to the next one that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedNode {
    /// Its name.
    pub name: String,
    /// Value of its label `zone`, the key of all grids.
    pub zone: String,
    /// The agent speaks dialect `kubeedge`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kubeedge: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl SimPlan {
    /// When the last operation is done and the last fault has ended.
    #[must_use]
    pub fn quiet_from(&self) -> Millis {
        self.operations.iter().map(TimedOperation::end).max().unwrap_or(0)
    }

    /// When the simulation ends.
    #[must_use]
    pub fn end(&self) -> Millis {
        self.quiet_from().saturating_add(self.settle)
    }

    /// The plan as JSON, one operation a line.
    #[must_use]
    pub fn to_json(&self) -> String {
        let lines: Vec<String> =
            self.operations.iter().map(|operation| format!("    {}", text(operation))).collect();
        format!(
            "{{\n  \"seed\": {},\n  \"replicas\": {},\n  \"nodes\": {},\n  \"settle\": {},\n  \"operations\": [\n{}\n  ]\n}}\n",
            self.seed,
            self.replicas,
            text(&self.nodes),
            self.settle,
            lines.join(",\n")
        )
    }

    /// Reads what [`SimPlan::to_json`] has written.
    ///
    /// # Errors
    /// What is no plan, with line and column.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// Plain data of this module can always be written.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        for seed in 0..40 {
            let plan = SimPlan::generate(seed, &PlanSize::of_seed(seed));
            let text = plan.to_json();
            assert_eq!(SimPlan::from_json(&text).unwrap(), plan, "seed {seed}");
            assert_eq!(text.lines().count(), plan.operations.len() + 8, "one operation a line");
        }
    }

    /// Plans are kept as files: what this says must stay readable.
    #[test]
    fn the_format_is_stable() {
        let text = r#"{"seed": 1, "replicas": 2, "nodes": [{"name": "edge-0", "zone": "a"}], "settle": 900000, "operations": [
            {"at": 5, "put": {"object": "secrets/team/s", "content": {"text": "v1"}}},
            {"at": 6, "put": {"object": "pods/team/p",
                "content": {"text": "v2", "node": "edge-0", "references": [{"secret_volume": "s"}]}}},
            {"at": 7, "fault": {"watch_lag": {"replica": 0, "resource": "pods"}, "lasts": 4000}},
            {"at": 8, "fault": {"crash_agent": {"node": "edge-0", "point": "before_commit"}, "lasts": 100}},
            {"at": 9, "fault": {"disk": {"node": "edge-0", "fault": {"slow": {"millis": 50}}}, "lasts": 100}},
            {"at": 10, "fault": {"clock": {"host": {"replica": 1}, "jump": -7200000}}},
            {"at": 11, "fault": {"api_down": {}, "lasts": 10}},
            {"at": 12, "delete": {"object": "pods/team/p", "grace_seconds": 30}}
        ]}"#;
        let plan = SimPlan::from_json(text).unwrap();
        assert_eq!((plan.quiet_from(), plan.end()), (30_012, 930_012));
        assert_eq!(SimPlan::from_json(&plan.to_json()).unwrap(), plan);
        assert!(SimPlan::from_json(&text.replace("\"text\"", "\"tekst\"")).is_err());
    }
}
