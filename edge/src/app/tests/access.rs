//! Tests of authentication and authorization at the local API, with and without a cloud.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::HeaderMap;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::KeyPair;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tombolo_apicore::accounts::{BoundObject, Claims, KubernetesClaim};

use super::*;
use crate::identity::testing::{fetch_plain, fetch_trusted};

const ISSUER: &str = "https://issuer.example";
const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/till/token";
pub(super) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
pub(super) const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
pub(super) const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
pub(super) const USER: &str = "system:serviceaccount:default:till";
const YEAR: u64 = 365 * 86_400;

/// A signing key of a cluster.
pub(super) struct Issuer(KeyPair);

impl Issuer {
    pub(super) fn new() -> Self {
        Self(KeyPair::generate().unwrap())
    }

    /// Makes the cloud publish the key.
    pub(super) fn publish(&self, cloud: &FakeCloud) {
        let (x, y) = self.0.public_key_raw()[1..].split_at(32);
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let keys = json!({"keys": [{"use": "sig", "kty": "EC", "kid": "k", "crv": "P-256", "alg": "ES256", "x": x, "y": y}]});
        cloud.script("GET /.well-known/openid-configuration", |_, _| (200, json!({"issuer": ISSUER})));
        cloud.script("GET /openid/v1/jwks", move |_, _| (200, keys.clone()));
    }

    pub(super) fn sign(&self, id: &str, pod_uid: &str, life: u64) -> String {
        let bound = |name: &str, uid: &str| BoundObject { name: name.to_owned(), uid: uid.to_owned() };
        let claim = KubernetesClaim {
            namespace: "default".to_owned(),
            node: Some(bound("edge-a", "node-uid")),
            pod: Some(bound("web", pod_uid)),
            secret: None,
            serviceaccount: bound("till", "account-uid"),
            warnafter: None,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let audiences = vec![ISSUER.to_owned()];
        let claims = Claims::new(ISSUER, "jti".to_owned(), claim, audiences, now, Duration::from_secs(life));
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(id.to_owned());
        let key = EncodingKey::from_ec_pem(self.0.serialize_pem().as_bytes()).unwrap();
        jsonwebtoken::encode(&header, &claims, &key).unwrap()
    }
}

/// A request for a token of the pod's account.
fn request(audience: &str, pod_uid: &str) -> String {
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": pod_uid});
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 3607, "boundObjectRef": bound},
    })
    .to_string()
}

/// A cloud with a pod, and the key with which tokens of its account are signed.
pub(super) fn with_account() -> (TempDir, FakeCloud, Issuer) {
    let (folder, cloud, issuer) = (tempfile::tempdir().unwrap(), FakeCloud::new(), Issuer::new());
    with_pod(&cloud);
    issuer.publish(&cloud);
    (folder, cloud, issuer)
}

/// The same with a token of the account that the cloud accepts, and the cloud's decisions about the account.
pub(super) fn with_token() -> (TempDir, FakeCloud, Issuer, String) {
    let (folder, cloud, issuer) = with_account();
    let token = issuer.sign("k", "u3", 3600);
    decides(&cloud, &token);
    (folder, cloud, issuer, token)
}

pub(super) fn with_pod(cloud: &FakeCloud) {
    cloud.put(&key("configmaps", "app"), "u1", &json!({"data": {"a": "1"}}), &[]);
    cloud.put(&key("secrets", "hidden"), "u2", &json!({"data": {}}), &[]);
    cloud.put(&key("pods", "web"), "u3", &pod_spec(), &[]);
}

pub(super) async fn with_the_pod(folder: &Path, cloud: &FakeCloud) -> Agent {
    let agent = Agent::start(folder, cloud, false).await;
    wait_until("the pod", DEADLINE, async || agent.names("/api/v1/pods").await == ["web"]).await;
    agent
}

