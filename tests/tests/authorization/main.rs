//! Sends random requests with random rights to kube-apiserver and to the embedded server. Both must allow and deny the
//! same requests.
//!
//! A seed defines a world of roles and bindings and [`WORLD`] cases in it. Some seeds always run, and a new one each
//! time. `TOMBOLO_SEED` sets the new seed. With `TOMBOLO_AUTHZ_CASES`, so many cases run from the new seed on instead,
//! each world with the next seed (`cargo xtask authz`).

mod cases;
mod rights;
mod servers;

use std::fmt::Write;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tombolo_testkit::{Seed, asked, cluster_or_skip, seeds, times};

use cases::Case;
use rights::World;
use servers::{Server, Verdict};

/// Cases of one world.
const WORLD: u64 = 200;

/// Variable with the number of cases.
const CASES: &str = "TOMBOLO_AUTHZ_CASES";

/// Seeds that always run.
const FIXED: [u64; 4] = [1, 2, 644_288_328, 1_641_048_046];

/// Concurrent requests.
const AT_ONCE: usize = 8;

/// Minimum percentage of allowed cases and of denied cases in a run: fewer would compare little.
const SHARE_MIN: usize = 15;

/// Group of the nodes that are connected to cloudcore.
const EDGE_NODES: &str = "tombolo:edge-nodes";

/// Time until both servers know a binding.
const DEADLINE: Duration = Duration::from_secs(30);

/// The seeds of this run's worlds.
fn worlds() -> impl Iterator<Item = Seed> {
    let fixed: &[u64] = if asked(CASES).is_none() { &FIXED } else { &[] };
    seeds(times(CASES, WORLD).div_ceil(WORLD)).chain(fixed.iter().copied().map(Seed::fixed))
}

/// The result of a run.
#[derive(Default)]
struct Outcome {
    allowed: usize,
    refused: usize,
    wrong: Vec<String>,
}

impl Outcome {
    fn note(
        &mut self,
        seed: u64,
        number: usize,
        case: &Case,
        [real, ours]: [anyhow::Result<(Verdict, String)>; 2],
    ) {
        match (real, ours) {
            (Ok((real, _)), Ok((ours, _))) if real == ours => match real {
                Verdict::Allowed => self.allowed += 1,
                Verdict::Denied | Verdict::Unauthenticated => self.refused += 1,
            },
            (real, ours) => {
                let mut text = format!("TOMBOLO_SEED={seed}, case {number}: {case:?}");
                for (whose, answer) in [("real", real), ("ours", ours)] {
                    let _ = write!(text, "\n  {whose} {answer:?}");
                }
                println!("{text}");
                self.wrong.push(text);
            }
        }
    }
}

async fn compare(seed: &Seed, real: &Server, ours: &Server, outcome: &mut Outcome) {
    let mut rng = seed.rng();
    let world = World::of(seed.number(), &mut rng);
    let cases: Vec<Case> = (0..WORLD).map(|_| Case::of(&world, &mut rng)).collect();
    let (tokens, our_tokens) = tokio::join!(world.install(real), world.install(ours));
    let (tokens, our_tokens) = (tokens.unwrap(), our_tokens.unwrap());
    let asked = cases.iter().map(|case| async {
        let (real, ours) = tokio::join!(real.judge(case, &tokens), ours.judge(case, &our_tokens));
        [real, ours]
    });
    let answers: Vec<_> = futures::stream::iter(asked).buffered(AT_ONCE).collect().await;
    for ((number, case), answers) in cases.iter().enumerate().zip(answers) {
        outcome.note(seed.number(), number, case, answers);
    }
    let (real, ours) = tokio::join!(world.remove(real), world.remove(ours));
    real.and(ours).unwrap();
}

/// cloudcore reviews the rights of edge nodes as a group: without a user, so that only the group's own rights count.
async fn groups_alone(real: &Server, ours: &Server) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let named = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "group-alone"}});
    let (mut role, mut binding) = (named("ClusterRole"), named("ClusterRoleBinding"));
    role["rules"] = json!([{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}]);
    binding["roleRef"] =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "group-alone"});
    binding["subjects"] =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": EDGE_NODES}]);
    for server in [real, ours] {
        server.make(&format!("{rbac}/clusterroles"), &role).await.unwrap();
        server.make(&format!("{rbac}/clusterrolebindings"), &binding).await.unwrap();
    }
    let question = |who: Value, verb: &str, resource: &str| {
        let mut spec = who;
        spec["resourceAttributes"] =
            json!({"verb": verb, "group": "", "version": "v1", "resource": resource, "namespace": ""});
        spec
    };
    let edge = || json!({"groups": [EDGE_NODES]});
    for (spec, verdict) in [
        (question(edge(), "list", "services"), Verdict::Allowed),
        (question(json!({"user": "", "groups": [EDGE_NODES]}), "list", "services"), Verdict::Allowed),
        (question(edge(), "list", "secrets"), Verdict::Denied),
        (question(edge(), "delete", "services"), Verdict::Denied),
        // A node may list Services because it is a node. The group of nodes has no such right.
        (question(json!({"groups": ["system:nodes"]}), "watch", "services"), Verdict::Denied),
        (question(json!({"groups": []}), "list", "services"), Verdict::Denied),
        (question(json!({}), "list", "services"), Verdict::Denied),
    ] {
        // kube-apiserver learns of a new binding a moment later.
        tombolo_testkit::wait_for("both servers to judge a group alike", DEADLINE, || async {
            let (real, ours) = tokio::join!(real.review(&spec), ours.review(&spec));
            let (real, ours) = (real.unwrap(), ours.unwrap());
            if (real.0, ours.0) == (verdict, verdict) {
                Ok(())
            } else {
                Err(format!("{spec}: {real:?}, {ours:?}"))
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_decisions_match_kube_apiserver() {
    cluster_or_skip!("authorization beside kube-apiserver");
    // Installing the same provider a second time fails, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (real, ours) = tokio::join!(Server::real(), Server::embedded());
    let (real, ours) = (real.unwrap(), ours.unwrap());
    let furnished = tokio::join!(rights::furnish(&real), rights::furnish(&ours));
    furnished.0.and(furnished.1).unwrap();
    groups_alone(&real, &ours).await;
    let mut outcome = Outcome::default();
    for seed in worlds() {
        compare(&seed, &real, &ours, &mut outcome).await;
    }
    let Outcome { allowed, refused, wrong } = outcome;
    let cases = allowed + refused + wrong.len();
    println!(
        "{cases} cases: {allowed} allowed by both, {refused} refused by both, {} judged otherwise",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{} cases are judged otherwise, see above", wrong.len());
    let least = cases * SHARE_MIN / 100;
    assert!(allowed.min(refused) >= least, "{allowed} allowed and {refused} refused compare too little");
}
