//! Users cannot grant rights that they do not have (Kubernetes: privilege escalation prevention of RBAC).
//!
//! Rules are split into single rights. A single rule of the granter must cover each right completely.

use std::collections::BTreeSet;

use tombolo_apicore::auth::Identity;

use super::rules::{Rule, path_matches};

/// Checks that rules grant nothing beyond `own`.
///
/// # Errors
/// The missing rights, worded as in Kubernetes.
pub(crate) fn confirm(granter: &Identity, own: &[Rule], granted: &[Rule]) -> Result<(), String> {
    let missing: Vec<Rule> =
        granted.iter().flat_map(single).filter(|right| !own.iter().any(|own| own.covers(right))).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let lines: BTreeSet<String> = compact(missing).iter().map(describe).collect();
    Err(format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        granter.user,
        quoted(&granter.groups),
        lines.into_iter().collect::<Vec<_>>().join("\n")
    ))
}

/// Every right on everything: required to write a role that aggregates the rules of others.
pub(crate) fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
    ]
}

/// Splits a rule into rights, each with one verb on one resource, object or path.
fn single(rule: &Rule) -> Vec<Rule> {
    let mut rights = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let right = Rule {
                    verbs: vec![verb.clone()],
                    api_groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    ..Rule::default()
                };
                if rule.resource_names.is_empty() {
                    rights.push(right);
                    continue;
                }
                rights.extend(
                    rule.resource_names
                        .iter()
                        .map(|name| Rule { resource_names: vec![name.clone()], ..right.clone() }),
                );
            }
        }
    }
    for url in &rule.non_resource_urls {
        rights.extend(rule.verbs.iter().map(|verb| Rule {
            verbs: vec![verb.clone()],
            non_resource_urls: vec![url.clone()],
            ..Rule::default()
        }));
    }
    rights
}

impl Rule {
    /// Whether this rule grants all of a single right.
    fn covers(&self, right: &Self) -> bool {
        let all = |own: &[String], wanted: &[String]| {
            own.iter().any(|own| own == "*") || wanted.iter().all(|wanted| own.contains(wanted))
        };
        let names = self.resource_names.is_empty()
            || !right.resource_names.is_empty()
                && right.resource_names.iter().all(|name| self.resource_names.contains(name));
        all(&self.verbs, &right.verbs)
            && all(&self.api_groups, &right.api_groups)
            && right.resources.iter().all(|resource| covers_resource(&self.resources, resource))
            && names
            && right.non_resource_urls.iter().all(|url| covers_url(&self.non_resource_urls, url))
    }
}

fn covers_resource(own: &[String], wanted: &str) -> bool {
    own.iter().any(|own| own == "*" || own == wanted)
        || wanted.split_once('/').is_some_and(|(_, subresource)| own.contains(&format!("*/{subresource}")))
}

fn covers_url(own: &[String], wanted: &str) -> bool {
    own.iter().any(|own| path_matches(own, wanted))
}

/// Joins the verbs of rights on the same resource and object, for the message.
fn compact(rights: Vec<Rule>) -> Vec<Rule> {
    let mut joined: Vec<Rule> = Vec::new();
    for right in rights {
        let same = |known: &&mut Rule| {
            known.non_resource_urls.is_empty()
                && right.non_resource_urls.is_empty()
                && known.api_groups == right.api_groups
                && known.resources == right.resources
                && known.resource_names == right.resource_names
        };
        match joined.iter_mut().find(same) {
            Some(known) => known.verbs.extend(right.verbs),
            None => joined.push(right),
        }
    }
    joined
}

fn describe(rule: &Rule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let parts = parts.iter().filter(|(_, values)| !values.is_empty());
    let parts: Vec<String> = parts.map(|(name, values)| format!("{name}:{}", quoted(values))).collect();
    format!("{{{}}}", parts.join(", "))
}

/// A list as Go prints it with `%q`.
fn quoted(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("[{}]", values.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(rules: Value) -> Vec<Rule> {
        let mut role = json!({});
        role["rules"] = rules;
        Rule::all_of(&role)
    }

    #[test]
    fn each_right_must_be_covered_by_one_rule() {
        let own = rules(json!([
            {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": ["apps"], "resources": ["*"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["*/status"], "verbs": ["*"]},
            {"nonResourceURLs": ["/metrics/*", "/version"], "verbs": ["get"]}
        ]));
        let jane = Identity::new("jane", &["readers"]);
        let cases = [
            (json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}), true),
            (json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}), false),
            (json!({"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get"]}), true),
            (json!({"apiGroups": ["*"], "resources": ["deployments"], "verbs": ["get"]}), false),
            (json!({"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}), false),
            (
                json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["b"], "verbs": ["get"]}),
                true,
            ),
            (
                json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["c"], "verbs": ["get"]}),
                false,
            ),
            (json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}), false),
            (
                json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"], "verbs": ["get"]}),
                true,
            ),
            (json!({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}), true),
            (json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}), false),
            (json!({"nonResourceURLs": ["/metrics/slis", "/version"], "verbs": ["get"]}), true),
            (json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}), false),
        ];
        for (rule, allowed) in cases {
            let outcome = confirm(&jane, &own, &rules(json!([rule])));
            assert_eq!(outcome.is_ok(), allowed, "{rule}: {outcome:?}");
        }
        assert!(confirm(&jane, &everything(), &everything()).is_ok());
    }

    #[test]
    fn missing_rights_are_listed_as_in_kubernetes() {
        let jane = Identity::new("jane", &["readers", "system:authenticated"]);
        let granted = rules(json!([
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]},
            {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
        ]));
        let text = confirm(&jane, &[], &granted).unwrap_err();
        assert_eq!(
            text,
            "user \"jane\" (groups=[\"readers\" \"system:authenticated\"]) is attempting to grant RBAC permissions \
             not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}\n\
             {NonResourceURLs:[\"/metrics\"], Verbs:[\"get\"]}"
        );
    }
}