#[tokio::test]
async fn a_token_request_is_answered_for_hours_without_a_cloud_until_the_token_expires() {
    let (folder, cloud, issuer) = (tempfile::tempdir().unwrap(), FakeCloud::new(), Issuer::new());
    with_pod(&cloud);
    let token = issuer.sign("k", "u3", YEAR);
    let issued = token.clone();
    cloud.script(&format!("POST {TOKENS}"), move |body, caller| {
        assert_eq!(caller, None, "called as the node");
        let mut reply = body.clone();
        // As with the API server, the token is valid for longer than the reply says.
        reply["status"] = json!({"token": issued, "expirationTimestamp": "2026-01-01T00:00:00Z"});
        (201, reply)
    });
    let agent = with_the_pod(folder.path(), &cloud).await;
    let (code, reply) = agent.call(Method::POST, TOKENS, &request("a", "u3")).await;
    assert_eq!((code, &reply["status"]["token"]), (StatusCode::CREATED, &json!(token)), "{reply}");
    away(&agent, &cloud).await;
    agent.stop().await;

    let agent = Agent::start_later(folder.path(), &cloud, false, Duration::from_secs(6 * 3600)).await;
    let (code, kept) = agent.call(Method::POST, TOKENS, &request("a", "u3")).await;
    assert_eq!((code, &kept), (StatusCode::CREATED, &reply), "the reply that was stored");
    for (what, body) in [("another audience", request("b", "u3")), ("another pod", request("a", "u9"))] {
        let (code, status) = agent.call(Method::POST, TOKENS, &body).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{what}: {status}");
        assert!(status["details"]["retryAfterSeconds"].as_u64().unwrap() > 0, "{what}");
    }
    agent.stop().await;

    let agent = Agent::start_later(folder.path(), &cloud, false, Duration::from_secs(YEAR + 60)).await;
    let (code, _) = agent.call(Method::POST, TOKENS, &request("a", "u3")).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "the token has expired");
    agent.stop().await;

    // The reply is deleted with its pod.
    cloud.set_away(false);
    cloud.delete(&key("pods", "web"));
    let agent = Agent::start(folder.path(), &cloud, false).await;
    wait_until("the end of the pod", DEADLINE, async || agent.names("/api/v1/pods").await.is_empty()).await;
    away(&agent, &cloud).await;
    let (code, _) = agent.call(Method::POST, TOKENS, &request("a", "u3")).await;
    assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "its pod is gone");
    agent.stop().await;
}

#[tokio::test]
async fn refusal_of_the_cluster_is_final_and_a_failure_is_not() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_pod(&cloud);
    let agent = with_the_pod(folder.path(), &cloud).await;
    let refuse = |code: u16| {
        cloud.script(&format!("POST {TOKENS}"), move |_, _| {
            (code, json!({"kind": "Status", "code": code, "message": "so it is"}))
        });
    };
    for (code, seen) in [(403, 403), (404, 404), (422, 422), (500, 503), (429, 503)] {
        refuse(code);
        let (answer, status) = agent.call(Method::POST, TOKENS, &request("a", "u3")).await;
        assert_eq!(answer.as_u16(), seen, "{status}");
        assert!(status["message"].as_str().unwrap().contains("so it is"), "{status}");
    }
    agent.stop().await;
}

/// Makes the cloud accept one token, and decide about the permissions of its account.
pub(super) fn decides(cloud: &FakeCloud, token: &str) {
    let known = token.to_owned();
    cloud.script(&format!("POST {TOKEN_REVIEWS}"), move |review, caller| {
        assert_eq!(caller, None, "called as the node");
        let mut review = review.clone();
        review["status"] = if review["spec"]["token"] == known {
            let groups = ["system:serviceaccounts", "system:authenticated"];
            json!({"authenticated": true, "user": {"username": USER, "uid": "account-uid", "groups": groups}})
        } else {
            json!({"error": "unknown"})
        };
        (201, review)
    });
    cloud.script(&format!("POST {ACCESS_REVIEWS}"), |review, _| {
        let mut review = review.clone();
        let resource = &review["spec"]["resourceAttributes"]["resource"];
        let allowed = review["spec"]["user"] == USER && (resource == "configmaps" || resource == "leases");
        review["status"] = json!({"allowed": allowed, "reason": "by the rules"});
        (201, review)
    });
    let known = token.to_owned();
    cloud.script(&format!("GET {MAPS}/app"), move |_, caller| {
        assert_eq!(caller, Some(known.as_str()), "called as the caller");
        (
            200,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": "app", "namespace": "default", "uid": "u1", "resourceVersion": "101"}}),
        )
    });
    cloud.script("GET /api/v1/namespaces/default/secrets/hidden", |_, caller| {
        assert!(caller.is_some(), "called as the caller");
        (403, json!({"kind": "Status", "code": 403, "message": "secrets \"hidden\" is forbidden"}))
    });
}

