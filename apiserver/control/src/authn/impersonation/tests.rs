use http::HeaderValue;
use serde_json::json;
use tombolo_apicore::auth::Decision;

use super::*;
use crate::authz::rules::Rule;

/// Allows every user what one list of rules allows.
struct Rules(Vec<Rule>);

impl Authorizer for Rules {
    fn authorize<'a>(&'a self, asked: &'a Attributes) -> BoxFuture<'a, Decision> {
        let allowed = self.0.iter().any(|rule| rule.allows(asked));
        let decision = if allowed { Decision::Allow } else { Decision::NoOpinion(String::new()) };
        Box::pin(std::future::ready(decision))
    }
}

fn rules(rules: &[(&str, &str, &str, &[&str])]) -> Rules {
    let rule = |(verb, group, resource, names): &(&str, &str, &str, &[&str])| json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names});
    Rules(Rule::all_of(&json!({"rules": rules.iter().map(rule).collect::<Vec<_>>()})))
}

fn request() -> Attributes {
    Attributes {
        verb: "patch".into(),
        resource: "nodes".into(),
        subresource: "status".into(),
        name: "a".into(),
        is_resource: true,
        ..Attributes::default()
    }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
}

fn headers_appended(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(*name, HeaderValue::from_str(value).unwrap());
    }
    map
}

