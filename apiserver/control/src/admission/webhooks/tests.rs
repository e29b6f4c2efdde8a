use std::convert::Infallible;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tombolo_apicore::admission::{AdmissionRequest, Operation, Warnings};
use tombolo_apicore::auth::{Attributes, Identity};
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::kinds::KindInfo;
use tombolo_apicore::memory::MemoryStore;
use tombolo_proto::object::Resource;

use super::*;
use crate::authz::Authorization;
use crate::objects::{core, v1};

/// A webhook that computes its `response` from the `request` with a function.
struct Server {
    port: u16,
    ca_bundle: String,
}

impl Server {
    async fn start(answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let names = vec!["localhost".to_owned(), "hook.shop.svc".to_owned()];
        let own = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let tls = rustls::ServerConfig::builder().with_no_client_auth();
        let tls =
            TlsAcceptor::from(Arc::new(tls.with_single_cert(vec![own.cert.der().clone()], key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(stream) = tls.accept(stream).await else { continue };
                let answer = Arc::clone(&answer);
                let service = service_fn(move |request| reply(request, Arc::clone(&answer)));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self { port, ca_bundle: STANDARD.encode(own.cert.pem()) }
    }

    fn webhook(&self, name: &str) -> Value {
        let url = format!("https://localhost:{}/check", self.port);
        json!({
            "name": name, "clientConfig": {"url": url, "caBundle": self.ca_bundle}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}],
        })
    }
}

async fn reply<F: Fn(&Value) -> Value>(
    request: Request<Incoming>,
    answer: Arc<F>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri().query(), Some("timeout=10s"));
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let mut response = answer(&review["request"]);
    response["uid"] = review["request"]["uid"].clone();
    let review =
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
    Ok(Response::new(Full::new(Bytes::from(review.to_string()))))
}

/// A server with only these webhooks.
struct World {
    objects: Objects,
    webhooks: Webhooks,
    index: Index,
}

impl World {
    fn new() -> Self {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let index = Index::default();
        let registry = Registry::new(tombolo_catalog::kinds());
        let webhooks =
            Webhooks::new(index.clone(), objects.clone(), registry, Arc::new(Authorization::new(Vec::new())));
        Self { objects, webhooks, index }
    }

    async fn configure(&self, plural: &str, webhooks: &[Value]) {
        let value = json!({"metadata": {"name": "own"}, "webhooks": webhooks});
        let stored = self.objects.create(v1(configuration::GROUP, plural), value).await.unwrap();
        self.index.apply(&stored, false);
    }

    fn kind(&self, resource: &Resource) -> Arc<KindInfo> {
        Arc::clone(self.webhooks.registry.catalog().kinds.get(resource).unwrap())
    }

    /// The object after the webhooks ran, and the warnings.
    async fn create(&self, dry_run: bool) -> Result<(Value, Vec<String>), ApiError> {
        let attributes = Attributes {
            identity: Identity::new("someone", &["people"]),
            verb: "create".into(),
            version: "v1".into(),
            resource: "configmaps".into(),
            namespace: "shop".into(),
            is_resource: true,
            ..Attributes::default()
        };
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "m"},
            "data": {"a": "1"},
        });
        let kind = self.kind(&core("configmaps"));
        let mut request = AdmissionRequest {
            attributes: &attributes,
            operation: Operation::Create,
            kind: &kind,
            namespace: "shop",
            name: "m",
            object: Some(&mut object),
            old: None,
            dry_run,
            warnings: Warnings::default(),
        };
        let mutations = self.webhooks.mutate(&mut request).await?;
        if mutations.changed {
            self.webhooks.mutate_again(&mut request, &mutations).await?;
        }
        self.webhooks.validate(&request).await?;
        let warnings = request.warnings.into_vec();
        Ok((object, warnings))
    }
}

