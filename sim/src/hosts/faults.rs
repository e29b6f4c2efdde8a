//! Faults: how each begins, and how it ends.

use std::time::Duration;

use super::world::World;
use crate::api::{CallFault, FaultId, FaultRate, FaultScope as ApiScope, WatchFault};
use crate::observation::{FaultScope, Millis};
use crate::plan::{CrashPoint, DiskFault, InjectedFault, LinkDirection, SimulatedHost};

use super::cluster::client_of;

/// Lag of a watch that shows nothing new.
const LAG: Duration = Duration::from_secs(1_000_000);

/// The faults that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct FaultsInForce(Vec<FaultInForce>);

#[derive(Debug)]
struct FaultInForce {
    until: Millis,
    scope: FaultScope,
    end: FaultEnd,
}

/// What is done when a fault is over.
#[derive(Debug)]
enum FaultEnd {
    Nothing,
    Lift(FaultId),
    Connect { node: String, direction: LinkDirection },
    Hasten { node: String, direction: LinkDirection, millis: Millis },
    Release { node: String, direction: LinkDirection, lane: u8 },
    StartAgent { node: String, has_no_power: bool },
    StartReplica(u32),
    StopCopy { node: String },
    SetClock { host: SimulatedHost, jump: i64 },
    Heal { node: String, fault: DiskFault },
}

impl World {
    /// When the next fault is over.
    pub(crate) fn next_end(&self) -> Option<Millis> {
        self.faults.0.iter().map(|fault| fault.until).min()
    }

    /// Begins a fault that lasts until a time.
    pub(super) fn begin_fault(&mut self, fault: &InjectedFault, until: Millis) {
        let scope = fault.scope();
        self.processes.journal.fault(&scope, true);
        let end = self.begin(fault, until);
        self.faults.0.push(FaultInForce { until, scope, end });
    }

    /// Ends the faults that are over.
    pub(crate) async fn end_faults(&mut self, now: Millis) {
        while let Some(index) = self.faults.0.iter().position(|fault| fault.until <= now) {
            let fault = self.faults.0.remove(index);
            self.end_fault(fault.end).await;
            self.processes.journal.fault(&fault.scope, false);
        }
    }

    fn begin(&mut self, fault: &InjectedFault, until: Millis) -> FaultEnd {
        match fault.clone() {
            InjectedFault::Cut { node, direction } => {
                self.network.cut(&node, direction, true);
                FaultEnd::Connect { node, direction }
            }
            InjectedFault::Reset { node } => {
                self.network.reset(&node);
                FaultEnd::Nothing
            }
            InjectedFault::Delay { node, direction, millis } => {
                self.network.delay(&node, direction, millis, true);
                FaultEnd::Hasten { node, direction, millis }
            }
            InjectedFault::HoldLane { node, lane, direction } => {
                self.network.hold(&node, lane, direction, true);
                FaultEnd::Release { node, direction, lane }
            }
            InjectedFault::SwitchReplica { node, replica } => {
                self.network.lead(&node, replica);
                self.network.reset(&node);
                FaultEnd::Nothing
            }
            InjectedFault::DuplicateConnection { node } | InjectedFault::CloneIdentity { node } => {
                self.start_copy(node)
            }
            InjectedFault::CrashAgent { node, point } => self.crash_agent(node, point, false),
            InjectedFault::PowerCut { node, point } => self.crash_agent(node, point, true),
            InjectedFault::CrashReplica { replica, point } => self.crash_replica(replica, point),
            InjectedFault::Clock { host, jump } => {
                self.set_clock(&host, jump);
                FaultEnd::SetClock { host, jump: -jump }
            }
            InjectedFault::Disk { node, fault } => {
                self.disk(&node, |disk| disk.begin(fault));
                FaultEnd::Heal { node, fault }
            }
            InjectedFault::ReplaceDisk { node } => {
                self.kill_agent(&node);
                if let Some(host) = self.nodes.get(&node) {
                    host.replace_disk();
                }
                FaultEnd::StartAgent { node, has_no_power: false }
            }
            // Not simulated yet.
            InjectedFault::Hostile { .. } | InjectedFault::TrimRules { .. } => FaultEnd::Nothing,
            of_api => self.begin_at_api(&of_api, until),
        }
    }

    fn begin_at_api(&self, fault: &InjectedFault, until: Millis) -> FaultEnd {
        let api = &self.cluster.api;
        let now = self.processes.journal.now();
        let lasts = Duration::from_millis(until.saturating_sub(now));
        match fault {
            InjectedFault::WatchLag { replica, resource } => {
                FaultEnd::Lift(api.lag(of(*replica, resource), LAG))
            }
            InjectedFault::WatchGone { replica, resource } => {
                api.strike(of(*replica, resource), WatchFault::Expired);
                FaultEnd::Nothing
            }
            InjectedFault::WatchHalfOpen { replica, resource } => {
                FaultEnd::Lift(api.break_watches(of(*replica, resource), WatchFault::HalfOpen))
            }
            InjectedFault::ApiFailure { resource, verb, code } => {
                FaultEnd::Lift(api.fail(calls(resource, verb), failure(*code), FaultRate::Always))
            }
            InjectedFault::ApiTimeout { resource, verb } => {
                let is_write = matches!(&**verb, "create" | "update" | "patch" | "delete");
                let fault = if is_write { CallFault::AnswerLost } else { CallFault::Unanswered };
                FaultEnd::Lift(api.fail(calls(resource, verb), fault, FaultRate::Always))
            }
            InjectedFault::ApiDown {} => {
                api.restart(lasts);
                FaultEnd::Nothing
            }
            InjectedFault::RestoreBackup { taken_at } => {
                let revision = api.revision_at(Duration::from_millis(*taken_at));
                // A backup from before the first write does not exist.
                let _ = api.restore(revision);
                FaultEnd::Nothing
            }
            InjectedFault::WebhookHang { resource } => {
                let scope = ApiScope::of_resource(plural(resource));
                let fault = CallFault::Webhook { hangs: Duration::from_secs(10), ignored: false };
                FaultEnd::Lift(api.fail(scope, fault, FaultRate::Always))
            }
            _ => FaultEnd::Nothing,
        }
    }

