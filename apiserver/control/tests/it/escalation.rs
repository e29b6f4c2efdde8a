//! Users cannot grant rights that they do not have: the same requests to the embedded server and to kube-apiserver get
//! the same codes and messages.

use serde_json::{Value, json};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, cluster_or_skip, wait_for};

use crate::harness::{Answered, Api, Ask, DEADLINE, Server, assert_same_answers};

const GROUP: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn role(name: &str, rules: Value) -> Value {
    let mut role = json!({"metadata": {"name": name}});
    role["rules"] = rules;
    role
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})
}

/// Creates roles, and users who may write roles and bindings and little else.
async fn prepare(admin: &Api) {
    let rbac = "rbac.authorization.k8s.io";
    let all = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];
    let write = rule(rbac, &all, &["get", "create", "update", "patch"]);
    let mut bind_view = rule(rbac, &["clusterroles"], &["bind"]);
    bind_view["resourceNames"] = json!(["view"]);
    let escalate = rule(rbac, &["roles"], &["escalate"]);
    for object in [
        role("writer", json!([write])),
        role("binder", json!([bind_view])),
        role("climber", json!([escalate])),
        json!({"metadata": {"name": "sum"}, "rules": [], "aggregationRule": {
            "clusterRoleSelectors": [{"matchLabels": {"sum": "nothing"}}]}}),
    ] {
        admin.create(CLUSTER_ROLES, &object).await;
    }
    let maps = rule("", &["configmaps"], &["get", "list"]);
    admin.create(ROLES, &role("maps", json!([maps]))).await;
    admin.create(ROLES, &role("secrets", json!([rule("", &["secrets"], &["get"])]))).await;
    admin.create(BINDINGS, &binding("viewers", "ClusterRole", "view", "somebody")).await;
    admin.create(BINDINGS, &binding("maps", "Role", "maps", "jane")).await;
    for user in ["jane", "binder", "climber"] {
        let name = format!("{user}-writes");
        admin.create(CLUSTER_BINDINGS, &binding(&name, "ClusterRole", "writer", user)).await;
    }
    for user in ["binder", "climber"] {
        admin.create(CLUSTER_BINDINGS, &binding(user, "ClusterRole", user, user)).await;
    }
    for role in ["view", "edit"] {
        wait_for(&format!("role {role} to be summed up"), DEADLINE, || async {
            let (_, found) = admin.get(&format!("{CLUSTER_ROLES}/{role}")).await;
            let rules = found["rules"].as_array().map_or(0, Vec::len);
            if rules > 5 { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
    }
    in_force(admin, "jane", "", "configmaps", "get", "").await;
    for user in ["jane", "binder", "climber"] {
        in_force(admin, user, rbac, "clusterrolebindings", "patch", "").await;
    }
    in_force(admin, "binder", rbac, "clusterroles", "bind", "view").await;
    in_force(admin, "climber", rbac, "roles", "escalate", "").await;
}

/// Waits until a right is in force: kube-apiserver applies new roles with a delay.
async fn in_force(admin: &Api, user: &str, group: &str, resource: &str, verb: &str, name: &str) {
    let attributes =
        json!({"group": group, "resource": resource, "verb": verb, "namespace": "default", "name": name});
    let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
    wait_for(&format!("{user} to have the right to {verb} {resource}"), DEADLINE, || async {
        let answer = admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await;
        if answer["status"]["allowed"] == true { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
}

/// User, method, path, body, and the expected code.
fn requests() -> Vec<(&'static str, &'static str, String, Value, u16)> {
    let maps = |verbs: &[&str]| json!([rule("", &["configmaps"], verbs)]);
    let secrets = |verbs: &[&str]| rule("", &["secrets"], verbs);
    let everything = || json!([rule("*", &["*"], &["*"])]);
    let label = || json!({"metadata": {"labels": {"a": "b"}}});
    let sum = |name: &str| {
        json!({"metadata": {"name": name}, "rules": [],
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"sum": "up"}}]}})
    };
    let paths = json!([{"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]}]);
    let mut one_map = maps(&["get"]);
    one_map[0]["resourceNames"] = json!(["m"]);
    let mixed = json!([
        secrets(&["get", "list"]),
        rule("", &["configmaps", "pods"], &["get"]),
        rule("apps", &["deployments/scale"], &["*"])
    ]);
    let path = |base: &str, name: &str| format!("{base}/{name}");
    vec![
        ("jane", "POST", ROLES.into(), role("same", maps(&["get", "list"])), 201),
        ("jane", "POST", ROLES.into(), role("fewer", one_map), 201),
        ("jane", "POST", ROLES.into(), role("more", maps(&["get", "delete"])), 403),
        ("jane", "POST", ROLES.into(), role("all-verbs", maps(&["*"])), 403),
        ("jane", "POST", ROLES.into(), role("mixed", mixed), 403),
        ("jane", "POST", ROLES.into(), role("none", json!([])), 201),
        ("jane", "POST", CLUSTER_ROLES.into(), role("wider", maps(&["get"])), 403),
        ("jane", "POST", CLUSTER_ROLES.into(), role("paths", paths), 403),
        ("jane", "POST", CLUSTER_ROLES.into(), sum("sum-up"), 403),
        ("jane", "POST", format!("{ROLES}?dryRun=All"), role("dry", everything()), 403),
        ("jane", "PATCH", path(ROLES, "maps"), label(), 200),
        ("jane", "PATCH", path(ROLES, "maps"), json!({"rules": [secrets(&["get"])]}), 403),
        ("jane", "PUT", path(ROLES, "maps"), role("maps", json!([secrets(&["get"])])), 403),
        ("jane", "PATCH", path(ROLES, "secrets"), label(), 403),
        (
            "jane",
            "PATCH",
            path(ROLES, "secrets"),
            json!({"metadata": {"finalizers": ["example.com/x"]}}),
            200,
        ),
        ("jane", "PATCH", path(ROLES, "secrets"), json!({"rules": maps(&["get"])}), 200),
        ("jane", "PATCH", path(CLUSTER_ROLES, "sum"), label(), 403),
        ("jane", "POST", BINDINGS.into(), binding("own", "Role", "maps", "jo"), 201),
        ("jane", "POST", BINDINGS.into(), binding("view", "ClusterRole", "view", "jo"), 403),
        ("jane", "POST", BINDINGS.into(), binding("absent", "Role", "missing", "jo"), 404),
        ("jane", "POST", BINDINGS.into(), binding("absent", "ClusterRole", "missing", "jo"), 404),
        ("jane", "PATCH", path(BINDINGS, "viewers"), label(), 403),
        (
            "jane",
            "POST",
            CLUSTER_BINDINGS.into(),
            binding("root", "ClusterRole", "cluster-admin", "jane"),
            403,
        ),
        ("binder", "POST", BINDINGS.into(), binding("bound", "ClusterRole", "view", "jo"), 201),
        ("binder", "POST", CLUSTER_BINDINGS.into(), binding("bound", "ClusterRole", "view", "jo"), 201),
        ("binder", "POST", BINDINGS.into(), binding("edit", "ClusterRole", "edit", "jo"), 403),
        ("binder", "PATCH", path(BINDINGS, "viewers"), label(), 200),
        ("climber", "POST", ROLES.into(), role("climbed", everything()), 201),
        ("climber", "PATCH", path(ROLES, "climbed"), json!({"rules": [secrets(&["get"])]}), 200),
        ("climber", "POST", CLUSTER_ROLES.into(), role("climbed", everything()), 403),
        ("climber", "POST", BINDINGS.into(), binding("climbed", "Role", "climbed", "climber"), 403),
        ("admin", "POST", CLUSTER_ROLES.into(), role("anything", everything()), 201),
        ("admin", "POST", CLUSTER_ROLES.into(), sum("any-sum"), 201),
    ]
}

async fn answers(admin: &Api) -> Vec<Answered> {
    prepare(admin).await;
    let mut answers = Vec::new();
    for (user, method, path, body, _) in requests() {
        let mut headers = vec![("impersonate-user", user)];
        if user == "admin" {
            headers.push(("impersonate-group", "system:masters"));
        }
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        headers.push(("content-type", media));
        let ask = Ask { method, path: &path, headers: &headers, body: body.to_string() };
        let (code, reply) = admin.send(ask).await;
        let message = if code >= 400 { reply["message"].as_str().unwrap_or_default() } else { "" };
        let below = path.strip_prefix(GROUP).unwrap_or(&path);
        answers.push((format!("{user} {method} {below} {body}"), code, message.to_owned()));
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_grant_more_than_they_have() {
    let server = Server::start().await;
    let answers = answers(&server.api().await).await;
    let wrong: Vec<String> = answers
        .iter()
        .zip(requests())
        .filter(|((_, code, _), request)| *code != request.4)
        .map(|((request, code, message), (.., expected))| {
            format!("{request}: {code} {message}, should be {expected}")
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_worded_as_on_the_real_server() {
    cluster_or_skip!("embedded::refusals_are_worded_as_on_the_real_server");
    // With controllers, because `view` and `edit` are aggregated from other roles.
    let options = ControlPlaneOptions { controllers: true, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await.unwrap();
    let real = answers(&Api { client: plane.admin_client().await.unwrap() }).await;
    let server = Server::start().await;
    let own = answers(&server.api().await).await;
    assert_same_answers(&real, &own);
    server.stop().await;
}