impl Agent {
    fn ca(&self) -> CertificateDer<'static> {
        let ca = self.kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
        CertificateDer::from_pem_slice(&STANDARD.decode(ca).unwrap()).unwrap()
    }

    /// Answer of the listener for pods.
    pub(super) async fn as_pod(&self, token: &str, path: &str) -> (StatusCode, Value) {
        self.pod_calls(token, Method::GET, path, "").await
    }

    /// Answer of the listener for pods to any request.
    async fn pod_calls(&self, token: &str, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
        fetch_trusted(&self.ca(), token, self.pods, method, path, body).await
    }
}

/// Waits until the agent detects a forged token without asking the cloud.
pub(super) async fn knows_the_keys(agent: &Agent, cloud: &FakeCloud) {
    let asked = || cloud.calls().iter().filter(|call| call.ends_with("/tokenreviews")).count();
    let forged = Issuer::new().sign("k", "u3", 3600);
    wait_until("the cluster's keys", DEADLINE, async || {
        let before = asked();
        assert_eq!(agent.as_pod(&forged, MAPS).await.0, StatusCode::UNAUTHORIZED);
        asked() == before
    })
    .await;
}

#[tokio::test]
async fn pod_reads_with_the_rights_of_its_service_account_with_and_without_a_cloud() {
    let (folder, cloud, issuer, token) = with_token();
    cloud.put(
        &ObjectKey::new(Resource::new("coordination.k8s.io", "v1", "leases"), "default", "l"),
        "u5",
        &json!({"spec": {}}),
        &[],
    );
    let agent = with_the_pod(folder.path(), &cloud).await;
    let hidden = "/api/v1/namespaces/default/secrets/hidden";
    let code = async |agent: &Agent, token: &str, path: &str| agent.as_pod(token, path).await.0.as_u16();
    assert_eq!(code(&agent, &token, &format!("{MAPS}/app")).await, 200);
    assert_eq!(code(&agent, &token, hidden).await, 403);
    let list = agent.as_pod(&token, MAPS).await;
    assert_eq!(
        (list.0.as_u16(), &list.1["items"][0]["metadata"]["name"]),
        (200, &json!("app")),
        "{}",
        list.1
    );
    assert_eq!(code(&agent, &token, LEASES).await, 200);
    assert_eq!(code(&agent, &token, "/api/v1/namespaces/default/pods").await, 403);
    assert_eq!(code(&agent, &token, "/api/v1/namespaces/default/pods/web/log").await, 403);
    assert_eq!(code(&agent, &token, "/apis").await, 200);
    let operator = agent.kubeconfig["users"][0]["user"]["token"].as_str().unwrap().to_owned();
    assert_eq!(code(&agent, &operator, MAPS).await, 401, "the kubeconfig's token opens nothing here");
    knows_the_keys(&agent, &cloud).await;
    away(&agent, &cloud).await;
    agent.stop().await;

    let agent = Agent::start(folder.path(), &cloud, false).await;
    assert_eq!(code(&agent, &token, &format!("{MAPS}/app")).await, 200, "the last decision is kept");
    assert_eq!(code(&agent, &token, hidden).await, 403, "so does this one");
    assert_eq!(code(&agent, &token, MAPS).await, 200);
    assert_eq!(code(&agent, &token, LEASES).await, 200);
    assert_eq!(code(&agent, &token, &format!("{MAPS}/other")).await, 503, "this was never decided");
    assert_eq!(code(&agent, &token, "/api/v1/namespaces/other/configmaps").await, 503);
    assert_eq!(agent.get(LEASES).await.0, 503, "the node may not read what is followed for the account");
    for (what, bad, seen) in [
        ("forged", Issuer::new().sign("k", "u3", 3600), 401),
        ("of an unknown key", issuer.sign("newer", "u3", 3600), 503),
        ("of an earlier pod", issuer.sign("k", "u0", 3600), 401),
        ("no token", "wrong".to_owned(), 401),
    ] {
        assert_eq!(code(&agent, &bad, MAPS).await, seen, "{what}");
    }
    agent.stop().await;
    let agent = Agent::start_later(folder.path(), &cloud, false, Duration::from_secs(3700)).await;
    assert_eq!(code(&agent, &token, MAPS).await, 401, "expired");
    agent.stop().await;
}