    async fn end_fault(&mut self, end: FaultEnd) {
        match end {
            FaultEnd::Nothing => {}
            FaultEnd::Lift(id) => self.cluster.api.lift(id),
            FaultEnd::Connect { node, direction } => self.network.cut(&node, direction, false),
            FaultEnd::Hasten { node, direction, millis } => {
                self.network.delay(&node, direction, millis, false);
            }
            FaultEnd::Release { node, direction, lane } => self.network.hold(&node, lane, direction, false),
            FaultEnd::StartAgent { node, has_no_power } => self.start_agent(&node, has_no_power).await,
            FaultEnd::StartReplica(replica) => self.start_replica(replica).await,
            FaultEnd::StopCopy { node } => {
                if let Some(copy) = self.copies.remove(&node)
                    && let Some(process) = copy.kill()
                {
                    process.host.gone().await;
                }
            }
            FaultEnd::SetClock { host, jump } => self.set_clock(&host, jump),
            FaultEnd::Heal { node, fault } => self.disk(&node, |disk| disk.end(fault)),
        }
    }

    fn set_clock(&self, host: &SimulatedHost, jump: i64) {
        match host {
            SimulatedHost::Node(node) => {
                if let Some(host) = self.nodes.get(node) {
                    host.clock.jump(jump);
                }
            }
            SimulatedHost::Replica(replica) => {
                if let Some(host) = self.replica(*replica) {
                    host.clock.jump(jump);
                }
            }
            SimulatedHost::Api => self.cluster.api.jump(jump / 1000),
        }
    }

    fn disk(&self, node: &str, change: impl FnOnce(&crate::disk::HostDisk)) {
        if let Some(host) = self.nodes.get(node) {
            change(&host.disk());
        }
    }

    fn start_copy(&mut self, node: String) -> FaultEnd {
        let seed = self.next_seed();
        if let Some(host) = self.nodes.get(&node)
            && !self.copies.contains_key(&node)
        {
            let copy = host.copy(seed);
            copy.start();
            self.copies.insert(node.clone(), copy);
        }
        FaultEnd::StopCopy { node }
    }

    fn crash_agent(&self, node: String, point: CrashPoint, has_no_power: bool) -> FaultEnd {
        if let Some(host) = self.nodes.get(&node).cloned() {
            let crash = move || {
                if has_no_power {
                    host.cut_power();
                } else {
                    host.kill();
                }
            };
            match self.nodes.get(&node).and_then(super::edge::EdgeHost::process) {
                Some(process) if point != CrashPoint::Now => process.after_turns(turns(point), crash),
                _ => crash(),
            }
        }
        FaultEnd::StartAgent { node, has_no_power }
    }

    fn crash_replica(&self, replica: u32, point: CrashPoint) -> FaultEnd {
        if let Some(host) = self.replica(replica).cloned() {
            let processes = self.processes.clone();
            let running = host.process();
            let crash = move || drop(host.kill(&processes));
            match running {
                Some(process) if point != CrashPoint::Now => process.after_turns(turns(point), crash),
                _ => crash(),
            }
        }
        FaultEnd::StartReplica(replica)
    }

    fn kill_agent(&self, node: &str) {
        if let Some(host) = self.nodes.get(node) {
            host.kill();
        }
    }

    /// Starts an agent that has crashed, or has not come to the step at which it should have.
    async fn start_agent(&self, node: &str, has_no_power: bool) {
        let Some(host) = self.nodes.get(node) else { return };
        if let Some(process) = host.process() {
            if has_no_power {
                host.cut_power();
            } else {
                host.kill();
            }
            process.host.gone().await;
        }
        if has_no_power {
            self.network.power_back(&host.machine);
        }
        host.start();
    }

    async fn start_replica(&self, replica: u32) {
        let Some(host) = self.replica(replica) else { return };
        if let Some(process) = host.kill(&self.processes) {
            process.host.gone().await;
        }
        host.start(&self.processes, &self.cluster, &self.network);
    }

    fn replica(&self, replica: u32) -> Option<&super::cloud::CloudHost> {
        self.replicas.get(usize::try_from(replica).ok()?)
    }
}

/// How many turns of its tasks a process still gets. From outside, a step within the program is one of these.
fn turns(point: CrashPoint) -> u32 {
    match point {
        CrashPoint::Now => 0,
        CrashPoint::BeforeWrite => 1,
        CrashPoint::BeforeCommit => 2,
        CrashPoint::BeforeAcknowledgement => 3,
        CrashPoint::BeforeCall => 5,
        CrashPoint::BeforeAnswer => 8,
        CrashPoint::BeforeDelivery => 13,
    }
}

fn plural(resource: &str) -> &str {
    resource.split_once('.').map_or(resource, |(plural, _)| plural)
}

fn of(replica: u32, resource: &str) -> ApiScope {
    ApiScope::of_client(&client_of(replica)).on(plural(resource))
}

fn calls(resource: &str, verb: &str) -> ApiScope {
    ApiScope::of_resource(plural(resource)).doing(verb)
}

fn failure(code: u16) -> CallFault {
    match code {
        403 => CallFault::Forbidden,
        404 => CallFault::NotFound,
        409 => CallFault::Conflict,
        429 => CallFault::TooManyRequests(1),
        503 => CallFault::Unavailable,
        _ => CallFault::Internal,
    }
}
