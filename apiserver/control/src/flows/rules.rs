//! Which requests the rules of a FlowSchema match.

use serde_json::Value;
use tombolo_apicore::accounts::USER_PREFIX;
use tombolo_apicore::auth::{Attributes, Identity};

use crate::objects::{items, text};

/// Matches everything; the only element of its list.
const ALL: &str = "*";

/// A rule of a schema: users and their requests.
#[derive(Debug)]
pub(super) struct FlowSchemaRule {
    subjects: Vec<FlowSubject>,
    resources: Vec<Resources>,
    paths: Vec<Paths>,
}

#[derive(Debug)]
enum FlowSubject {
    User(String),
    Group(String),
    Account { namespace: String, name: String },
}

#[derive(Debug)]
struct Resources {
    verbs: NameMatcher,
    groups: NameMatcher,
    /// `resource` or `resource/subresource`.
    resources: NameMatcher,
    namespaces: NameMatcher,
    /// Whether requests without a namespace match as well.
    cluster: bool,
}

#[derive(Debug)]
struct Paths {
    verbs: NameMatcher,
    paths: Vec<String>,
}

#[derive(Debug)]
struct NameMatcher(Vec<String>);

impl NameMatcher {
    fn read(rule: &Value, list: &str) -> Self {
        Self(items(rule, list).iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    fn have(&self, name: &str) -> bool {
        self.0.iter().any(|own| own == ALL || own == name)
    }
}

impl FlowSchemaRule {
    /// Reads a rule. Missing fields match nothing.
    pub(super) fn read(rule: &Value) -> Self {
        let resources = |one: &Value| Resources {
            verbs: NameMatcher::read(one, "/verbs"),
            groups: NameMatcher::read(one, "/apiGroups"),
            resources: NameMatcher::read(one, "/resources"),
            namespaces: NameMatcher::read(one, "/namespaces"),
            cluster: one["clusterScope"] == true,
        };
        let paths = |one: &Value| Paths {
            verbs: NameMatcher::read(one, "/verbs"),
            paths: NameMatcher::read(one, "/nonResourceURLs").0,
        };
        Self {
            subjects: items(rule, "/subjects").iter().filter_map(FlowSubject::read).collect(),
            resources: items(rule, "/resourceRules").iter().map(resources).collect(),
            paths: items(rule, "/nonResourceRules").iter().map(paths).collect(),
        }
    }

    /// Whether the rule matches a request.
    pub(super) fn fits(&self, asked: &Attributes) -> bool {
        if !self.subjects.iter().any(|subject| subject.is(&asked.identity)) {
            return false;
        }
        match asked.is_resource {
            true => self.resources.iter().any(|rule| rule.fit(asked)),
            false => self.paths.iter().any(|rule| rule.fit(asked)),
        }
    }
}

impl FlowSubject {
    fn read(subject: &Value) -> Option<Self> {
        let part = |pointer: &str| text(subject, pointer).to_owned();
        match text(subject, "/kind") {
            "User" => Some(Self::User(part("/user/name"))),
            "Group" => Some(Self::Group(part("/group/name"))),
            "ServiceAccount" => Some(Self::Account {
                namespace: part("/serviceAccount/namespace"),
                name: part("/serviceAccount/name"),
            }),
            _ => None,
        }
    }

    fn is(&self, identity: &Identity) -> bool {
        match self {
            Self::User(name) => name == ALL || *name == identity.user,
            Self::Group(name) => name == ALL || identity.in_group(name),
            Self::Account { namespace, name } => {
                let account =
                    identity.user.strip_prefix(USER_PREFIX).and_then(|account| account.split_once(':'));
                account.is_some_and(|(own_namespace, own_name)| {
                    own_namespace == namespace && (name == ALL || name == own_name)
                })
            }
        }
    }
}

impl Resources {
    fn fit(&self, asked: &Attributes) -> bool {
        let of_resource = match asked.subresource.as_str() {
            "" => self.resources.have(&asked.resource),
            subresource => self.resources.have(&format!("{}/{subresource}", asked.resource)),
        };
        let in_place =
            if asked.namespace.is_empty() { self.cluster } else { self.namespaces.have(&asked.namespace) };
        of_resource && in_place && self.verbs.have(&asked.verb) && self.groups.have(&asked.group)
    }
}

impl Paths {
    fn fit(&self, asked: &Attributes) -> bool {
        // A path also matches all paths below it, with or without a star.
        let below = |path: &String| {
            let folder = path.trim_end_matches(ALL).trim_end_matches('/');
            asked.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        let fits = |path: &String| path == ALL || *path == asked.path || below(path);
        self.verbs.have(&asked.verb) && self.paths.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(user: &str, verb: &str, path: &str) -> Attributes {
        let (identity, verb) = (Identity::new(user, &["g"]), verb.to_owned());
        let parts: Vec<&str> = path.split(' ').collect();
        match parts.as_slice() {
            [group, resource, subresource, namespace] => Attributes {
                identity,
                verb,
                is_resource: true,
                group: (*group).to_owned(),
                resource: (*resource).to_owned(),
                subresource: (*subresource).to_owned(),
                namespace: (*namespace).to_owned(),
                ..Attributes::default()
            },
            _ => Attributes { identity, verb, path: path.to_owned(), ..Attributes::default() },
        }
    }

    #[test]
    fn subjects_are_users_groups_and_accounts() {
        let account = |name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "n", "name": name}});
        let cases = [
            (json!({"kind": "User", "user": {"name": "u"}}), "u", true),
            (json!({"kind": "User", "user": {"name": "u"}}), "v", false),
            (json!({"kind": "User", "user": {"name": "*"}}), "v", true),
            (json!({"kind": "Group", "group": {"name": "g"}}), "v", true),
            (json!({"kind": "Group", "group": {"name": "h"}}), "v", false),
            (account("a"), "system:serviceaccount:n:a", true),
            (account("a"), "system:serviceaccount:n:b", false),
            (account("*"), "system:serviceaccount:n:b", true),
            (account("*"), "system:serviceaccount:nn:b", false),
            (json!({"kind": "Robot"}), "v", false),
        ];
        for (subject, user, fits) in cases {
            let found = FlowSubject::read(&subject).is_some_and(|own| own.is(&Identity::new(user, &["g"])));
            assert_eq!(found, fits, "{subject} {user}");
        }
    }

    #[test]
    fn flow_rules_match_resources_and_paths() {
        let rule = FlowSchemaRule::read(&json!({
            "subjects": [{"kind": "User", "user": {"name": "*"}}],
            "resourceRules": [
                {"verbs": ["get"], "apiGroups": ["apps"], "resources": ["deployments/scale"], "namespaces": ["a"]},
                {"verbs": ["*"], "apiGroups": [""], "resources": ["nodes"], "clusterScope": true},
            ],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/logs/*"]}],
        }));
        let cases = [
            ("get", "apps deployments scale a", true),
            ("get", "apps deployments  a", false),
            ("get", "apps deployments scale b", false),
            ("update", "apps deployments scale a", false),
            ("list", " nodes  ", true),
            ("list", " pods  ", false),
            ("get", "/healthz", true),
            ("get", "/healthz/etcd", true),
            ("get", "/healthzz", false),
            ("get", "/logs/a", true),
            ("put", "/logs/a", false),
        ];
        for (verb, path, fits) in cases {
            assert_eq!(rule.fits(&asked("u", verb, path)), fits, "{verb} {path}");
        }
    }
}
