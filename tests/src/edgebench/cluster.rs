//! The cluster whose objects the node holds.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tombolo_testkit::{free_port, wait_for};
use tombolo_tests::world::objects::{NAMESPACE, Objects};
use tombolo_tests::world::{Api as Kubernetes, DEADLINE, Transport, World};

pub(crate) const NODE: &str = "bench";
const PODS: usize = 50;
pub(crate) const SERVICES: usize = 500;
pub(crate) const SLICES: usize = 1000;
const ENDPOINTS: usize = 10;

pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) client: Client,
    pub(crate) dns: SocketAddr,
    pub(crate) wrapper: SocketAddr,
}

impl Cluster {
    /// Fills a cluster and starts the agent with all features enabled.
    pub(crate) async fn start(edgecore: &Path) -> Result<Self> {
        let mut world = World::start(Kubernetes::Embedded, Transport::WebSocket).await?;
        world.slow_down(u32::MAX).await?;
        let client = world.client().await?;
        let local = || -> Result<SocketAddr> { Ok(format!("127.0.0.1:{}", free_port()?).parse()?) };
        let (dns, wrapper) = (local()?, local()?);
        world.set_edge_settings(json!({
            "wrapper": {"address": wrapper}, "dns": {"address": dns, "upstreams": [], "hostsPath": null},
        }));
        let objects = Objects::new(client.clone()).await?;
        objects.config_map("settings", "1").await?;
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
        stream::iter(0..SERVICES)
            .map(|number| create(&services, service(number)))
            .buffer_unordered(16)
            .try_collect::<Vec<()>>()
            .await?;
        stream::iter(0..SLICES)
            .map(|number| create(&slices, slice(number, 0)))
            .buffer_unordered(16)
            .try_collect::<Vec<()>>()
            .await?;
        world.start_edge_program(NODE, edgecore).await?;
        for number in 0..PODS {
            objects.accepted_pod(&format!("pod-{number}"), NODE, &["settings"], &[]).await;
        }
        wait_for("every pod to run", DEADLINE, || async {
            let pods =
                objects.pods().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let phase = |pod: &k8s_openapi::api::core::v1::Pod| pod.status.as_ref()?.phase.clone();
            let running = pods.iter().filter(|pod| phase(pod).as_deref() == Some("Running")).count();
            if running == PODS { Ok(()) } else { Err(format!("{running} of {PODS} run")) }
        })
        .await;
        world.converges(NODE).await;
        Ok(Self { world, client, dns, wrapper })
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

fn service(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("service-{number}")},
        "spec": {"selector": {"app": format!("app-{number}")}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    })
}

/// A slice as the controllers create it; `turn` changes its addresses.
pub(crate) fn slice(number: usize, turn: usize) -> Value {
    let service = format!("service-{}", number % SERVICES);
    let endpoint = |index: usize| {
        let pod = format!("{service}-7d9c5b8f6d-{index:05}");
        json!({
            "addresses": [format!("10.{}.{}.{}", number / 250, number % 250, index + 1 + turn % 200)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", index % 7),
            "targetRef": {"kind": "Pod", "name": pod, "namespace": NAMESPACE, "uid": format!("5d1f0a52-0000-4000-8000-{number:06}{index:06}")},
        })
    };
    json!({
        "metadata": {
            "name": format!("{service}-{number}"),
            "labels": {
                "kubernetes.io/service-name": service, "app": service,
                "endpointslice.kubernetes.io/managed-by": "a-benchmark",
            },
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
    })
}
