#![allow(clippy::needless_pass_by_value, reason = "literals read better by value in tests")]

use rcgen::KeyPair;
use tombolo_apicore::auth::Identity;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;

use super::*;

struct World {
    tokens: Tokens,
    pod_uid: String,
}

async fn world() -> World {
    let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
    let named = |name: &str| json!({"metadata": {"namespace": "shop", "name": name}});
    objects.create(core("serviceaccounts"), named("till")).await.unwrap();
    objects.create(core("serviceaccounts"), named("other")).await.unwrap();
    objects.create(core("nodes"), json!({"metadata": {"name": "n"}})).await.unwrap();
    let pod = json!({"metadata": {"namespace": "shop", "name": "p"}, "spec": {
        "nodeName": "n", "serviceAccountName": "till",
        "volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
    }});
    let pod = objects.create(core("pods"), pod).await.unwrap();
    let key = TokenKey::from_pem(&KeyPair::generate().unwrap().serialize_pem()).unwrap();
    World { tokens: Tokens { objects, key: Arc::new(key) }, pod_uid: pod.uid.to_string() }
}

fn asked(account: &str, node: Option<&str>) -> Attributes {
    let identity = node.map(|node| Identity::new(&format!("system:node:{node}"), &["system:nodes"]));
    Attributes {
        identity: identity.unwrap_or_else(|| Identity::new("admin", &[])),
        resource: "serviceaccounts".into(),
        subresource: "token".into(),
        namespace: "shop".into(),
        name: account.into(),
        ..Attributes::default()
    }
}

impl World {
    fn ask(&self, account: &str, node: Option<&str>, spec: Value) -> ActionResult {
        self.tokens.issue(&asked(account, node), json!({"spec": spec}))
    }

    fn pod_token(&self) -> Value {
        json!({"expirationSeconds": TOKEN_SECONDS,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": self.pod_uid}})
    }
}

#[tokio::test]
async fn default_pod_token_states_an_hour_and_lasts_a_year() {
    let world = world().await;
    let (code, reply) = world.ask("till", Some("n"), world.pod_token()).unwrap();
    assert_eq!(code, StatusCode::CREATED);
    let claims = world.tokens.key.read(text(&reply, "/status/token")).unwrap();
    assert_eq!(claims.exp - claims.iat, 365 * 86_400);
    assert_eq!(claims.kubernetes.warnafter, Some(claims.iat + 3607));
    assert_eq!(claims.kubernetes.node.unwrap().name, "n");
    let said: jiff::Timestamp = text(&reply, "/status/expirationTimestamp").parse().unwrap();
    assert_eq!(said.as_second().unsigned_abs(), claims.iat + 3607);
    assert_eq!(claims.aud, [ISSUER]);
}

#[tokio::test]
async fn other_tokens_last_as_stated() {
    let world = world().await;
    let (_, reply) =
        world.ask("till", None, json!({"expirationSeconds": 600, "audiences": ["vault"]})).unwrap();
    let claims = world.tokens.key.read(text(&reply, "/status/token")).unwrap();
    assert_eq!((claims.exp - claims.iat, claims.kubernetes.warnafter), (600, None));
    assert_eq!(claims.aud, ["vault"]);
    assert_eq!(claims.sub, "system:serviceaccount:shop:till");
}

#[tokio::test]
async fn refusals() {
    let world = world().await;
    let pod = world.pod_token();
    let mut stale = pod.clone();
    stale["boundObjectRef"]["uid"] = json!("other");
    let mut foreign = pod.clone();
    foreign["audiences"] = json!(["vault"]);
    let cases = [
        ("till", None, json!({"expirationSeconds": 599}), 422, "10 minutes"),
        ("till", None, json!({"expirationSeconds": (1_i64 << 32) + 1}), 422, "2^32"),
        ("gone", None, json!({}), 404, "not found"),
        ("other", None, pod.clone(), 400, "different serviceaccount name"),
        ("till", None, stale.clone(), 409, "does not match the UID in record"),
        ("till", Some("n"), json!({}), 403, "not bound to a pod"),
        ("till", Some("m"), pod.clone(), 403, "scheduled on a different node"),
        ("till", Some("n"), stale, 403, "does not match the UID in record"),
        ("till", Some("n"), foreign, 403, "not found in pod spec volume"),
        (
            "till",
            None,
            json!({"boundObjectRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}}),
            400,
            "cannot bind",
        ),
    ];
    for (account, node, spec, code, why) in cases {
        let refused = world.ask(account, node, spec.clone()).unwrap_err();
        assert_eq!(refused.code.as_u16(), code, "{spec}: {}", refused.message);
        assert!(refused.message.contains(why), "{spec}: {}", refused.message);
    }
}
