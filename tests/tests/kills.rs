//! Kills the agent at random moments while it accepts a kubelet's writes without a cloud. Acknowledged writes are there
//! afterwards, every time, and reach the cloud.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use rand::Rng;
use serde_json::{Value, json};
use tombolo_testkit::{seed, times, wait_for, wait_for_value};
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const NODE: &str = "edge-a";
const POD: &str = "web";

/// Kills in one run of the test. `TOMBOLO_KILLS` sets another number (`cargo xtask crash`).
const KILLS: u64 = 20;

/// After this many kills the cloud comes back for a moment.
const KILLS_BETWEEN_CLOUDS: u64 = 10;

/// Longest time from the first write to the kill.
const LIFE_MILLIS_MAX: u64 = 250;

/// The writes of one agent, as increasing numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Given {
    /// Newest write that was acknowledged.
    answered: u64,
    /// Newest write that was sent.
    asked: u64,
}

impl Given {
    fn check(&mut self, what: &str, found: u64) {
        let possible = self.answered..=self.asked;
        assert!(possible.contains(&found), "{what} is {found}, {possible:?} was possible");
        *self = Self { answered: found, asked: found };
    }
}

/// A kubelet's writes, and their expected results.
struct Writer {
    client: Client,
    lease: Given,
    status: Given,
    event: Given,
}

impl Writer {
    fn leases(&self) -> kube::Api<Lease> {
        kube::Api::namespaced(self.client.clone(), "kube-node-lease")
    }

    fn pods(&self) -> kube::Api<Pod> {
        kube::Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn events(&self) -> kube::Api<Event> {
        kube::Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Writes until it is dropped. A rejected write fails the test.
    async fn write(&mut self) {
        loop {
            self.lease.asked += 1;
            if !renew(&self.leases(), self.lease.asked).await {
                return;
            }
            self.lease.answered = self.lease.asked;
            self.status.asked += 1;
            let patch = Patch::Strategic(json!({"status": {"message": self.status.asked.to_string()}}));
            if !answered(self.pods().patch_status(POD, &PatchParams::default(), &patch).await) {
                return;
            }
            self.status.answered = self.status.asked;
            self.event.asked += 1;
            let event = serde_json::from_value(event(self.event.asked)).unwrap();
            if !answered(self.events().create(&PostParams::default(), &event).await) {
                return;
            }
            self.event.answered = self.event.asked;
        }
    }

    /// Checks what a newly started agent serves.
    async fn check(&mut self) {
        let lease = wait_for_value("the agent to answer", DEADLINE, || async {
            self.leases().get(NODE).await.map_err(|error| error.to_string())
        })
        .await;
        self.lease.check("the lease", number_of(&lease));
        self.status.check("the status", status_of(&self.pods().get(POD).await.unwrap()));
        for number in self.event.answered.saturating_sub(5).max(1)..=self.event.answered {
            self.events().get(&format!("e{number}")).await.unwrap();
        }
        let made = self.events().get(&format!("e{}", self.event.asked)).await;
        let newest = if made.is_ok() { self.event.asked } else { self.event.answered };
        self.event.check("the newest event", newest);
    }
}

/// Whether the agent has answered; false if it was killed first.
fn answered<T>(outcome: kube::Result<T>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(kube::Error::Api(refusal)) => panic!("a write was rejected: {refusal:?}"),
        Err(_) => false,
    }
}

/// Succeeds if an object exists now, possibly from an earlier attempt whose answer was lost.
fn made<T>(outcome: kube::Result<T>) -> Result<(), String> {
    match outcome {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Updates the lease at its current version; its count of transitions carries the number.
async fn renew(leases: &kube::Api<Lease>, number: u64) -> bool {
    let Ok(mut lease) = leases.get(NODE).await else { return false };
    if let Some(spec) = &mut lease.spec {
        spec.lease_transitions = i32::try_from(number).ok();
    }
    answered(leases.replace(NODE, &PostParams::default(), &lease).await)
}

fn number_of(lease: &Lease) -> u64 {
    let number = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    number.map_or(0, |number| u64::try_from(number).unwrap())
}

fn status_of(pod: &Pod) -> u64 {
    let message = pod.status.as_ref().and_then(|status| status.message.as_ref());
    message.and_then(|message| message.parse().ok()).unwrap_or(0)
}

fn event(number: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("e{number}"), "namespace": NAMESPACE},
        "involvedObject": {"kind": "Pod", "namespace": NAMESPACE, "name": POD}, "reason": "Tested", "type": "Normal",
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_during_writes_loses_no_acknowledged_write() {
    let kills = times("TOMBOLO_KILLS", KILLS);
    let mut world = World::start(Api::Embedded, Transport::Quic).await.unwrap();
    let objects = Objects::new(world.client().await.unwrap()).await.unwrap();
    world.set_edge_settings(json!({"simulatePods": false, "node": {"register": false}}));
    world.start_edge(NODE).await.unwrap();
    let mut writer = registered(&world, &objects).await;
    let seed = seed();
    let mut rng = seed.rng();
    world.kill_cloud();
    for kill in 1..=kills {
        let life = Duration::from_millis(rng.random_range(1..=LIFE_MILLIS_MAX));
        let _ = tokio::time::timeout(life, writer.write()).await;
        world.kill_edge(NODE);
        world.start_edge(NODE).await.unwrap();
        writer.check().await;
        if kill % KILLS_BETWEEN_CLOUDS == 0 || kill == kills {
            world.start_cloud().await.unwrap();
            arrives(&objects, &writer).await;
            world.kill_cloud();
        }
        assert!(!world.edge_log(NODE).contains("moved aside"), "kill {kill}: the store was damaged");
    }
}

/// Registers the node as a kubelet does, and waits for its pod.
async fn registered(world: &World, objects: &Objects) -> Writer {
    let client = wait_for_value("the agent's kubeconfig", DEADLINE, || async {
        world.impatient_edge_client(NODE).await.map_err(|error| format!("{error:#}"))
    })
    .await;
    let [lease, status, event] = [Given::default(); 3];
    let writer = Writer { client, lease, status, event };
    let nodes: kube::Api<Node> = kube::Api::all(writer.client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
    let lease = serde_json::from_value(json!({
        "metadata": {"name": NODE}, "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40},
    }))
    .unwrap();
    wait_for("the node to be registered", DEADLINE, || async {
        made(nodes.create(&PostParams::default(), &node).await)
    })
    .await;
    wait_for("the lease", DEADLINE, || async {
        made(writer.leases().create(&PostParams::default(), &lease).await)
    })
    .await;
    objects.accepted_pod(POD, NODE, &[], &[]).await;
    wait_for("the pod", DEADLINE, || async {
        writer.pods().get(POD).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    writer.leases().get(NODE).await.unwrap();
    writer
}

/// Waits until the cloud has the newest version of everything.
async fn arrives(objects: &Objects, writer: &Writer) {
    let (lease, status, event) = (writer.lease, writer.status, writer.event);
    let cloud = Writer { client: objects.client(), lease, status, event };
    wait_for("the newest of everything in the cloud", DEADLINE, || async {
        let lease = cloud.leases().get(NODE).await.map_err(|error| error.to_string())?;
        let pod = cloud.pods().get(POD).await.map_err(|error| error.to_string())?;
        let event = cloud.events().get(&format!("e{}", writer.event.answered)).await;
        let found = (number_of(&lease), status_of(&pod), event.is_ok() || writer.event.answered == 0);
        let wanted = (writer.lease.answered, writer.status.answered, true);
        if found == wanted { Ok(()) } else { Err(format!("{found:?}, not {wanted:?}")) }
    })
    .await;
}
