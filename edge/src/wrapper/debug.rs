//! Debug routes of the wrapper. They are served only when the settings enable them, because they name every Service.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use serde_json::{Map, Value, json};
use tombolo_apicore::api::builder::Route;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::body::{self, Body};
use tombolo_apicore::status::ApiError;
use tombolo_apicore::store::Store;
use tombolo_grid::{Node, Reach, pod_addresses};

use super::projected_kind::ProjectedKind;
use super::view::View;

#[cfg(feature = "profile")]
mod profile;

/// Path under which the routes are.
pub(super) const PREFIX: &str = "/debug/";

const DUMP: &str = "/debug/dump";
#[cfg(feature = "profile")]
const PROFILE: &str = "/debug/pprof/profile";

/// The routes, one per line.
fn index() -> String {
    let routes = [
        DUMP.to_owned(),
        #[cfg(feature = "profile")]
        format!("{PROFILE}?seconds=10"),
    ];
    routes.map(|route| route + "\n").concat()
}

/// Serves the debug routes.
pub(super) struct Debug {
    node: String,
    view: View,
}

impl Debug {
    pub(super) fn new(node: String, view: View) -> Self {
        Self { node, view }
    }

    async fn answer(&self, request: &Request<Bytes>) -> Result<Response<Body>, ApiError> {
        if request.method() != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        match request.uri().path() {
            DUMP => {
                let text = serde_json::to_string_pretty(&self.dump()).unwrap_or_default();
                Ok(body::typed(StatusCode::OK, body::full(text), "application/json"))
            }
            #[cfg(feature = "profile")]
            PROFILE => {
                let stacks = profile::take(request.uri().query().unwrap_or_default()).await?;
                Ok(body::text(StatusCode::OK, stacks))
            }
            "/debug" | "/debug/" => Ok(body::text(StatusCode::OK, index())),
            _ => Err(ApiError::no_such_path()),
        }
    }

    /// Describes what the wrapper shows, and why.
    fn dump(&self) -> Value {
        let served = self.view.served();
        let items = |part: ProjectedKind| {
            served.list(&part.resource(), None).map(|list| list.items).unwrap_or_default()
        };
        let parts: Map<String, Value> = ProjectedKind::ALL
            .into_iter()
            .map(|part| {
                let stands = match self.view.trouble(part) {
                    Some(reason) if self.view.is_wanted(part) => reason,
                    Some(_) => "not requested yet".to_owned(),
                    None => "shown".to_owned(),
                };
                let (objects, watches) = (items(part).len(), served.watchers(&part.resource()));
                let about = json!({"objects": objects, "watches": watches, "state": stands});
                (part.names().2.to_owned(), about)
            })
            .collect();
        let own = items(ProjectedKind::Nodes).into_iter().find(|node| node.key.name() == self.node);
        let labels = own.and_then(|node| Node::of(&node.body()).ok()).map(|node| node.labels);
        let closed: Map<String, Value> = items(ProjectedKind::Services)
            .iter()
            .filter_map(|service| {
                let reach = match Reach::of(&service.body()).ok()? {
                    Reach::Everywhere => return None,
                    Reach::Units(keys) => keys.iter().collect(),
                    Reach::Nowhere => json!("invalid topologyKeys"),
                };
                Some((format!("{}/{}", service.key.namespace(), service.key.name()), reach))
            })
            .collect();
        let slices: Map<String, Value> = items(ProjectedKind::EndpointSlices)
            .iter()
            .filter_map(|slice| {
                let pods = pod_addresses(&slice.body()).ok()?;
                let pods: Vec<String> =
                    pods.into_iter().map(|pod| format!("{} on {}", pod.pod, pod.node)).collect();
                Some((format!("{}/{}", slice.key.namespace(), slice.key.name()), json!(pods)))
            })
            .collect();
        json!({
            "node": self.node,
            "labels": labels,
            "revision": self.view.revision().to_string(),
            "kinds": parts,
            "closedServices": closed,
            "podsOfSlices": slices,
        })
    }
}

impl Route for Debug {
    fn call<'a>(
        &'a self,
        request: Request<Bytes>,
        _: &'a Attributes,
    ) -> BoxFuture<'a, Result<Response<Body>, ApiError>> {
        async move { self.answer(&request).await }.boxed()
    }
}
