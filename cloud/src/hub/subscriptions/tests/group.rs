//! Rights that edge nodes have as a group: asked for once for all callers that wait, and never cached.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{join, join_all};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tombolo_proto::documents::WARM_SET;
use tombolo_proto::frame::Subscribe;
use tombolo_proto::{NodeId, Resource, SubscriptionId};

use super::subscribe;
use crate::hub::access::Access;
use crate::kube::tests::double::answering;

/// How long an answer takes.
const FLIGHT: Duration = Duration::from_millis(20);

/// A token that the cluster knows, and its user.
const KNOWN: &str = "known";
const POD: &str = "system:serviceaccount:d:pod";

/// The rights that the cluster grants.
#[derive(Default)]
struct Cluster {
    group: AtomicBool,
    /// Nodes that have the right by their names.
    named: Mutex<BTreeSet<String>>,
    about_group: AtomicUsize,
    about_nodes: AtomicUsize,
}

impl Cluster {
    /// An API server that decides when a question arrives, and takes some time to answer.
    fn access(self: &Arc<Self>) -> Access {
        let cluster = Arc::clone(self);
        let client = answering(move |_, body| {
            let review: Value = serde_json::from_slice(&body).unwrap_or_default();
            let cluster = &cluster;
            let holder = (review["spec"]["token"] == KNOWN)
                .then(|| json!({"authenticated": true, "user": {"username": POD, "groups": []}}));
            let allowed = match review["spec"]["user"].as_str() {
                _ if holder.is_some() => true,
                None => {
                    cluster.about_group.fetch_add(1, Ordering::SeqCst);
                    cluster.group.load(Ordering::SeqCst)
                }
                Some(user) => {
                    cluster.about_nodes.fetch_add(1, Ordering::SeqCst);
                    cluster.named.lock().contains(user)
                }
            };
            async move {
                tokio::time::sleep(FLIGHT).await;
                let right = json!({"allowed": allowed, "reason": "so it is"});
                (201, json!({"status": holder.unwrap_or(right)}))
            }
        });
        Access::new(client.into())
    }

    fn asked(&self) -> (usize, usize) {
        (self.about_group.load(Ordering::SeqCst), self.about_nodes.load(Ordering::SeqCst))
    }
}

fn node(number: usize) -> NodeId {
    NodeId::parse(&format!("n{number}")).expect("a name")
}

/// The resources that every agent follows.
fn usual() -> impl Iterator<Item = Subscribe> {
    WARM_SET.into_iter().map(|(group, version, name)| Subscribe {
        resource: Resource::new(group, version, name),
        namespace: String::new(),
        label_selector: String::new(),
        ..subscribe(SubscriptionId(1))
    })
}

/// The code of the refusal, if there is one.
async fn asks(access: &Access, node: &NodeId, wanted: &Subscribe) -> Result<(), u16> {
    access.check(node, wanted).await.map(drop).map_err(|closed| closed.code)
}

#[tokio::test(start_paused = true)]
async fn reconnecting_fleet_causes_one_group_review_a_second() {
    let cluster = Arc::new(Cluster { group: AtomicBool::new(true), ..Cluster::default() });
    let (access, begin) = (cluster.access(), Instant::now());
    let comes = |number: usize| {
        let access = &access;
        async move {
            // All of these nodes ask within two seconds.
            tokio::time::sleep(Duration::from_millis(u64::try_from(number).expect("few"))).await;
            join_all(usual().map(|wanted| async move { asks(access, &node(number), &wanted).await })).await
        }
    };
    let all = join_all((0..2000).map(comes)).await;
    assert!(all.iter().flatten().all(Result::is_ok), "all are let in");
    let (about_group, about_nodes) = cluster.asked();
    let seconds = usize::try_from(begin.elapsed().as_secs()).expect("few") + 1;
    assert!(begin.elapsed() < Duration::from_secs(4), "no session waits long: {:?}", begin.elapsed());
    assert!(about_group <= seconds * 2 * WARM_SET.len(), "{about_group} questions in {seconds} s");
    assert_eq!(about_nodes, 0);
}

