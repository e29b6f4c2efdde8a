//! ClusterRoles that are the sum of others: `admin`, `edit`, `view` and whatever an operator defines.

use serde_json::Value;

use super::Context;
use super::feed::Feed;
use crate::embedded::authz::rbac::GROUP;
use crate::embedded::objects::{Edit, Object, items, v1};

/// Sums rules up until the server stops.
pub(super) async fn run(context: &Context) {
    let resource = v1(GROUP, "clusterroles");
    let mut feed = Feed::new(&context.objects, resource.clone());
    while feed.next().await.is_some() {
        // Whichever role changed, any sum may contain it; a change that leaves a sum as it is ends here.
        let roles = context.objects.list(&resource, None);
        for sum in roles.iter().filter(|role| role.value.get("aggregationRule").is_some()) {
            let rules = Value::Array(summed(sum, &roles));
            let update = context.objects.update(&sum.key, |role| {
                if role.value.get("rules") == Some(&rules) {
                    return Edit::Keep;
                }
                role.value["rules"] = rules.clone();
                Edit::Put
            });
            if let Err(error) = update.await {
                tracing::warn!(key = %sum.key, %error, "an aggregated role was not brought up to date");
            }
        }
    }
}

/// The rules of all roles that a sum selects, each once, in the order of the roles' names.
fn summed(sum: &Object, roles: &[Object]) -> Vec<Value> {
    let selectors = items(&sum.value, "/aggregationRule/clusterRoleSelectors");
    let mut rules: Vec<Value> = Vec::new();
    for role in roles.iter().filter(|role| role.key != sum.key) {
        if !selectors.iter().any(|selector| selects(selector, &role.value)) {
            continue;
        }
        for rule in items(&role.value, "/rules") {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

fn selects(selector: &Value, role: &Value) -> bool {
    let labels = role.pointer("/metadata/labels");
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    // Only exact labels are summed: every cluster's own sums use nothing else.
    wanted.is_some_and(|wanted| {
        !wanted.is_empty()
            && wanted.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apiserve::store::Revision;
    use tombolo_proto::ids::Uid;
    use tombolo_proto::object::ObjectKey;

    use super::*;

    fn role(name: &str, value: Value) -> Object {
        let key = ObjectKey::new(v1(GROUP, "clusterroles"), "", name);
        Object { key, uid: Uid::parse("u").unwrap(), revision: Revision(1), value }
    }

    #[test]
    fn selected_rules_are_summed_once() {
        let sum = role(
            "view",
            json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to-view": "true"}}]}}),
        );
        let labelled = |rules: Value| json!({"metadata": {"labels": {"to-view": "true"}}, "rules": rules});
        let roles = [
            role("a", labelled(json!([{"verbs": ["get"]}]))),
            role("b", labelled(json!([{"verbs": ["get"]}, {"verbs": ["list"]}]))),
            role("c", json!({"rules": [{"verbs": ["delete"]}]})),
            sum.clone(),
        ];
        assert_eq!(summed(&sum, &roles), [json!({"verbs": ["get"]}), json!({"verbs": ["list"]})]);
    }
}