impl World {
    /// The body of an eviction after the webhooks ran.
    async fn evict(&self) -> Value {
        let attributes = Attributes {
            verb: "create".into(),
            version: "v1".into(),
            resource: "pods".into(),
            subresource: "eviction".into(),
            namespace: "shop".into(),
            name: "p".into(),
            is_resource: true,
            ..Attributes::default()
        };
        let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
        let mut request = AdmissionRequest {
            attributes: &attributes,
            operation: Operation::Create,
            kind: &self.kind(&core("pods")),
            namespace: "shop",
            name: "p",
            object: Some(&mut eviction),
            old: None,
            dry_run: false,
            warnings: Warnings::default(),
        };
        self.webhooks.mutate(&mut request).await.unwrap();
        eviction
    }
}

#[tokio::test]
async fn webhook_changes_the_content_of_an_action_as_its_own_type() {
    let server = Server::start(|request| {
        assert_eq!(request["kind"], json!({"group": "policy", "version": "v1", "kind": "Eviction"}));
        assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "pods"}));
        patch(&json!([{"op": "add", "path": "/deleteOptions", "value": {"gracePeriodSeconds": 7}}]))
    });
    let server = server.await;
    let world = World::new();
    world.configure(configuration::MUTATING, &[server.webhook("gentle.example.org")]).await;
    let eviction = world.evict().await;
    assert_eq!(eviction["deleteOptions"], json!({"gracePeriodSeconds": 7}));
    assert_eq!((&eviction["kind"], eviction.get("spec")), (&json!("Eviction"), None), "{eviction}");
}

fn patch(operations: &Value) -> Value {
    json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(operations.to_string())})
}

