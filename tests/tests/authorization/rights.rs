//! Random rights: roles of every form, bound to subjects of every kind.

use anyhow::Result;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use std::time::Duration;
use tombolo_testkit::wait_for;

use crate::servers::{Server, Verdict};

pub(crate) const NODES: [&str; 2] = ["n1", "n2"];
pub(crate) const NAMESPACES: [&str; 2] = ["ns-a", "ns-b"];

/// Label of the objects that are removed with their world.
const LABEL: &str = "authorization-test";

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Time until writes take effect.
const PATIENCE: Duration = Duration::from_secs(90);

/// API groups with resources in them, subresources included.
pub(crate) const RESOURCES: [(&str, &[&str]); 9] = [
    (
        "",
        &[
            "pods",
            "pods/status",
            "pods/log",
            "pods/eviction",
            "pods/binding",
            "pods/exec",
            "secrets",
            "configmaps",
            "serviceaccounts",
            "serviceaccounts/token",
            "namespaces",
            "namespaces/status",
            "nodes",
            "nodes/status",
            "nodes/proxy",
            "persistentvolumeclaims",
            "persistentvolumeclaims/status",
            "persistentvolumes",
            "services",
            "services/status",
            "events",
            "users",
            "groups",
        ],
    ),
    ("apps", &["deployments", "deployments/scale", "deployments/status", "replicasets"]),
    ("coordination.k8s.io", &["leases"]),
    ("storage.k8s.io", &["csinodes", "volumeattachments", "volumeattachments/status"]),
    ("resource.k8s.io", &["resourceslices", "resourceclaims", "resourceclaims/status"]),
    ("rbac.authorization.k8s.io", &["roles", "rolebindings", "clusterroles", "clusterrolebindings"]),
    (
        "authentication.k8s.io",
        &[
            "tokenreviews",
            "users",
            "groups",
            "nodes",
            "serviceaccounts",
            "uids",
            "userextras/example.test%2fscopes",
        ],
    ),
    ("certificates.k8s.io", &["certificatesigningrequests", "certificatesigningrequests/approval"]),
    ("example.test", &["widgets", "widgets/status"]),
];

/// Names of objects; some exist.
pub(crate) const NAMES: [&str; 14] =
    ["p1", "p2", "s1", "s2", "c1", "n1", "n2", "claim", "runner", "foo", "ns-a", "ns-b", "*", "foo*"];

pub(crate) const VERBS: [&str; 8] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// Verbs that are not derived from an HTTP method.
pub(crate) const SPECIAL_VERBS: [&str; 16] = [
    "*",
    "",
    "gets",
    "proxy",
    "impersonate",
    "bind",
    "escalate",
    "use",
    "impersonate:user-info",
    "impersonate:arbitrary-node",
    "impersonate:associated-node",
    "impersonate:serviceaccount",
    "impersonate-on:user-info:get",
    "impersonate-on:user-info:list",
    "impersonate-on:arbitrary-node:list",
    "impersonate-on:serviceaccount:create",
];

pub(crate) const PATHS: [&str; 15] = [
    "/",
    "/healthz",
    "/healthz/ping",
    "/readyz",
    "/livez/ping",
    "/metrics",
    "/metrics/slis",
    "/version",
    "/api",
    "/apis",
    "/apis/apps",
    "/openapi/v3",
    "/custom",
    "/custom/a",
    "/custom/a/b",
];

const PATH_PATTERNS: [&str; 10] =
    ["*", "/*", "/**", "/metrics/*", "/custom*", "/custom/*", "/custom/**", "/custom/a*b", "/healthz/*", ""];

/// A random element.
pub(crate) fn pick<'a, T: ?Sized>(rng: &mut StdRng, of: &[&'a T]) -> &'a T {
    of[rng.random_range(0..of.len())]
}

fn some(rng: &mut StdRng, max: usize, mut one: impl FnMut(&mut StdRng) -> String) -> Vec<String> {
    (0..rng.random_range(1..=max)).map(|_| one(rng)).collect()
}

