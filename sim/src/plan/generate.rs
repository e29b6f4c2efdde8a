//! Makes a plan from a seed.
//!
//! A plan is a row of bursts. Each burst is about a few objects of one node and happens within some seconds, so that
//! its writes and its faults meet. What a burst is about is in [`bursts`](self::bursts), the faults that fall into any
//! of them are in [`faults`](self::faults).

mod bursts;
mod faults;
mod objects;

use super::fault::InjectedFault;
use super::operation::{PlanOperation, TimedFault, TimedOperation};
use super::random::SeededRandom;
use super::size::PlanSize;
use super::{PlannedNode, SimPlan};
use crate::observation::{Millis, ObjectId};

/// Time after everything, in which the system has to settle: longer than every back-off and every review.
const SETTLE: Millis = 1_500_000;

/// Longest time over which the operations of one burst are spread.
const BURST: Millis = 6_000;

impl SimPlan {
    /// The plan for a seed.
    #[must_use]
    pub fn generate(seed: u64, size: &PlanSize) -> Self {
        let mut generator = PlanGenerator::new(seed, size);
        generator.prelude();
        for _ in 0..size.bursts {
            generator.now += generator.random.between(200, size.pause);
            generator.burst();
        }
        generator.finish(seed)
    }
}

/// A plan that is being made.
struct PlanGenerator<'s> {
    random: SeededRandom,
    size: &'s PlanSize,
    operations: Vec<TimedOperation>,
    nodes: Vec<PlannedNode>,
    /// Start of the present burst.
    now: Millis,
    /// Number of contents made so far: no two are equal.
    contents: u32,
    /// Pods that were created, each with its node.
    pods: Vec<(ObjectId, String)>,
    /// Clients that follow something, each with its node.
    clients: Vec<(String, String)>,
}

impl<'s> PlanGenerator<'s> {
    fn new(seed: u64, size: &'s PlanSize) -> Self {
        let mut random = SeededRandom::new(seed);
        let mut nodes = Vec::new();
        for number in 0..size.nodes {
            let zone = (*random.pick(&["a", "b", "c"])).to_owned();
            let kubeedge = number > 0 && random.percent(20) && size.kubeedge;
            nodes.push(PlannedNode { name: format!("edge-{number}"), zone, kubeedge });
        }
        let (operations, pods, clients) = (Vec::new(), Vec::new(), Vec::new());
        Self { random, size, operations, nodes, now: 0, contents: 0, pods, clients }
    }

    /// Something for every node to hold, before anything goes wrong.
    fn prelude(&mut self) {
        for namespace in 0..self.size.namespaces {
            let object = ObjectId::new("namespaces", "", &namespace_name(u64::from(namespace)));
            self.do_at(0, PlanOperation::Put { object, content: super::ObjectContent::default() });
        }
        let names: Vec<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        for node in names {
            self.pod_with_references(&node, 100);
        }
        self.now = 20_000;
    }

    fn finish(mut self, seed: u64) -> SimPlan {
        self.operations.sort_by_key(|operation| operation.at);
        let Self { nodes, operations, size, .. } = self;
        SimPlan { seed, replicas: size.replicas, nodes, operations, settle: SETTLE }
    }

    /// Adds an operation at a time after the beginning of the burst.
    fn do_at(&mut self, after: Millis, operation: PlanOperation) {
        self.operations.push(TimedOperation { at: self.now + after, operation });
    }

    fn fault_at(&mut self, after: Millis, lasts: Millis, fault: InjectedFault) {
        self.do_at(after, PlanOperation::Fault(TimedFault { fault, lasts }));
    }

    /// A time within the burst.
    fn moment(&mut self) -> Millis {
        self.random.below(BURST)
    }

    /// How long a fault lasts: mostly within the burst, sometimes far beyond it.
    fn duration(&mut self) -> Millis {
        match self.random.below(10) {
            0..=5 => self.random.between(50, BURST),
            6..=8 => self.random.between(BURST, 40_000),
            _ => self.random.between(40_000, 400_000),
        }
    }

    fn any_node(&mut self) -> String {
        let index = self.random.below(self.nodes.len() as u64);
        self.nodes[usize::try_from(index).unwrap_or(0)].name.clone()
    }