#[tokio::test]
async fn webhooks_run_in_order_and_see_earlier_changes() {
    let server = Server::start(|request| {
        assert_eq!(request["userInfo"]["username"], "someone");
        assert_eq!(request["operation"], "CREATE");
        assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
        assert_eq!(request["options"]["kind"], "CreateOptions");
        let seen = request["object"]["data"].as_object().unwrap().len();
        let mut response = patch(&json!([{"op": "add", "path": format!("/data/seen-{seen}"), "value": "x"}]));
        response["warnings"] = json!([format!("{seen} entries")]);
        response
    });
    let server = server.await;
    let world = World::new();
    let mut first = server.webhook("first.example.org");
    first["reinvocationPolicy"] = json!("IfNeeded");
    world.configure(configuration::MUTATING, &[first, server.webhook("second.example.org")]).await;
    let (object, warnings) = world.create(false).await.unwrap();
    let keys: Vec<&String> = object["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["a", "seen-1", "seen-2", "seen-3"], "the first webhook is called again");
    assert_eq!(warnings, ["1 entries", "2 entries", "3 entries"]);
}

#[tokio::test]
async fn a_refusal_reaches_the_client() {
    let server =
        Server::start(|_| json!({"allowed": false, "status": {"code": 403, "message": "not here"}})).await;
    let world = World::new();
    world.configure(configuration::VALIDATING, &[server.webhook("guard.example.org")]).await;
    let error = world.create(false).await.unwrap_err();
    assert_eq!(error.code, 403);
    assert_eq!(error.message, "admission webhook \"guard.example.org\" denied the request: not here");
}

#[tokio::test]
async fn unanswered_webhook_follows_its_failure_policy() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let server = Server { port: closed, ca_bundle: String::new() };
    for (policy, passes) in [("Fail", false), ("Ignore", true)] {
        let world = World::new();
        let mut webhook = server.webhook("away.example.org");
        webhook["failurePolicy"] = json!(policy);
        world.configure(configuration::MUTATING, &[webhook]).await;
        match world.create(false).await {
            Ok(_) => assert!(passes),
            Err(error) => {
                assert!(!passes && error.code == 500, "{error}");
                let start = "Internal error occurred: failed calling webhook \"away.example.org\": failed to call \
                             webhook: Post \"https://localhost:";
                assert!(error.message.starts_with(start), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn dry_run_calls_only_webhooks_without_side_effects() {
    let server = Server::start(|request| {
        assert_eq!(request["dryRun"], true);
        json!({"allowed": true})
    });
    let server = server.await;
    for (effects, passes) in [("None", true), ("Some", false)] {
        let world = World::new();
        let mut webhook = server.webhook("w.example.org");
        webhook["sideEffects"] = json!(effects);
        webhook["failurePolicy"] = json!("Ignore");
        world.configure(configuration::VALIDATING, &[webhook]).await;
        let outcome = world.create(true).await;
        assert_eq!(outcome.is_ok(), passes, "{effects}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_service_is_reached_at_its_endpoints() {
    let server = Server::start(|_| json!({"allowed": true, "warnings": ["asked"]})).await;
    let world = World::new();
    let mut webhook = server.webhook("w.example.org");
    webhook["clientConfig"] = json!({
        "service": {"namespace": "shop", "name": "hook", "path": "/check", "port": 8443}, "caBundle": server.ca_bundle,
    });
    world.configure(configuration::VALIDATING, &[webhook]).await;
    let missing = world.create(false).await.unwrap_err();
    assert!(missing.message.ends_with("service \"hook\" not found"), "{missing}");
    let service = json!({
        "metadata": {"namespace": "shop", "name": "hook"}, "spec": {"ports": [{"name": "https", "port": 8443}]},
    });
    world.objects.create(core("services"), service).await.unwrap();
    let empty = world.create(false).await.unwrap_err();
    assert!(empty.message.ends_with("no endpoints available for service \"hook\""), "{empty}");
    let slice = json!({
        "metadata": {"namespace": "shop", "name": "s", "labels": {"kubernetes.io/service-name": "hook"}},
        "ports": [{"name": "https", "port": server.port}],
        "endpoints": [
            {"addresses": ["127.0.0.1"]}, {"addresses": ["192.0.2.1"], "conditions": {"ready": false}},
        ],
    });
    world.objects.create(v1("discovery.k8s.io", "endpointslices"), slice).await.unwrap();
    assert_eq!(world.create(false).await.unwrap().1, ["asked"]);
}

#[tokio::test]
async fn rules_and_selectors_decide_which_webhooks_are_called() {
    let server = Server::start(|_| json!({"allowed": false})).await;
    let namespace = json!({"metadata": {"name": "shop", "labels": {"guarded": "no"}}});
    let condition = |expression: &str| json!([{"name": "c", "expression": expression}]);
    let changes: [(&str, Value, bool); 9] = [
        ("/rules/0/resources", json!(["configmaps"]), true),
        ("/rules/0/resources", json!(["configmaps/status", "secrets"]), false),
        ("/rules/0/operations", json!(["DELETE"]), false),
        ("/rules/0/scope", json!("Cluster"), false),
        ("/namespaceSelector", json!({"matchLabels": {"guarded": "yes"}}), false),
        ("/namespaceSelector", json!({"matchLabels": {"guarded": "no"}}), true),
        ("/objectSelector", json!({"matchLabels": {"guarded": "yes"}}), false),
        (
            "/matchConditions",
            condition("object.data.a == '1' && request.userInfo.username == 'someone'"),
            true,
        ),
        ("/matchConditions", condition("object.data.a == '2'"), false),
    ];
    for (pointer, value, asked) in changes {
        let world = World::new();
        world.objects.create(core("namespaces"), namespace.clone()).await.unwrap();
        let mut webhook = server.webhook("w.example.org");
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        webhook.pointer_mut(parent).unwrap()[name] = value.clone();
        world.configure(configuration::VALIDATING, &[webhook]).await;
        assert_eq!(world.create(false).await.is_err(), asked, "{pointer}: {value}");
    }
}

#[tokio::test]
async fn failing_match_condition_follows_the_webhook_policy() {
    let server = Server::start(|_| json!({"allowed": true})).await;
    for (policy, passes) in [("Fail", false), ("Ignore", true)] {
        let world = World::new();
        let mut webhook = server.webhook("w.example.org");
        webhook["failurePolicy"] = json!(policy);
        webhook["matchConditions"] = json!([{"name": "c", "expression": "object.data.none == '1'"}]);
        world.configure(configuration::VALIDATING, &[webhook]).await;
        match world.create(false).await {
            Ok(_) => assert!(passes),
            Err(error) => assert!(!passes && error.code == 403, "{error}"),
        }
    }
}