/// A rule of a role, as it is created and as cases use it.
#[derive(Debug, Clone)]
pub(crate) struct Rule(pub(crate) Value);

impl Rule {
    /// A rule about resources.
    fn of_resources(rng: &mut StdRng, users: &[String]) -> Self {
        let (group, resources) = RESOURCES[rng.random_range(0..RESOURCES.len())];
        let verbs = some(rng, 3, |rng| match rng.random_range(0..8) {
            0..6 => pick(rng, &VERBS).to_owned(),
            _ => pick(rng, &SPECIAL_VERBS).to_owned(),
        });
        let groups = some(rng, 2, |rng| match rng.random_range(0..12) {
            0 => "*".to_owned(),
            1 => RESOURCES[rng.random_range(0..RESOURCES.len())].0.to_owned(),
            _ => group.to_owned(),
        });
        let resources = some(rng, 3, |rng| match rng.random_range(0..16) {
            0 => "*".to_owned(),
            1 => pick(rng, &["*/*", "pods/*", "*/", "pod*", "*/status", "*/log", "userextras/*"]).to_owned(),
            _ => pick(rng, resources).replace("%2f", "/"),
        });
        let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": resources});
        if rng.random_bool(0.4) {
            // Creations have no name: such a right grants nothing on either server.
            if rng.random_bool(0.5) {
                rule["verbs"].as_array_mut().into_iter().for_each(|verbs| verbs.push(json!("create")));
            }
            let name = |rng: &mut StdRng| match rng.random_bool(0.3) {
                true => users[rng.random_range(0..users.len())].clone(),
                false => pick(rng, &NAMES).to_owned(),
            };
            rule["resourceNames"] = json!(some(rng, 3, name));
        }
        Self(rule)
    }

    /// A rule about non-resource paths.
    fn of_paths(rng: &mut StdRng) -> Self {
        let verbs = some(rng, 2, |rng| pick(rng, &["get", "head", "post", "put", "delete", "*"]).to_owned());
        let paths = some(rng, 2, |rng| match rng.random_bool(0.5) {
            true => pick(rng, &PATH_PATTERNS).to_owned(),
            false => pick(rng, &PATHS).to_owned(),
        });
        Self(json!({"verbs": verbs, "nonResourceURLs": paths}))
    }
}

/// The rights that one binding gives to a subject.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) subject: Value,
    /// The namespace of the binding; none if it is cluster-wide.
    pub(crate) namespace: Option<&'static str>,
    pub(crate) rule: Rule,
}