#[tokio::test(start_paused = true)]
async fn right_lost_by_the_group_is_denied_to_later_nodes() {
    let wanted = usual().next().expect("some");
    for number in 0..20 {
        let cluster = Arc::new(Cluster { group: AtomicBool::new(true), ..Cluster::default() });
        let access = cluster.access();
        // The answer that allows it is on its way, or has just arrived.
        let moment = FLIGHT * number / 8;
        let lost = async {
            tokio::time::sleep(moment).await;
            cluster.group.store(false, Ordering::SeqCst);
            let late = [node(0), node(1), node(2)];
            join_all(late.each_ref().map(|other| asks(&access, other, &wanted))).await
        };
        let first = node(9);
        let (_, late) = join(asks(&access, &first, &wanted), lost).await;
        assert_eq!(late, [Err(403); 3], "the right was lost {moment:?} after the first question");
    }
}

#[tokio::test(start_paused = true)]
async fn node_is_reviewed_individually_when_its_group_is_denied() {
    let cluster = Arc::new(Cluster::default());
    cluster.named.lock().insert("system:node:n1".to_owned());
    let access = cluster.access();
    let wanted: Vec<_> = usual().collect();
    for _ in 0..2 {
        let asked = (0..3).flat_map(|number| wanted.iter().map(move |wanted| (number, wanted)));
        let outcomes = asked.map(|(number, wanted)| {
            let access = &access;
            async move { (number, asks(access, &node(number), wanted).await) }
        });
        for (number, outcome) in join_all(outcomes).await {
            assert_eq!(outcome, if number == 1 { Ok(()) } else { Err(403) }, "n{number}");
        }
    }
    let about_nodes = 2 * (2 + 1 + 1) * WARM_SET.len();
    assert_eq!(cluster.asked().1, about_nodes, "rights of one node are not shared");
}

/// Every other question is asked each time, about the user that asks.
#[tokio::test(start_paused = true)]
async fn questions_not_common_to_all_nodes_are_reviewed_individually() {
    let cluster = Arc::new(Cluster { group: AtomicBool::new(true), ..Cluster::default() });
    let access = cluster.access();
    let text = |text: &str| text.to_owned();
    let services = usual().next().expect("some");
    let others = [
        Subscribe { namespace: text("d"), ..services.clone() },
        Subscribe { label_selector: text("a=b"), ..services.clone() },
        Subscribe { field_selector: text("metadata.name=a"), ..services.clone() },
        Subscribe { resource: Resource::new("", "v1", "secrets"), ..services.clone() },
        Subscribe { resource: Resource::new("", "v2", "services"), ..services.clone() },
        Subscribe { resource: Resource::new("a", "v1", "services"), ..services.clone() },
    ];
    for other in &others {
        for number in 0..2 {
            assert_eq!(asks(&access, &node(number), other).await, Err(403), "{other:?}");
        }
    }
    assert_eq!(cluster.asked(), (0, 2 * others.len()));
    let of_token = Subscribe { caller_token: Some(text("t")), ..services.clone() };
    // The cluster does not know this token.
    assert_eq!(asks(&access, &node(1), &of_token).await, Err(401));
    assert_eq!(cluster.about_group.load(Ordering::SeqCst), 1, "about the token, not about its right");
    let of_pod = Subscribe { caller_token: Some(text(KNOWN)), ..services };
    assert_eq!(asks(&access, &node(1), &of_pod).await, Err(403), "what its node may is no right of a pod");
    cluster.named.lock().insert(text(POD));
    assert_eq!(asks(&access, &node(1), &of_pod).await, Ok(()));
    assert_eq!(cluster.about_group.load(Ordering::SeqCst), 1, "no review of the group was made");
}