#[tokio::test]
async fn pod_writes_as_its_account_and_gets_retry_after_offline() {
    let (folder, cloud, _, token) = with_token();
    let (app, leases) = (format!("{MAPS}/app"), LEASES.to_owned());
    let events = "/api/v1/namespaces/default/events".to_owned();
    let body = |version: &str, kind: &str, name: &str| {
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}}).to_string()
    };
    // Events too: the node executes writes itself only for the kubelet, not for pods.
    let writes = [
        (Method::PATCH, app.clone(), r#"{"data":{"a":"2"}}"#.to_owned(), 200),
        (Method::PUT, app.clone(), body("v1", "ConfigMap", "app"), 200),
        (Method::DELETE, app, String::new(), 200),
        (Method::POST, leases, body("coordination.k8s.io/v1", "Lease", "l"), 201),
        (Method::POST, events, body("v1", "Event", "web.1"), 201),
    ];
    for (method, path, _, code) in &writes {
        let code = *code;
        cloud.script(&format!("{method} {path}"), move |_, caller| (code, json!({"asked by": caller})));
    }
    let agent = with_the_pod(folder.path(), &cloud).await;
    for (method, path, body, expected) in &writes {
        let (code, answer) = agent.pod_calls(&token, method.clone(), path, body).await;
        assert_eq!(code.as_u16(), *expected, "{method} {path}: {answer}");
        assert_eq!(answer["asked by"], json!(token), "{method} {path}: in whose name");
    }
    let refusal = json!({"kind": "Status", "code": 403, "message": "configmaps \"app\" is forbidden"});
    let refused = refusal.clone();
    cloud.script(&format!("PATCH {MAPS}/app"), move |_, _| (403, refused.clone()));
    let (method, path, body, _) = &writes[0];
    let (code, status) = agent.pod_calls(&token, method.clone(), path, body).await;
    assert_eq!((code, &status), (StatusCode::FORBIDDEN, &refusal), "as the cluster answers");

    knows_the_keys(&agent, &cloud).await;
    away(&agent, &cloud).await;
    let before = cloud.calls().len();
    for (method, path, body, _) in &writes {
        let (code, status) = agent.pod_calls(&token, method.clone(), path, body).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{method} {path}: {status}");
        assert_eq!(
            (&status["kind"], &status["reason"]),
            (&json!("Status"), &json!("ServiceUnavailable")),
            "{method} {path}"
        );
        assert!(status["details"]["retryAfterSeconds"].as_u64().is_some_and(|wait| wait > 0), "{status}");
    }
    fence(&agent, &cloud).await;
    let sent: Vec<_> = cloud.calls().split_off(before);
    for (method, path, ..) in &writes {
        assert!(!sent.contains(&format!("{method} {path}")), "{method} {path} in the node's name: {sent:?}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn right_to_a_subresource_is_not_a_right_to_the_object() {
    let (folder, cloud, _, token) = with_token();
    let [may_scale, may_read] =
        ["one", "other"].map(|name| format!("/apis/apps/v1/namespaces/default/deployments/{name}"));
    let metadata =
        |name: &str| json!({"name": name, "namespace": "default", "uid": "d1", "resourceVersion": "101"});
    let deployment = |name: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(name),
        "spec": {"replicas": 3}, "status": {"replicas": 2}})
    };
    let scale = |name: &str| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata(name),
        "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "app=web"}})
    };
    let refused = || (403, json!({"kind": "Status", "code": 403, "message": "it is forbidden"}));
    let (of_one, of_other) = (scale("one"), deployment("other"));
    cloud.script(&format!("GET {may_scale}/scale"), move |_, _| (200, of_one.clone()));
    cloud.script(&format!("GET {may_read}"), move |_, _| (200, of_other.clone()));
    for path in [
        may_scale.clone(),
        format!("{may_scale}/status"),
        format!("{may_read}/scale"),
        format!("{may_read}/status"),
    ] {
        cloud.script(&format!("GET {path}"), move |_, _| refused());
    }
    let agent = with_the_pod(folder.path(), &cloud).await;
    let get = async |path: &str| agent.as_pod(&token, path).await;
    let (code, found) = get(&format!("{may_scale}/scale")).await;
    assert_eq!((code.as_u16(), &found), (200, &scale("one")));
    assert_eq!(get(&may_read).await.0, 200);
    let closed = [
        may_scale.clone(),
        format!("{may_scale}/status"),
        format!("{may_read}/scale"),
        format!("{may_read}/status"),
    ];
    for path in &closed {
        assert_eq!(get(path).await.0, 403, "{path}");
    }
    knows_the_keys(&agent, &cloud).await;
    away(&agent, &cloud).await;
    for path in &closed {
        assert_eq!(get(path).await.0, 403, "{path}: the decision about the other part is not about this one");
    }
    agent.stop().await;
}

