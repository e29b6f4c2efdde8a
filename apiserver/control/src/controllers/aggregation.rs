//! Aggregated ClusterRoles: `admin`, `edit`, `view` and those that users define.

use serde_json::Value;

use super::Context;
use super::feed::Feed;
use crate::authz::rbac::GROUP;
use crate::objects::{Edit, StoredObject, items, v1};
use crate::selector::selects;

/// The selectors of an aggregated role.
const SELECTORS: &str = "/aggregationRule/clusterRoleSelectors";

/// Aggregates rules until the server stops.
pub(super) async fn run(context: &Context) {
    let resource = v1(GROUP, "clusterroles");
    let mut feed = Feed::new(&context.objects, resource.clone());
    while feed.next().await.is_some() {
        // Any aggregated role may select the changed role. If no aggregated role changes, nothing is written.
        let roles = || context.objects.list(&resource, None);
        let sums = roles().filter(|role| role.value.get("aggregationRule").is_some()).collect();
        for (sum, rules) in summed(sums, roles()) {
            let rules = Value::Array(rules);
            let update = context.objects.update(&sum.key, |role| {
                if role.value.get("rules") == Some(&rules) {
                    return Edit::Keep;
                }
                role.value["rules"] = rules.clone();
                Edit::Put
            });
            if let Err(error) = update.await {
                tracing::warn!(key = %sum.key, %error, "cannot update an aggregated role");
            }
        }
    }
}

/// The aggregated roles, each with the rules of all roles that it selects. Each rule occurs once, ordered by selector
/// and then by role name. An empty selector selects all roles.
fn summed(
    sums: Vec<StoredObject>,
    roles: impl Iterator<Item = StoredObject>,
) -> Vec<(StoredObject, Vec<Value>)> {
    // The rules by selector.
    let mut chosen: Vec<Vec<Vec<Value>>> =
        sums.iter().map(|sum| vec![Vec::new(); items(&sum.value, SELECTORS).len()]).collect();
    for role in roles {
        for (sum, chosen) in sums.iter().zip(&mut chosen).filter(|(sum, _)| sum.key != role.key) {
            for (selector, rules) in items(&sum.value, SELECTORS).iter().zip(chosen) {
                if selects(selector, &role.value) {
                    rules.extend_from_slice(items(&role.value, "/rules"));
                }
            }
        }
    }
    let once = |all: Vec<Vec<Value>>| {
        let mut rules = Vec::new();
        for rule in all.into_iter().flatten() {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules
    };
    sums.into_iter().zip(chosen.into_iter().map(once)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::store::Revision;
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::ObjectKey;

    use super::*;

    fn role(name: &str, value: Value) -> StoredObject {
        let key = ObjectKey::new(v1(GROUP, "clusterroles"), "", name);
        StoredObject { key, uid: Uid::parse("u").unwrap(), revision: Revision(1), value }
    }

    #[test]
    fn selected_rules_are_summed_once() {
        let sum = role(
            "view",
            // It selects itself: its old rules are not aggregated.
            json!({
                "metadata": {"labels": {"to-view": "true"}}, "rules": [{"verbs": ["stale"]}],
                "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to-view": "true"}}]},
            }),
        );
        let labelled = |rules: Value| json!({"metadata": {"labels": {"to-view": "true"}}, "rules": rules});
        let roles = [
            role("a", labelled(json!([{"verbs": ["get"]}]))),
            role("b", labelled(json!([{"verbs": ["get"]}, {"verbs": ["list"]}]))),
            role("c", json!({"rules": [{"verbs": ["delete"]}]})),
            sum.clone(),
        ];
        let found = summed(vec![sum], roles.into_iter());
        assert_eq!(found[0].1, [json!({"verbs": ["get"]}), json!({"verbs": ["list"]})]);
    }

    #[test]
    fn aggregation_selectors_select_and_exclude() {
        let labelled = |name: &str, labels: Value| {
            let rule = json!([{"verbs": [name]}]);
            role(name, json!({"metadata": {"labels": labels}, "rules": rule}))
        };
        let roles = [
            labelled("exempt", json!({"team": "a", "exempt": "yes"})),
            labelled("other", json!({"team": "b"})),
            labelled("plain", json!({"team": "a"})),
            labelled("without", json!({})),
        ];
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        for (selectors, wanted) in [
            (
                json!([{"matchLabels": {"team": "a"}, "matchExpressions": [expression("exempt", "DoesNotExist", &[])]}]),
                &["plain"][..],
            ),
            (
                json!([{"matchExpressions": [expression("team", "In", &["a", "b"])]}]),
                &["exempt", "other", "plain"],
            ),
            (json!([{"matchExpressions": [expression("team", "NotIn", &["a"])]}]), &["other", "without"]),
            (json!([{"matchExpressions": [expression("exempt", "Exists", &[])]}]), &["exempt"]),
            (
                json!([{"matchLabels": {"team": "b"}}, {"matchLabels": {"exempt": "yes"}}]),
                &["other", "exempt"],
            ),
            (json!([{}]), &["exempt", "other", "plain", "without"]),
            (json!([]), &[]),
        ] {
            let sum = role("sum", json!({"aggregationRule": {"clusterRoleSelectors": selectors}}));
            let found = summed(vec![sum], roles.iter().cloned());
            let found: Vec<&str> = found[0].1.iter().filter_map(|rule| rule["verbs"][0].as_str()).collect();
            assert_eq!(found, wanted, "{selectors}");
        }
    }
}