async fn become_(
    rules: &Rules,
    caller: &Identity,
    lines: &[(&'static str, &str)],
) -> Result<Identity, ApiError> {
    let wanted = wanted(&headers_appended(lines)).unwrap().unwrap();
    impersonate(rules, caller, &wanted, &request()).await
}

fn cloudcore() -> Identity {
    Identity::new("system:serviceaccount:tombolo:cloudcore", &["system:authenticated"])
}

#[test]
fn impersonation_headers_are_parsed() {
    assert_eq!(wanted(&HeaderMap::new()).unwrap(), None);
    assert!(wanted(&headers(&[("impersonate-group", "x")])).is_err());
    let lines = [
        ("impersonate-user", "jane"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-acme.com%2fproject", "x"),
    ];
    let jane = wanted(&headers_appended(&lines)).unwrap().unwrap();
    assert_eq!((jane.user.as_str(), jane.uid.as_deref()), ("jane", Some("7")));
    assert_eq!(jane.groups, ["a", "b"]);
    assert_eq!(jane.extra["acme.com/project"], ["x"]);
}

#[test]
fn first_user_header_counts_and_extra_keys_decode_completely() {
    let lines = [("impersonate-user", ""), ("impersonate-user", "jane")];
    assert_eq!(wanted(&headers_appended(&lines)).unwrap(), None);
    for (key, decoded) in [("a%2fb", "a/b"), ("a%2fb%zz", "a%2fb%zz"), ("a%2", "a%2"), ("%41", "A")] {
        assert_eq!(unescape(key), decoded);
    }
}

#[test]
fn only_valid_service_account_names_are_accounts() {
    for (user, wanted) in [
        ("system:serviceaccount:shop:till", Some(("shop", "till"))),
        ("system:serviceaccount:Shop:till", None),
        ("system:serviceaccount:shop:", None),
        ("system:serviceaccount::till", None),
        ("system:serviceaccount:shop:t:l", None),
        ("system:serviceaccount:shop:*", None),
        ("shop:till", None),
    ] {
        assert_eq!(service_account(user), wanted, "{user}");
    }
}

#[tokio::test]
async fn constrained_impersonation_of_a_node_needs_both_rights() {
    let user = ("impersonate:arbitrary-node", "authentication.k8s.io", "nodes", &[][..]);
    let on = ("impersonate-on:arbitrary-node:patch", "", "nodes/status", &[][..]);
    let as_node = [("impersonate-user", "system:node:a")];
    let node = become_(&rules(&[user, on]), &cloudcore(), &as_node).await.unwrap();
    assert_eq!(node.user, "system:node:a");
    assert_eq!(node.groups, ["system:nodes", "system:authenticated"]);
    // kube-apiserver starts with the mode that last allowed the caller, so its answer sometimes lacks the group.
    let older = ("impersonate", "", "users", &[][..]);
    let node = become_(&rules(&[older, user, on]), &cloudcore(), &as_node).await.unwrap();
    assert_eq!(node.groups, ["system:nodes", "system:authenticated"]);
    let refused = become_(&rules(&[user]), &cloudcore(), &as_node).await.unwrap_err();
    assert!(refused.message.contains("impersonate-on:arbitrary-node:patch"), "{}", refused.message);
    let refused = become_(&rules(&[on]), &cloudcore(), &as_node).await.unwrap_err();
    assert!(refused.message.contains("impersonate:arbitrary-node"), "{}", refused.message);
}

#[tokio::test]
async fn a_group_header_falls_back_to_the_older_rule() {
    let constrained = [
        ("impersonate:arbitrary-node", "authentication.k8s.io", "nodes", &[][..]),
        ("impersonate-on:arbitrary-node:patch", "", "nodes/status", &[][..]),
    ];
    let lines = [("impersonate-user", "system:node:a"), ("impersonate-group", "system:nodes")];
    let refused = become_(&rules(&constrained), &cloudcore(), &lines).await.unwrap_err();
    let expected = r#"users "system:node:a" is forbidden: User "system:serviceaccount:tombolo:cloudcore" cannot impersonate resource "users" in API group "" at the cluster scope"#;
    assert_eq!(refused.message, expected);
    let older = rules(&[("impersonate", "", "users", &[]), ("impersonate", "", "groups", &["system:nodes"])]);
    let node = become_(&older, &cloudcore(), &lines).await.unwrap();
    assert_eq!(node.groups, ["system:nodes", "system:authenticated"]);
}

#[tokio::test]
async fn service_accounts_and_users() {
    let account = [("impersonate-user", "system:serviceaccount:shop:till")];
    let older = rules(&[("impersonate", "", "serviceaccounts", &["till"])]);
    let till = become_(&older, &cloudcore(), &account).await.unwrap();
    assert!(till.in_group("system:serviceaccounts:shop"));
    let user_info = rules(&[
        ("impersonate-on:user-info:patch", "", "nodes/status", &[]),
        ("impersonate:user-info", "authentication.k8s.io", "users", &["jane"]),
        ("impersonate:user-info", "authentication.k8s.io", "groups", &["*"]),
    ]);
    let jane = become_(&user_info, &cloudcore(), &[("impersonate-user", "jane")]).await.unwrap();
    assert_eq!(jane.groups, ["system:authenticated"]);
    let masters = [("impersonate-user", "jane"), ("impersonate-group", "system:masters")];
    let refused = become_(&user_info, &cloudcore(), &masters).await.unwrap_err();
    assert!(refused.message.contains("system:masters group is not allowed"), "{}", refused.message);
    let anonymous = rules(&[("impersonate", "", "users", &[])]);
    let nobody =
        become_(&anonymous, &cloudcore(), &[("impersonate-user", "system:anonymous")]).await.unwrap();
    assert_eq!(nobody.groups, ["system:unauthenticated"]);
}

#[tokio::test]
async fn pod_may_impersonate_its_own_node() {
    let rights = rules(&[
        ("impersonate-on:associated-node:patch", "", "nodes/status", &[]),
        ("impersonate:associated-node", "authentication.k8s.io", "nodes", &["*"]),
    ]);
    let mut agent = cloudcore();
    agent.extra.insert("authentication.kubernetes.io/node-name".into(), vec!["a".into()]);
    assert!(become_(&rights, &agent, &[("impersonate-user", "system:node:a")]).await.is_ok());
    assert!(become_(&rights, &agent, &[("impersonate-user", "system:node:b")]).await.is_err());
}
