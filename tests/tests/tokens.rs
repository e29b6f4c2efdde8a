//! Requests with a pod's own token: they are forwarded unchanged, decided as the pod's service account, and never as
//! the node or as cloudcore.

use std::fs;

use jsonwebtoken::{Algorithm, EncodingKey};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api as Objects;
use kube::api::PostParams;
use serde_json::{Value, json};
use tombolo_proto::Resource;
use tombolo_testkit::{cluster_or_skip, wait_for, wait_for_value};
use tombolo_tests::node::RawNode;
use tombolo_tests::world::objects::{NAMESPACE, Objects as Workload};
use tombolo_tests::world::{Api, DEADLINE, Transport, World};

const ACCOUNT: &str = "till";
const MERGE: &str = "application/merge-patch+json";

/// Creates an account that may read and change ConfigMaps of its namespace, and returns a token of it.
async fn account(world: &World) -> String {
    let client = world.client().await.unwrap();
    let accounts: Objects<ServiceAccount> = Objects::namespaced(client.clone(), NAMESPACE);
    let create = PostParams::default();
    let account = serde_json::from_value(json!({"metadata": {"name": ACCOUNT}})).unwrap();
    accounts.create(&create, &account).await.unwrap();
    let role = json!({"metadata": {"name": ACCOUNT}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "patch"]}]});
    let roles: Objects<Role> = Objects::namespaced(client.clone(), NAMESPACE);
    roles.create(&create, &serde_json::from_value(role).unwrap()).await.unwrap();
    let binding = json!({"metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]});
    let bindings: Objects<RoleBinding> = Objects::namespaced(client, NAMESPACE);
    bindings.create(&create, &serde_json::from_value(binding).unwrap()).await.unwrap();
    wait_for_value("a token", DEADLINE, || async {
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let issued = accounts.create_token_request(ACCOUNT, &create, &request).await;
        let issued = issued.map_err(|error| error.to_string())?;
        issued.status.and_then(|status| status.token).ok_or_else(|| "no token".to_owned())
    })
    .await
}

/// The token with other claims, signed with the key of the API server or with a key of the test.
fn resigned(world: &World, token: &str, own_key: bool, change: impl FnOnce(&mut Value)) -> String {
    let pem = match (&world.plane, own_key) {
        (_, true) => rcgen::KeyPair::generate().unwrap().serialize_pem(),
        (Some(plane), false) => fs::read_to_string(plane.folder().join("sa.key")).unwrap(),
        (None, false) => fs::read_to_string(world.cloud_dir().join("pki/sa.key")).unwrap(),
    };
    let mut claims: Value = jsonwebtoken::dangerous::insecure_decode(token).unwrap().claims;
    change(&mut claims);
    let header = jsonwebtoken::decode_header(token).unwrap();
    assert_eq!(header.alg, Algorithm::ES256);
    jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ec_pem(pem.as_bytes()).unwrap()).unwrap()
}

fn an_hour_ago(claims: &mut Value) {
    for claim in ["exp", "nbf", "iat"] {
        claims[claim] = json!(claims[claim].as_i64().unwrap() - 2 * 3600);
    }
}

fn another_account(claims: &mut Value) {
    claims["sub"] = json!("system:serviceaccount:kube-system:admin");
    claims["kubernetes.io"]["namespace"] = json!("kube-system");
}

async fn get(node: &RawNode, token: &str, path: &str) -> (u16, Value) {
    let reply = node.api_as(Some(token), "GET", path, "", "").await.unwrap();
    (reply.code, serde_json::from_slice(&reply.body).unwrap())
}

async fn decided_as_the_account(world: World) {
    let workload = Workload::new(world.client().await.unwrap()).await.unwrap();
    workload.config_map("map", "1").await.unwrap();
    workload.secret("secret", "1").await.unwrap();
    let token = account(&world).await;
    let node = world.raw_node("node-a", "node-a").await.unwrap();
    let map = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/map");
    wait_for("the role to be in force", DEADLINE, || async {
        let (code, body) = get(&node, &token, &map).await;
        if code == 200 { Ok(()) } else { Err(format!("{code} {body}")) }
    })
    .await;
    // The node's own request is rejected, because no pod on it refers to the object. Token and node have separate
    // rights.
    assert_eq!(node.api("GET", &map, "", "").await.unwrap().code, 403);
    let patched = node.api_as(Some(&token), "PATCH", &map, MERGE, r#"{"data":{"by":"till"}}"#).await.unwrap();
    assert_eq!(patched.code, 200);
    let user = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    for path in [
        format!("/api/v1/namespaces/{NAMESPACE}/secrets/secret"),
        "/api/v1/namespaces/kubeedge/secrets/casecret".to_owned(),
        "/api/v1/namespaces/default/configmaps/x".to_owned(),
        "/api/v1/nodes/node-a".to_owned(),
    ] {
        let (code, body) = get(&node, &token, &path).await;
        assert_eq!(code, 403, "{path}: {body}");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(&user), "{path}: {message}");
    }
    let bad = [
        ("not a token", "no-token".to_owned()),
        ("expired", resigned(&world, &token, false, an_hour_ago)),
        ("forged", resigned(&world, &token, true, |_| ())),
        ("forged for another account", resigned(&world, &token, true, another_account)),
        ("of an account that does not exist", resigned(&world, &token, false, another_account)),
    ];
    for (what, token) in &bad {
        let (code, body) = get(&node, token, &map).await;
        assert_eq!((code, body["reason"].as_str()), (401, Some("Unauthorized")), "{what}: {body}");
    }
    follows(&node, &token, &bad).await;
    audited(&world, &user);
}

/// The same for subscriptions, which cloudcore watches with its own rights: it reviews the account's rights first.
async fn follows(node: &RawNode, token: &str, bad: &[(&str, String)]) {
    let maps = || Resource::new("", "v1", "configmaps");
    assert_eq!(node.follow(maps(), NAMESPACE, Some(token)).await.unwrap(), Ok(()));
    let (code, _) = node.follow(maps(), "default", Some(token)).await.unwrap().unwrap_err();
    assert_eq!(code, 403, "another namespace");
    let secrets = Resource::new("", "v1", "secrets");
    let (code, reason) = node.follow(secrets, NAMESPACE, Some(token)).await.unwrap().unwrap_err();
    assert_eq!(code, 403);
    assert!(reason.contains(ACCOUNT), "{reason}");
    let (code, _) = node.follow(maps(), NAMESPACE, None).await.unwrap().unwrap_err();
    assert_eq!(code, 403, "the node itself has no right");
    for (what, token) in bad {
        let (code, _) = node.follow(maps(), NAMESPACE, Some(token)).await.unwrap().unwrap_err();
        assert_eq!(code, 401, "{what}");
    }
}

/// kube-apiserver's log has the write as the account's own, not as an impersonated request.
fn audited(world: &World, user: &str) {
    let Some(plane) = &world.plane else { return };
    let events = plane.audit_events().unwrap();
    let writes =
        events.iter().filter(|event| event.is_write() && event.name == "map" && event.user != "admin");
    let who: Vec<_> = writes.map(|event| (event.user.as_str(), event.impersonated.as_deref())).collect();
    assert_eq!(who, [(user, None)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_token_is_decided_as_its_account_on_the_embedded_server() {
    decided_as_the_account(World::start(Api::Embedded, Transport::Quic).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_token_is_decided_as_its_account_on_kube_apiserver() {
    cluster_or_skip!("a_pods_token_is_decided_as_its_account_on_kube_apiserver");
    decided_as_the_account(World::start(Api::Real, Transport::WebSocket).await.unwrap()).await;
}