    fn any_replica(&mut self) -> u32 {
        u32::try_from(self.random.below(u64::from(self.size.replicas))).unwrap_or(0)
    }

    fn any_namespace(&mut self) -> String {
        namespace_name(self.random.below(u64::from(self.size.namespaces)))
    }
}

/// Names of which one is the beginning of another.
fn namespace_name(number: u64) -> String {
    if number == 0 { "team".to_owned() } else { format!("team-{number}") }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn plans() -> Vec<SimPlan> {
        (0..300).map(|seed| SimPlan::generate(seed, &PlanSize::of_seed(seed))).collect()
    }

    #[test]
    fn a_seed_makes_one_plan_and_another_seed_another() {
        let size = PlanSize::small();
        assert_eq!(SimPlan::generate(7, &size), SimPlan::generate(7, &size));
        assert_ne!(SimPlan::generate(7, &size), SimPlan::generate(8, &size));
    }

    #[test]
    fn operations_name_what_the_plan_has_and_come_in_order() {
        for plan in plans() {
            let nodes: BTreeSet<&str> = plan.nodes.iter().map(|node| &*node.name).collect();
            let mut before = 0;
            for TimedOperation { at, operation } in &plan.operations {
                assert!(*at >= before, "{operation}");
                before = *at;
                assert!(operation.node().is_none_or(|node| nodes.contains(node)), "{operation}");
                assert!(operation.replica().is_none_or(|replica| replica < plan.replicas), "{operation}");
            }
            assert!(plan.settle >= 900_000 && plan.end() < 7_200_000, "{}", plan.end());
        }
    }

    /// A kind of operation or fault that no seed makes is not tested.
    #[test]
    fn every_operation_and_every_fault_is_made() {
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for plan in plans() {
            for TimedOperation { operation, .. } in &plan.operations {
                let value = serde_json::to_value(operation).unwrap();
                let (name, inner) = value.as_object().unwrap().iter().next().unwrap();
                *seen.entry(name.clone()).or_default() += 1;
                let inner = inner.as_object().unwrap();
                for fault in inner.keys().filter(|key| name == "fault" && *key != "lasts") {
                    *seen.entry(fault.clone()).or_default() += 1;
                }
                if let Some(kind) = inner.get("object").and_then(serde_json::Value::as_str) {
                    *seen.entry(kind.split('/').next().unwrap().to_owned()).or_default() += 1;
                }
            }
        }
        let expected = "put touch delete recreate flood ebb report terminated read follow unfollow fault \
            cut reset delay hold_lane duplicate_connection clone_identity switch_replica crash_agent power_cut \
            crash_replica watch_lag watch_gone watch_half_open api_failure api_timeout api_down restore_backup \
            webhook_hang clock disk replace_disk hostile trim_rules \
            pods configmaps secrets services endpointslices.discovery.k8s.io nodes leases.coordination.k8s.io events \
            serviceaccounts persistentvolumeclaims deploymentgrids.superedge.io statefulsetgrids.superedge.io \
            servicegrids.superedge.io clusterroles.rbac.authorization.k8s.io \
            clusterrolebindings.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io namespaces";
        for name in expected.split_whitespace() {
            assert!(seen.get(name).is_some_and(|count| *count >= 3), "{name}: {:?}", seen.get(name));
        }
    }

    /// Faults that meet no write prove nothing.
    #[test]
    fn most_faults_of_nodes_meet_a_write_about_that_node() {
        let (mut met, mut all) = (0, 0);
        for plan in plans() {
            let is_near = |node: &str, begin: Millis, end: Millis| {
                plan.operations.iter().any(|other| {
                    let is_about = !other.operation.is_fault() && other.operation.node() == Some(node);
                    is_about && other.at + 3_000 >= begin && other.at <= end + 3_000
                })
            };
            for operation in plan.operations.iter().filter(|operation| operation.operation.is_fault()) {
                let Some(node) = operation.operation.node() else { continue };
                all += 1;
                met += u32::from(is_near(node, operation.at, operation.end()));
            }
        }
        assert!(all > 500 && met * 10 > all * 7, "{met} of {all}");
    }
}