impl Grant {
    /// The strings of a list in the rule.
    pub(crate) fn list(&self, list: &str) -> Vec<&str> {
        self.rule.0[list].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
}

/// The rights of one seed.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) users: Vec<String>,
    pub(crate) groups: Vec<String>,
    /// Namespace and name of its service accounts.
    pub(crate) accounts: Vec<(&'static str, String)>,
    pub(crate) grants: Vec<Grant>,
    /// Path of the collection, and object, in the order of creation.
    objects: Vec<(String, Value)>,
    /// Names of the aggregated roles.
    sums: Vec<String>,
}

/// A role that bindings may refer to, with the rules that cases use.
struct Role {
    kind: &'static str,
    namespace: Option<&'static str>,
    name: String,
    rules: Vec<Rule>,
}

impl World {
    /// The rights of a seed; the same seed always gives the same rights.
    pub(crate) fn of(seed: u64, rng: &mut StdRng) -> Self {
        let users = ["alice", "bob"].map(|name| format!("{name}-{seed}")).into_iter();
        let accounts: Vec<(&'static str, String)> =
            (0..4).map(|index| (NAMESPACES[index % 2], format!("sa{index}-{seed}"))).collect();
        let mut users: Vec<String> = users.collect();
        users.extend(accounts.iter().map(|(ns, name)| format!("system:serviceaccount:{ns}:{name}")));
        users.extend(
            [
                "*",
                "alice*",
                "system:anonymous",
                "system:node:n1",
                "system:node:n2",
                "system:serviceaccount:ns-a:*",
            ]
            .map(str::to_owned),
        );
        let groups = [
            &format!("dev-{seed}"),
            &format!("ops-{seed}"),
            "*",
            "dev*",
            "system:nodes",
            "system:serviceaccounts",
            "system:serviceaccounts:ns-a",
            "system:authenticated",
            "system:unauthenticated",
        ];
        let groups = groups.map(str::to_owned).to_vec();
        let (grants, objects, sums) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = Self { seed, users, groups, accounts, grants, objects, sums };
        let roles = world.roles(rng);
        (0..14).for_each(|index| world.bind(rng, index, &roles));
        world.add_canaries();
        world
    }

    fn add(&mut self, collection: &str, namespace: Option<&str>, mut object: Value) {
        object["metadata"]["labels"][LABEL] = json!(format!("w{}", self.seed));
        let path = match namespace {
            Some(namespace) => format!("{RBAC}/namespaces/{namespace}/{collection}"),
            None => format!("{RBAC}/{collection}"),
        };
        self.objects.push((path, object));
    }

    fn roles(&mut self, rng: &mut StdRng) -> Vec<Role> {
        let mut roles = Vec::new();
        for index in 0..10 {
            let rules: Vec<Rule> = (0..rng.random_range(1..=3))
                .map(|_| {
                    if rng.random_bool(0.2) {
                        Rule::of_paths(rng)
                    } else {
                        Rule::of_resources(rng, &self.users)
                    }
                })
                .collect();
            let name = format!("role{index}-{}", self.seed);
            let mut labels = json!({"world": format!("w{}", self.seed)});
            if rng.random_bool(0.7) {
                labels["part"] = json!(pick(rng, &["a", "b", "c"]));
            }
            let object = json!({"metadata": {"name": name, "labels": labels}, "rules": shown(&rules)});
            self.add("clusterroles", None, object);
            roles.push(Role { kind: "ClusterRole", namespace: None, name, rules });
        }
        for index in 0..6 {
            let namespace = NAMESPACES[index % 2];
            let rules: Vec<Rule> =
                (0..rng.random_range(1..=3)).map(|_| Rule::of_resources(rng, &self.users)).collect();
            let name = format!("role{index}-{}", self.seed);
            self.add("roles", Some(namespace), json!({"metadata": {"name": name}, "rules": shown(&rules)}));
            roles.push(Role { kind: "Role", namespace: Some(namespace), name, rules });
        }
        for index in 0..4 {
            let sum = self.sum(rng, index, &roles);
            roles.push(sum);
        }
        roles
    }

    /// An aggregated role. Cases use the rules of all roles, whether they are selected or not.
    fn sum(&mut self, rng: &mut StdRng, index: usize, roles: &[Role]) -> Role {
        let mut selectors: Vec<Value> = (0..rng.random_range(1..=2)).map(|_| self.selector(rng)).collect();
        selectors.push(json!({"matchLabels": {"canary": format!("w{}", self.seed)}}));
        let name = format!("sum{index}-{}", self.seed);
        let rule = json!({"clusterRoleSelectors": selectors});
        self.add(
            "clusterroles",
            None,
            json!({"metadata": {"name": name}, "aggregationRule": rule, "rules": null}),
        );
        self.sums.push(name.clone());
        let cluster_wide = roles.iter().filter(|role| role.namespace.is_none());
        let rules = cluster_wide.flat_map(|role| role.rules.clone()).collect();
        Role { kind: "ClusterRole", namespace: None, name, rules }
    }

    /// A selector among the plain roles of this world, except the one that selects everything: an aggregate of
    /// aggregates would be compared before it has settled.
    fn selector(&self, rng: &mut StdRng) -> Value {
        let world = format!("w{}", self.seed);
        let here = json!({"key": "world", "operator": "In", "values": [world]});
        let expression = match rng.random_range(0..4) {
            0 => json!({"key": "part", "operator": "In", "values": [pick(rng, &["a", "b", "c"]), "b"]}),
            1 => json!({"key": "part", "operator": "NotIn", "values": [pick(rng, &["a", "b", "c"])]}),
            2 => json!({"key": "part", "operator": "Exists"}),
            _ => json!({"key": "part", "operator": "DoesNotExist"}),
        };
        match rng.random_range(0..24) {
            0 => json!({}),
            1..8 => json!({"matchLabels": {"world": world, "part": pick(rng, &["a", "b", "c"])}}),
            8..16 => json!({"matchLabels": {"world": world}, "matchExpressions": [expression]}),
            _ => json!({"matchExpressions": [here, expression]}),
        }
    }

    fn bind(&mut self, rng: &mut StdRng, index: usize, roles: &[Role]) {
        let role = match rng.random_bool(0.3) {
            true => &roles[roles.len() - 1 - rng.random_range(0..self.sums.len())],
            false => &roles[rng.random_range(0..roles.len())],
        };
        let namespace = role.namespace.or_else(|| rng.random_bool(0.4).then(|| pick(rng, &NAMESPACES)));
        let subjects: Vec<Value> =
            (0..rng.random_range(1..=2)).map(|_| self.subject(rng, namespace)).collect();
        let object = json!({
            "metadata": {"name": format!("binding{index}-{}", self.seed)},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.kind, "name": role.name},
            "subjects": subjects,
        });
        let collection = if namespace.is_some() { "rolebindings" } else { "clusterrolebindings" };
        self.add(collection, namespace, object);
        for subject in subjects {
            let rules = role.rules.iter().cloned();
            self.grants.extend(rules.map(|rule| Grant { subject: subject.clone(), namespace, rule }));
        }
    }