#[tokio::test]
async fn offline_reviews_need_evidence() {
    let (folder, cloud, issuer, token) = with_token();
    let agent = with_the_pod(folder.path(), &cloud).await;
    let access = |user: &str| {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {"verb": "get", "resource": "configmaps"}}})
        .to_string()
    };
    let review = |token: &str, audiences: &[&str]| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences}})
        .to_string()
    };
    for (user, allowed) in [(USER, true), ("somebody", false)] {
        let (code, answer) = agent.call(Method::POST, ACCESS_REVIEWS, &access(user)).await;
        assert_eq!((code.as_u16(), &answer["status"]["allowed"]), (201, &json!(allowed)), "{answer}");
    }
    let forged = Issuer::new().sign("k", "u3", 60);
    knows_the_keys(&agent, &cloud).await;
    away(&agent, &cloud).await;
    for (user, allowed) in [(USER, true), ("somebody", false)] {
        let (code, answer) = agent.call(Method::POST, ACCESS_REVIEWS, &access(user)).await;
        assert_eq!((code.as_u16(), &answer["status"]["allowed"]), (201, &json!(allowed)), "{answer}");
        assert_eq!(answer["spec"]["user"], user);
    }
    let (code, status) = agent.call(Method::POST, ACCESS_REVIEWS, &access("nobody asked for")).await;
    assert_eq!(code.as_u16(), 503, "{status}");
    let (code, answer) = agent.call(Method::POST, TOKEN_REVIEWS, &review(&token, &[])).await;
    assert_eq!((code.as_u16(), &answer["status"]["user"]["username"]), (201, &json!(USER)), "{answer}");
    assert_eq!(
        (&answer["status"]["authenticated"], &answer["status"]["audiences"]),
        (&json!(true), &json!([ISSUER]))
    );
    let (_, answer) = agent.call(Method::POST, TOKEN_REVIEWS, &review(&token, &["other"])).await;
    assert_ne!(answer["status"]["authenticated"], json!(true), "{answer}");
    let (_, answer) = agent.call(Method::POST, TOKEN_REVIEWS, &review(&forged, &[])).await;
    assert!(
        answer["status"]["error"].is_string() && answer["status"].get("authenticated").is_none(),
        "{answer}"
    );
    let unknown = issuer.sign("newer", "u3", 60);
    let (code, _) = agent.call(Method::POST, TOKEN_REVIEWS, &review(&unknown, &[])).await;
    assert_eq!(code.as_u16(), 503, "this cannot be decided now");
    agent.stop().await;
}

