//! Everything of one run: the cluster, the network, the hosts, and the plan's operations upon them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::cloud::CloudHost;
use super::cluster::Cluster;
use super::edge::EdgeHost;
use super::faults::FaultsInForce;
use super::local::token;
use super::process::Processes;
use crate::journal::Journal;
use crate::machine::Machine;
use crate::network::Network;
use crate::observation::ObjectId;
use crate::plan::{ObjectContent, PlanOperation, SimPlan};

/// Time that a frame takes.
const LATENCY: Duration = Duration::from_millis(5);

/// One run.
pub(crate) struct World {
    pub(super) cluster: Cluster,
    pub(super) network: Network,
    pub(super) processes: Processes,
    pub(super) replicas: Vec<CloudHost>,
    pub(super) nodes: BTreeMap<String, EdgeHost>,
    /// Machines with copies of disks, by the name of the node.
    pub(super) copies: BTreeMap<String, EdgeHost>,
    pub(super) faults: FaultsInForce,
    /// Folder of the replicas' files.
    folder: PathBuf,
    seed: u64,
}

impl World {
    /// Starts all programs of a plan.
    pub(crate) fn start(plan: &SimPlan, journal: &Journal, machine: Option<Arc<Machine>>) -> Self {
        let processes = Processes::new(journal.clone(), machine);
        let told = journal.clone();
        let network = Network::new(LATENCY, move |seen| told.see(seen));
        let cluster = Cluster::new(plan.seed, journal);
        tokio::spawn(cluster.clone().control());
        let folder = std::env::temp_dir().join(format!("tombolo-simulation-{}", std::process::id()));
        let mut world = Self {
            cluster,
            network,
            processes,
            replicas: Vec::new(),
            nodes: BTreeMap::new(),
            copies: BTreeMap::new(),
            faults: FaultsInForce::default(),
            folder,
            seed: plan.seed,
        };
        for replica in 0..plan.replicas {
            let host = CloudHost::new(replica, world.folder.join(replica.to_string()));
            host.start(&world.processes, &world.cluster, &world.network);
            world.replicas.push(host);
        }
        for planned in &plan.nodes {
            let seed = world.next_seed();
            let host = EdgeHost::new(planned, seed, &world.processes, &world.network);
            host.start();
            world.nodes.insert(planned.name.clone(), host);
        }
        world
    }

    /// Whether a replica has not noticed yet that a watch is dead. What it shows then comes late.
    pub(crate) fn has_half_open_watches(&self) -> bool {
        self.cluster.api.half_open_watches() > 0
    }

    /// A seed for another host: hosts have different random numbers.
    pub(super) fn next_seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed
    }

    /// Carries out an operation. A fault goes on until [`World::end_faults`].
    pub(crate) fn act(&mut self, operation: &PlanOperation, until: u64) {
        match operation {
            PlanOperation::Put { object, content } => self.cluster.put(object, content),
            PlanOperation::Touch { object } => self.cluster.touch(object),
            PlanOperation::Delete { object, grace_seconds } => self.cluster.delete(object, *grace_seconds),
            PlanOperation::Recreate { object, content } => self.cluster.recreate(object, content),
            PlanOperation::Flood { object, count, content } => self.flood(object, *count, content),
            PlanOperation::Ebb { object, count } => {
                for number in 0..*count {
                    self.cluster.delete(&numbered(object, number), 0);
                }
            }
            PlanOperation::Report { node, object, text } => self.at(node, |host| host.report(object, text)),
            PlanOperation::Terminated { node, object } => self.at(node, |host| host.terminated(object)),
            PlanOperation::Read { node, object, account } => {
                let token = token(&self.cluster, account);
                self.at(node, |host| host.read(object, token));
            }
            PlanOperation::Follow { node, client, selection, account } => {
                let token = token(&self.cluster, account);
                self.at(node, |host| {
                    let agent = host.agent();
                    let agent = agent.as_ref().map(|(process, agent)| (&process.host, agent));
                    host.readers.begin((client, &token), (selection, account), agent);
                });
            }
            PlanOperation::Unfollow { node, client } => self.at(node, |host| host.readers.end(client)),
            PlanOperation::Fault(fault) => self.begin_fault(&fault.fault, until),
        }
    }

    fn flood(&self, object: &ObjectId, count: u32, content: &ObjectContent) {
        for number in 0..count {
            let text = format!("{}-{number}", content.text);
            self.cluster.put(&numbered(object, number), &ObjectContent { text, ..content.clone() });
        }
    }

    fn at(&self, node: &str, work: impl FnOnce(&EdgeHost)) {
        if let Some(host) = self.nodes.get(node) {
            work(host);
        }
    }

    /// Ends all programs and removes their files.
    pub(crate) fn end(&self) {
        for host in &self.replicas {
            if let Some(process) = host.process() {
                process.host.kill();
            }
        }
        for host in self.nodes.values().chain(self.copies.values()) {
            if let Some(process) = host.process() {
                process.host.kill();
            }
        }
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    // What is left is in the system's folder for such files.
    let _ = std::fs::remove_dir_all(folder);
}

fn numbered(object: &ObjectId, number: u32) -> ObjectId {
    ObjectId::new(&object.resource, &object.namespace, &format!("{}-{number}", object.name))
}