    fn subject(&self, rng: &mut StdRng, namespace: Option<&str>) -> Value {
        let group = "rbac.authorization.k8s.io";
        match rng.random_range(0..11) {
            // A name that is a wildcard in other rules of Kubernetes.
            10 => json!({"kind": "User", "apiGroup": group, "name": "*"}),
            0..5 => {
                json!({"kind": "User", "apiGroup": group, "name": self.users[rng.random_range(0..self.users.len())]})
            }
            5..8 => {
                json!({"kind": "Group", "apiGroup": group, "name": self.groups[rng.random_range(0..self.groups.len())]})
            }
            _ => {
                let (home, name) = &self.accounts[rng.random_range(0..self.accounts.len())];
                match namespace {
                    Some(_) if rng.random_bool(0.5) => json!({"kind": "ServiceAccount", "name": name}),
                    _ => json!({"kind": "ServiceAccount", "name": name, "namespace": home}),
                }
            }
        }
    }

    /// The last objects of each kind: a server that has processed these has processed all others. Every aggregated role
    /// selects the last ClusterRole.
    fn add_canaries(&mut self) {
        let (seed, world) = (self.seed, format!("w{}", self.seed));
        let rules = json!([{"verbs": ["sing"], "apiGroups": ["example.test"], "resources": ["canaries"]}]);
        let labels = json!({"canary": world});
        let name = format!("canary-{seed}");
        let binding = |name: &str, kind: &str, role: &str| {
            json!({
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}],
            })
        };
        for sum in self.sums.clone() {
            self.add("clusterrolebindings", None, binding(&format!("canary-{sum}"), "ClusterRole", &sum));
        }
        self.add("clusterroles", None, json!({"metadata": {"name": name, "labels": labels}, "rules": rules}));
        self.add("roles", Some(NAMESPACES[0]), json!({"metadata": {"name": name}, "rules": rules}));
        self.add("clusterrolebindings", None, binding(&name, "ClusterRole", &name));
        let local = format!("canary-local-{seed}");
        self.add("rolebindings", Some(NAMESPACES[0]), binding(&local, "Role", &name));
    }

    /// Creates the world on a server, waits until its rights are effective, and returns its accounts' tokens.
    pub(crate) async fn install(&self, server: &Server) -> Result<Vec<String>> {
        for (path, object) in &self.objects {
            server.make(path, object).await?;
        }
        let mut tokens = Vec::new();
        for (namespace, name) in &self.accounts {
            let account = json!({"metadata": {"name": name}});
            server.make(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account).await?;
            tokens.push(server.token(namespace, name).await?);
        }
        let sums = self.sums.iter().map(|sum| format!("canary-{sum}"));
        for user in sums.chain([format!("canary-{}", self.seed), format!("canary-local-{}", self.seed)]) {
            let what = json!({"namespace": NAMESPACES[0], "verb": "sing", "group": "example.test", "resource": "canaries"});
            counts(server, &json!({"user": user, "resourceAttributes": what})).await;
        }
        Ok(tokens)
    }

    /// Removes the world.
    pub(crate) async fn remove(&self, server: &Server) -> Result<()> {
        let label = format!("{LABEL}%3Dw{}", self.seed);
        for collection in ["clusterroles", "clusterrolebindings"] {
            server.remove(&format!("{RBAC}/{collection}"), &label).await?;
        }
        for namespace in NAMESPACES {
            for collection in ["roles", "rolebindings"] {
                server.remove(&format!("{RBAC}/namespaces/{namespace}/{collection}"), &label).await?;
            }
        }
        Ok(())
    }
}

