//! Tests of names that must be escaped in URLs. The expected answers are those of a kube-apiserver
//! (docs/reference/kubernetes.md#names-in-paths).

use super::access::{MAPS, with_pod, with_the_pod, with_token};
use super::*;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";

/// Path segments, and the answers of an API server that has no such Secret.
const NAMES: [(&str, u16, &str); 11] = [
    ("a%20b", 404, r#"secrets "a b" not found"#),
    ("A", 404, r#"secrets "A" not found"#),
    ("a%00", 404, r#"secrets "a\x00" not found"#),
    ("%C3%A4", 404, r#"secrets "ä" not found"#),
    ("%3Flimit=5", 404, r#"secrets "?limit=5" not found"#),
    ("a%23b", 404, r#"secrets "a#b" not found"#),
    ("a%2Fb", 404, "the server could not find the requested resource"),
    ("..", 400, r#"Name parameter invalid: "..": may not be '..'"#),
    ("%2E%2E", 400, r#"Name parameter invalid: "..": may not be '..'"#),
    ("..%2Fx", 404, "the server could not find the requested resource"),
    ("a%25b", 400, r#"Name parameter invalid: "a%b": may not contain '%'"#),
];

async fn check(agent: &Agent, when: &str) {
    for (name, code, message) in NAMES {
        let (found, status) = agent.get(&format!("{SECRETS}/{name}")).await;
        assert_eq!((found.as_u16(), &status["message"]), (code, &json!(message)), "{name} {when}");
        assert_eq!(status["kind"], "Status", "{name} {when}");
    }
}

#[tokio::test]
async fn impossible_name_gets_404_with_and_without_a_cloud() {
    let (folder, cloud, _, token) = with_token();
    let agent = with_the_pod(folder.path(), &cloud).await;
    check(&agent, "with a cloud").await;
    let absent = format!("{MAPS}/a%20b");
    let as_account = async || agent.as_pod(&token, &absent).await;
    let not_found = (StatusCode::NOT_FOUND, json!(r#"configmaps "a b" not found"#));
    let (code, status) = as_account().await;
    assert_eq!((code, status["message"].clone()), not_found);
    assert!(cloud.calls().contains(&format!("GET {absent}")), "{:?}", cloud.calls());

    away(&agent, &cloud).await;
    check(&agent, "without a cloud").await;
    let (code, status) = as_account().await;
    assert_eq!((code, status["message"].clone()), not_found, "the account may look for it");
    agent.stop().await;
}

#[tokio::test]
async fn forwarded_calls_keep_the_names_of_the_client() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_pod(&cloud);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [],
        "metadata": {"name": "a b?", "namespace": "default", "uid": "r1", "resourceVersion": "7"},
    });
    let one = format!("{ROLES}/a%20b%3F");
    for call in [format!("GET {one}"), format!("DELETE {one}?propagationPolicy=Orphan")] {
        let role = role.clone();
        cloud.script(&call, move |_, _| (200, role.clone()));
    }
    let tokens = |name: &str| format!("/api/v1/namespaces/default/serviceaccounts/{name}/token");
    cloud.script(&format!("POST {}", tokens("a%20b")), |_, _| {
        (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such account"}))
    });
    let agent = with_the_pod(folder.path(), &cloud).await;
    for named in [one.clone(), format!("{ROLES}/%61%20b%3f")] {
        let (code, found) = agent.get(&named).await;
        assert_eq!((code, &found["metadata"]["name"]), (StatusCode::OK, &json!("a b?")), "{named}: {found}");
        let (code, gone) = agent.call(Method::DELETE, &format!("{named}?propagationPolicy=Orphan"), "").await;
        assert_eq!(code, StatusCode::OK, "{named}: {gone}");
    }
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"]}});
    let (code, status) = agent.call(Method::POST, &tokens("a%20b"), &body.to_string()).await;
    assert_eq!((code, &status["message"]), (StatusCode::NOT_FOUND, &json!("no such account")), "{status}");
    away(&agent, &cloud).await;
    assert_eq!(agent.get(&one).await.0, StatusCode::OK, "the last answer is kept under the name");
    agent.stop().await;
}
