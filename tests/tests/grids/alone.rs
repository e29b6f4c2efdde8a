//! The controllers without a cloudcore, against an API server in the same process: rows of
//! docs/reference/superedge.md#rows that need an API server and nothing else.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tombolo_apiserver::{Embedded, Options};
use tombolo_cloud::grids::api::DeploymentGrid;
use tombolo_cloud::grids::{self, GridSettings, Metrics};
use tombolo_grid::labels::GRID_SELECTOR;
use tombolo_runtime::Drain;
use tombolo_testkit::{wait_for, wait_for_value};

mod keys;
mod nodes;
mod ownership;
mod removal;

const DEADLINE: Duration = Duration::from_secs(30);

/// The two namespaces of an embedded API server.
const NAMESPACES: [&str; 2] = ["default", "other"];

/// An object of any kind used here.
trait Kind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize {}

impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize> Kind for K {}

struct World {
    client: Client,
    /// The API server, and the controllers if they are started, run as long as this set.
    tasks: JoinSet<()>,
    _folder: TempDir,
}

impl World {
    /// Starts only the API server.
    async fn start() -> Self {
        // Installing the same provider a second time is refused, which is fine.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let bound = Embedded::start(Options::new(folder.path())).await.unwrap();
        let kubeconfig = Kubeconfig::read_from(bound.kubeconfig()).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { bound.run(Drain::never()).await.unwrap() });
        Self { client, tasks, _folder: folder }
    }

    /// Also runs the controllers, and adds another namespace.
    async fn with_controllers() -> Self {
        let mut world = Self::start().await;
        world.control(GridSettings::default()).await;
        world
    }

    /// The same with other definitions of the kinds.
    async fn with_definitions(wanted: &[CustomResourceDefinition]) -> Self {
        let mut world = Self::start().await;
        for definition in wanted {
            world.all().create(&PostParams::default(), definition).await.unwrap();
        }
        world.control(GridSettings { install_definitions: false, ..GridSettings::default() }).await;
        world
    }

    async fn control(&mut self, settings: GridSettings) {
        make(&self.all::<Namespace>(), json!({"metadata": {"name": NAMESPACES[1]}})).await;
        let holder = (NAMESPACES[0].to_owned(), "test".to_owned());
        let metrics = Metrics::register(&mut Registry::default());
        self.tasks.spawn(grids::run(self.client.clone(), settings, holder, metrics, Drain::never()));
    }

    fn all<K: Kind<Scope = ClusterResourceScope>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    fn of<K: Kind<Scope = NamespaceResourceScope>>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn node(&self, name: &str, unit: &str) {
        let node = json!({"metadata": {"name": name, "labels": {"zone": unit}}});
        make(&self.all::<Node>(), node).await;
    }
}

/// Creates an object. The definition of its kind may only just have been established.
async fn make<K: Kind>(api: &Api<K>, object: Value) -> Value {
    let object: K = serde_json::from_value(object).unwrap();
    wait_for_value("the kind to be served", DEADLINE, || async {
        match api.create(&PostParams::default(), &object).await {
            Ok(created) => Ok(serde_json::to_value(created).unwrap()),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(status.message),
            Err(error) => panic!("{error}"),
        }
    })
    .await
}

/// An object as it is now; null if it does not exist.
async fn get<K: Kind>(api: &Api<K>, name: &str) -> Value {
    serde_json::to_value(api.get_opt(name).await.unwrap()).unwrap()
}

/// Waits until an object satisfies a check.
async fn until<K: Kind>(api: &Api<K>, name: &str, check: impl Fn(&Value) -> bool) -> Value {
    wait_for_value(name, DEADLINE, || async {
        let found = get(api, name).await;
        if check(&found) { Ok(found) } else { Err(format!("{found:#}")) }
    })
    .await
}

async fn patch<K: Kind>(api: &Api<K>, name: &str, patch: Value) {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Spec of a Deployment with one container.
fn workload(replicas: u32) -> Value {
    json!({
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]},
        },
    })
}

/// A grid of this name, with the values of the label `zone` as units.
fn grid(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "superedge.io/v1", "kind": "DeploymentGrid",
        "metadata": {"name": name},
        "spec": {"gridUniqKey": "zone", "template": workload(replicas)},
    })
}

/// UID of the first owner.
fn owner(child: &Value) -> &Value {
    &child["metadata"]["ownerReferences"][0]["uid"]
}