fn shown(rules: &[Rule]) -> Value {
    rules.iter().map(|rule| rule.0.clone()).collect()
}

/// Waits until a right is effective.
async fn counts(server: &Server, review: &Value) {
    wait_for(&format!("{review} to be allowed"), PATIENCE, || async {
        match server.review(review).await {
            Ok((Verdict::Allowed, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Creates the objects that nodes have rights to: a pod on each node, with the objects that it refers to.
pub(crate) async fn furnish(server: &Server) -> Result<()> {
    for (index, (node, namespace)) in NODES.into_iter().zip(NAMESPACES).enumerate() {
        let named = |name: &str| json!({"metadata": {"name": name}});
        let home = format!("/api/v1/namespaces/{namespace}");
        server.make("/api/v1/namespaces", &named(namespace)).await?;
        server.make("/api/v1/nodes", &named(node)).await?;
        server.make(&format!("{home}/serviceaccounts"), &named("runner")).await?;
        let (pod, secret) = (format!("p{}", index + 1), format!("s{}", index + 1));
        server.make(&format!("{home}/secrets"), &named(&secret)).await?;
        server.make(&format!("{home}/configmaps"), &named("c1")).await?;
        let pod = json!({"metadata": {"name": pod}, "spec": {
            "nodeName": node, "serviceAccountName": "runner", "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "example.test/i"}],
            "volumes": [
                {"name": "s", "secret": {"secretName": secret}},
                {"name": "c", "configMap": {"name": "c1"}},
                {"name": "p", "persistentVolumeClaim": {"claimName": "claim"}},
            ],
        }});
        server.make(&format!("{home}/pods"), &pod).await?;
        let slice = json!({"metadata": {"name": node}, "spec": {
            "driver": "example.test", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        }});
        server.make("/apis/resource.k8s.io/v1/resourceslices", &slice).await?;
        for (group, resource, namespace, name) in
            [("", "secrets", namespace, secret.as_str()), ("resource.k8s.io", "resourceslices", "", node)]
        {
            let what = json!({"verb": "get", "group": group, "resource": resource, "namespace": namespace, "name": name});
            let who = json!({"user": format!("system:node:{node}"), "groups": ["system:nodes"], "resourceAttributes": what});
            counts(server, &who).await;
        }
    }
    Ok(())
}