#[tokio::test]
async fn the_certificate_has_the_names_under_which_pods_know_the_api() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_pod(&cloud);
    cloud.put(&key("configmaps", "kube-root-ca.crt"), "u9", &json!({"data": {"ca.crt": "cluster\n"}}), &[]);
    cloud.put(&key("services", "kubernetes"), "s1", &json!({"spec": {"clusterIPs": ["10.96.0.1"]}}), &[]);
    let agent = with_the_pod(folder.path(), &cloud).await;
    let map = agent.get(&format!("{MAPS}/kube-root-ca.crt")).await.1;
    let trusted = map["data"]["ca.crt"].as_str().unwrap();
    assert!(trusted.starts_with("cluster\n"), "{trusted}");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let provider = tombolo_link::tls::provider();
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(config.unwrap().with_root_certificates(roots).with_no_client_auth());
    let reached = async |name: &'static str| {
        let stream = TcpStream::connect(agent.pods).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&config));
        connector.connect(ServerName::try_from(name).unwrap(), stream).await.is_ok()
    };
    wait_until("the address of the Service", DEADLINE, async || reached("10.96.0.1").await).await;
    for name in [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "127.0.0.1",
    ] {
        assert!(reached(name).await, "{name}");
    }
    assert!(!reached("example.org").await);
    assert_eq!(cloud.object(&key("configmaps", "kube-root-ca.crt")).unwrap()["data"]["ca.crt"], "cluster\n");
    agent.stop().await;
}

#[tokio::test]
async fn anonymous_client_gets_no_secrets_or_tokens_by_any_path() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_pod(&cloud);
    let agent = with_the_pod(folder.path(), &cloud).await;
    assert_eq!(agent.get("/api/v1/namespaces/default/secrets/hidden").await.0, 200, "it is here");
    let roots = [
        "/api/v1/secrets",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/secrets/hidden",
    ];
    let watches = ["/api/v1/watch/secrets", "/api/v1/watch/namespaces/default/secrets/hidden"];
    let below = ["/status", "/scale", "/token", "/proxy", "/"];
    let queries = [
        "",
        "?watch=true",
        "?limit=1",
        "?fieldSelector=metadata.name%3Dhidden",
        "?resourceVersion=0",
        "?pretty=1",
    ];
    let longer = roots.iter().flat_map(|root| below.map(|more| format!("{root}{more}")));
    let paths: Vec<String> = roots.iter().chain(&watches).map(ToString::to_string).chain(longer).collect();
    let mut headers = HeaderMap::new();
    for accept in [
        "application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf",
    ] {
        headers.insert("accept", accept.parse().unwrap());
        for path in &paths {
            for query in queries {
                let (code, text) =
                    fetch_plain(agent.http, Method::GET, &format!("{path}{query}"), headers.clone(), "")
                        .await;
                assert!(matches!(code.as_u16(), 403 | 404), "{path}{query} {accept}: {code} {text}");
                assert!(!text.contains("u2"), "{path}{query}: {text}");
            }
        }
    }
    let refused = [
        (Method::POST, TOKENS),
        (Method::POST, TOKEN_REVIEWS),
        (Method::POST, ACCESS_REVIEWS),
        (Method::GET, TOKENS),
        (Method::PUT, "/api/v1/namespaces/default/secrets/hidden"),
        (Method::DELETE, "/api/v1/namespaces/default/secrets"),
    ];
    for (method, path) in &refused {
        let (code, text) = fetch_plain(agent.http, method.clone(), path, HeaderMap::new(), "{}").await;
        assert!(matches!(code.as_u16(), 403..=405), "{method} {path}: {code} {text}");
    }
    fence(&agent, &cloud).await;
    for (method, path) in refused {
        assert!(!cloud.calls().contains(&format!("{method} {path}")), "{method} {path} went to the cloud");
    }
    agent.stop().await;
}
