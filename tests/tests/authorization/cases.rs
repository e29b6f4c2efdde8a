//! Random requests by random callers. Many are derived from a right of the world, with some details changed.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::rights::{Grant, NAMES, NAMESPACES, NODES, PATHS, RESOURCES, SPECIAL_VERBS, VERBS, World, pick};

/// The user whom the administrator or an account impersonates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acting {
    user: String,
    groups: Vec<String>,
    uid: Option<&'static str>,
    extra: Vec<(&'static str, &'static str)>,
}

/// The caller of a request.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// The administrator, impersonating.
    Admin(Acting),
    /// A service account of the world, by its token, with or without impersonation.
    Account(usize, Option<Acting>),
    /// A node, by its certificate.
    Node(usize),
    /// A certificate of an unknown authority, with or without the token of an account.
    Foreign(Option<usize>),
    /// Without credentials.
    Nobody,
}

impl Caller {
    /// The account whose token is sent.
    pub(crate) fn account(&self) -> Option<usize> {
        match self {
            Self::Account(account, _) => Some(*account),
            Self::Foreign(account) => *account,
            Self::Admin(_) | Self::Node(_) | Self::Nobody => None,
        }
    }

    /// The impersonation headers.
    pub(crate) fn impersonation(&self) -> Vec<(String, String)> {
        let (Self::Admin(acting) | Self::Account(_, Some(acting))) = self else { return Vec::new() };
        let mut headers = vec![("impersonate-user".to_owned(), acting.user.clone())];
        headers.extend(acting.groups.iter().map(|group| ("impersonate-group".to_owned(), group.clone())));
        headers.extend(acting.uid.map(|uid| ("impersonate-uid".to_owned(), uid.to_owned())));
        let extra = acting.extra.iter();
        headers.extend(extra.map(|(key, value)| (format!("impersonate-extra-{key}"), (*value).to_owned())));
        headers
    }
}

/// A request. None of them changes anything: all are dry runs with empty objects as bodies.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) path: String,
}

#[derive(Debug, Clone)]
pub(crate) enum Question {
    Call(Call),
    /// The `spec` of a SubjectAccessReview.
    Review(Value),
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) caller: Caller,
    pub(crate) question: Question,
}

/// The attributes of a request, before it becomes a request or a review.
struct Wish {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    namespace: Option<&'static str>,
    name: Option<String>,
}

impl Case {
    pub(crate) fn of(world: &World, rng: &mut StdRng) -> Self {
        let grant = &world.grants[rng.random_range(0..world.grants.len())];
        match rng.random_range(0..100) {
            0..10 => return Self::of_node(rng),
            10..20 => return Self::of_selecting_write(world, rng),
            _ => {}
        }
        let acting = if rng.random_bool(0.7) { subject(world, grant, rng) } else { anybody(world, rng) };
        if rng.random_bool(0.2) {
            return Self { caller: Caller::Nobody, question: Question::Review(review(&acting, grant, rng)) };
        }
        let caller = caller(world, acting, rng);
        Self { caller, question: Question::Call(call(grant, rng)) }
    }
}

impl Case {
    /// A request of a node with a selector, by its certificate or in a review: the selector decides which objects are
    /// its own.
    fn of_node(rng: &mut StdRng) -> Self {
        let node = rng.random_range(0..NODES.len());
        let (group, resource) = match rng.random_range(0..8) {
            0 => ("", "nodes"),
            1 => ("resource.k8s.io", "resourceslices"),
            _ => ("", "pods"),
        };
        let selector = node_selector(node, rng);
        let verb = pick(rng, &["list", "watch", "list", "watch", "deletecollection", "create"]);
        if rng.random_bool(0.4) {
            let what = json!({"verb": verb, "group": group, "resource": resource, "fieldSelector": {"rawSelector": selector}});
            let user = format!("system:node:{}", NODES[node]);
            let spec = json!({"user": user, "groups": ["system:nodes"], "resourceAttributes": what});
            return Self { caller: Caller::Nobody, question: Question::Review(spec) };
        }
        let (method, watch) = match verb {
            "create" => ("POST", ""),
            "deletecollection" => ("DELETE", ""),
            "watch" => ("GET", "watch=1&"),
            _ => ("GET", ""),
        };
        let root = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
        let home = if resource == "pods" && rng.random_bool(0.5) { "/namespaces/ns-a" } else { "" };
        let query = format!("{watch}fieldSelector={}&dryRun=All&timeoutSeconds=1", encoded(&selector));
        let call = Call { method, path: format!("{root}{home}/{resource}?{query}") };
        Self { caller: Caller::Node(node), question: Question::Call(call) }
    }
}

impl Case {
    /// A write whose request names the permitted objects only in a selector, which must not count. The caller has a
    /// right to named objects, or to one namespace, which would include the namespace object itself.
    fn of_selecting_write(world: &World, rng: &mut StdRng) -> Self {
        let about_itself = |grant: &Grant| {
            let resources = grant.list("resources");
            grant.namespace.filter(|_| resources.iter().any(|one| matches!(*one, "namespaces" | "*")))
        };
        let is_named = |grant: &Grant| !grant.list("resourceNames").is_empty();
        let fits = |grant: &&Grant| is_named(grant) || about_itself(grant).is_some();
        let grants: Vec<&Grant> = world.grants.iter().filter(fits).collect();
        if grants.is_empty() {
            return Self::of_node(rng);
        }
        let grant = grants[rng.random_range(0..grants.len())];
        let collection = match about_itself(grant) {
            Some(namespace) if !is_named(grant) || rng.random_bool(0.3) => {
                format!("/api/v1/namespaces?fieldSelector=metadata.name%3D{namespace}")
            }
            _ => Self::named_collection(grant, rng),
        };
        let method = pick(rng, &["POST", "POST", "POST", "DELETE", "PUT", "PATCH"]);
        let acting = subject(world, grant, rng);
        let caller = caller(world, acting, rng);
        Self { caller, question: Question::Call(Call { method, path: format!("{collection}&dryRun=All") }) }
    }

    /// A collection that a right is about, and one of the right's names to select by.
    fn named_collection(grant: &Grant, rng: &mut StdRng) -> String {
        let mut one = |list: &str, other: &'static str| {
            let texts = grant.list(list);
            let text = if texts.is_empty() { other } else { pick(rng, &texts) };
            if text.is_empty() || text.starts_with('*') { other.to_owned() } else { text.to_owned() }
        };
        let (group, resource, name) =
            (one("apiGroups", ""), one("resources", "pods"), one("resourceNames", "foo"));
        let root = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
        let home = grant.namespace.filter(|_| resource != "namespaces");
        let home = home.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        let resource = resource.split('/').next().unwrap_or_default();
        format!("{root}{home}/{resource}?fieldSelector={}", encoded(&format!("metadata.name={name}")))
    }
}

/// A subject of the binding.
fn subject(world: &World, grant: &Grant, rng: &mut StdRng) -> Acting {
    let name = grant.subject["name"].as_str().unwrap_or_default().to_owned();
    match grant.subject["kind"].as_str() {
        Some("User") => Acting { groups: node_groups(&name, rng), user: name, ..Acting::default() },
        Some("Group") => Acting { groups: vec![name], ..anybody(world, rng) },
        _ => {
            let namespace = grant.subject["namespace"].as_str().or(grant.namespace).unwrap_or_default();
            Acting { user: format!("system:serviceaccount:{namespace}:{name}"), ..Acting::default() }
        }
    }
}

fn anybody(world: &World, rng: &mut StdRng) -> Acting {
    let user = world.users[rng.random_range(0..world.users.len())].clone();
    let mut groups = node_groups(&user, rng);
    if rng.random_bool(0.3) {
        groups.push(world.groups[rng.random_range(0..world.groups.len())].clone());
    }
    Acting { groups, user, ..Acting::default() }
}

/// A node is identified by its group; without it, it is a user of that name.
fn node_groups(user: &str, rng: &mut StdRng) -> Vec<String> {
    let is_node = user.starts_with("system:node:") && rng.random_bool(0.8);
    is_node.then(|| "system:nodes".to_owned()).into_iter().collect()
}

fn caller(world: &World, mut acting: Acting, rng: &mut StdRng) -> Caller {
    let accounts = world.accounts.len();
    let own = world
        .accounts
        .iter()
        .position(|(ns, name)| acting.user == format!("system:serviceaccount:{ns}:{name}"));
    let node = NODES.iter().position(|node| acting.user == format!("system:node:{node}"));
    match (own, node, rng.random_range(0..20)) {
        (Some(account), ..) if rng.random_bool(0.7) => match rng.random_bool(0.15) {
            true => Caller::Foreign(Some(account)),
            false => Caller::Account(account, rng.random_bool(0.3).then(|| anybody(world, rng))),
        },
        (_, Some(node), _) if rng.random_bool(0.6) => Caller::Node(node),
        (.., 0) => Caller::Nobody,
        (.., 1) => Caller::Foreign(rng.random_bool(0.7).then(|| rng.random_range(0..accounts))),
        (.., 2..5) => Caller::Account(rng.random_range(0..accounts), Some(acting)),
        (.., 5) => {
            acting.uid = Some("u-1");
            acting.extra = vec![("example.test%2fscopes", "a"), ("example.test%2fscopes", "b")];
            match rng.random_bool(0.5) {
                true => Caller::Account(rng.random_range(0..accounts), Some(acting)),
                false => Caller::Admin(acting),
            }
        }
        _ if acting.user == "system:anonymous" && acting.groups.is_empty() => Caller::Nobody,
        _ => {
            // A caller that may impersonate in every mode becomes a node with or without its group: kube-apiserver
            // begins with the mode that the caller was last allowed in (`modeIndexCache`). With a UID, only the older
            // mode applies.
            if node.is_some() && acting.groups.is_empty() {
                acting.uid = Some("u-1");
            }
            Caller::Admin(acting)
        }
    }
}

/// A request's attributes: those of a rule, or others.
fn wish(grant: &Grant, rng: &mut StdRng) -> Wish {
    let one = |list: &str, rng: &mut StdRng| {
        let texts = grant.list(list);
        let text = (!texts.is_empty()).then(|| pick(rng, &texts).to_owned());
        text.filter(|text| !text.is_empty() && *text != "*" && rng.random_bool(0.85))
    };
    let (group, resources) = RESOURCES[rng.random_range(0..RESOURCES.len())];
    let resource = one("resources", rng).unwrap_or_else(|| pick(rng, resources).replace("%2f", "/"));
    let (resource, mut subresource) = resource.split_once('/').unwrap_or((&resource, ""));
    if rng.random_bool(0.1) {
        subresource = pick(rng, &["", "status", "log", "scale", "token", "eviction", "odd"]);
    }
    let verb = one("verbs", rng).unwrap_or_else(|| pick(rng, &VERBS).to_owned());
    let namespace = match rng.random_range(0..10) {
        0..2 => None,
        2..8 => grant.namespace.or(Some(pick(rng, &NAMESPACES))),
        _ => Some(pick(rng, &["ns-a", "ns-b", "default", "kube-node-lease", "kube-system"])),
    };
    let collection = matches!(verb.as_str(), "list" | "watch" | "create" | "deletecollection");
    let named = rng.random_bool(if collection { 0.2 } else { 0.9 }) || !subresource.is_empty();
    let name = named.then(|| one("resourceNames", rng).unwrap_or_else(|| pick(rng, &NAMES).to_owned()));
    Wish {
        verb,
        group: one("apiGroups", rng).unwrap_or_else(|| group.to_owned()),
        resource: if resource.is_empty() { "pods".to_owned() } else { resource.to_owned() },
        subresource: subresource.to_owned(),
        namespace,
        name,
    }
}

/// A name to select by: often one from a rule.
fn selected(grant: &Grant, rng: &mut StdRng) -> String {
    let names = grant.list("resourceNames");
    let name = if names.is_empty() || rng.random_bool(0.3) { pick(rng, &NAMES) } else { pick(rng, &names) };
    let namespace = grant.namespace.filter(|_| rng.random_bool(0.2));
    namespace.unwrap_or(name).to_owned()
}

fn field_selector(grant: &Grant, rng: &mut StdRng) -> String {
    let (name, node) = (selected(grant, rng), pick(rng, &NODES));
    match rng.random_range(0..12) {
        0..4 => format!("metadata.name={name}"),
        4 => format!("metadata.name=={name}"),
        5 => format!("metadata.name!={name}"),
        6 => format!("metadata.name={name},metadata.name={}", selected(grant, rng)),
        7 => format!("spec.nodeName={node}"),
        8 => format!("spec.nodeName={node},metadata.name={name}"),
        9 => format!("spec.nodeName=x\\,spec.nodeName={node}"),
        10 => format!("spec.nodeName={node},!"),
        _ => format!("spec.nodeName!=x,spec.nodeName={node}"),
    }
}

/// A selector of a node's own objects, or one that only looks like it.
fn node_selector(node: usize, rng: &mut StdRng) -> String {
    let (node, other) = (NODES[node], NODES[1 - node]);
    match rng.random_range(0..18) {
        0..2 => format!("spec.nodeName={node}"),
        2 => format!("spec.nodeName=={node}"),
        3 => format!("spec.nodeName={other}"),
        4 => format!("spec.nodeName!={other}"),
        5 => format!("metadata.name=p1,spec.nodeName={node}"),
        6..8 => format!("spec.nodeName=x\\,spec.nodeName={node}"),
        8 => format!("metadata.name!=x\\,spec.nodeName={node}"),
        9 => format!("spec.nodeName={node}\\,spec.nodeName=x"),
        10 => format!("spec.nodeName={node},spec.nodeName={other}"),
        11 => format!("spec.nodeName={other},spec.nodeName={node}"),
        12 => format!("spec.nodeName={node},!"),
        13 => format!("spec.nodeName={node},"),
        14 => format!("spec.nodeName = {node}"),
        15 => format!("spec.nodeName={node}\\"),
        16 => format!("spec.nodeName={node}=x"),
        _ => String::new(),
    }
}

fn call(grant: &Grant, rng: &mut StdRng) -> Call {
    if !grant.list("nonResourceURLs").is_empty() && rng.random_bool(0.8) {
        let own = grant.list("nonResourceURLs");
        let own = pick(rng, &own).replace('*', pick(rng, &["", "a", "/b", "*"]));
        let path =
            if own.starts_with('/') && rng.random_bool(0.6) { own } else { pick(rng, &PATHS).to_owned() };
        return Call { method: pick(rng, &["GET", "GET", "HEAD", "POST", "PUT", "DELETE"]), path };
    }
    let wish = wish(grant, rng);
    let method = match wish.verb.as_str() {
        _ if rng.random_bool(0.1) => pick(rng, &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        _ => "GET",
    };
    let mut path =
        if wish.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}/v1", wish.group) };
    // Verbs that are part of the path; if nothing follows them, they refer to nothing.
    match wish.verb.as_str() {
        verb @ ("watch" | "proxy") if rng.random_bool(0.3) => path.push_str(&format!("/{verb}")),
        _ if rng.random_bool(0.06) => path.push_str(pick(rng, &["/watch", "/proxy"])),
        _ if rng.random_bool(0.02) => {
            path.push_str(pick(rng, &["/watch", "/proxy", "/watch/", "/proxy?x=1"]));
            return Call { method, path };
        }
        _ => {}
    }
    if let Some(namespace) = wish.namespace.filter(|_| wish.resource != "namespaces") {
        path.push_str(&format!("/namespaces/{namespace}"));
    }
    path.push_str(&format!("/{}", wish.resource));
    if let Some(name) = &wish.name {
        path.push_str(&format!("/{name}"));
        if !wish.subresource.is_empty() {
            path.push_str(&format!("/{}", wish.subresource));
        }
    }
    path.push_str(pick(rng, &["", "", "", "", "", "", "", "", "", "/"]));
    Call { method, path: format!("{path}?{}", query(&wish, grant, rng)) }
}

fn query(wish: &Wish, grant: &Grant, rng: &mut StdRng) -> String {
    let mut parts = Vec::new();
    if wish.verb == "watch" || rng.random_bool(0.05) {
        parts.push(pick(rng, &["watch=1", "watch=true", "watch", "watch=0"]).to_owned());
    }
    if rng.random_bool(0.4) {
        parts.push(format!("fieldSelector={}", encoded(&field_selector(grant, rng))));
    }
    if rng.random_bool(0.15) {
        parts.push(
            pick(
                rng,
                &["labelSelector=a", "labelSelector=a%3D!!", "limit=1", "limit=abc", "timeoutSeconds=x"],
            )
            .to_owned(),
        );
    }
    parts.extend(["dryRun=All", "timeoutSeconds=1"].map(str::to_owned));
    parts.join("&")
}

fn encoded(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    text.bytes()
        .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn review(acting: &Acting, grant: &Grant, rng: &mut StdRng) -> Value {
    let mut spec = json!({"user": acting.user, "groups": acting.groups});
    if !grant.list("nonResourceURLs").is_empty() {
        let own = grant.list("nonResourceURLs");
        let path = pick(rng, &own).replace('*', pick(rng, &["", "a", "/b", "*"]));
        let verb = pick(rng, &["get", "head", "post", "delete", "*"]);
        spec["nonResourceAttributes"] = json!({"verb": verb, "path": path});
        return spec;
    }
    let Wish { mut verb, group, mut resource, subresource, namespace, name } = wish(grant, rng);
    if rng.random_bool(0.2) {
        verb = pick(rng, &SPECIAL_VERBS).to_owned();
    }
    if rng.random_bool(0.05) {
        resource = pick(rng, &["pods/log", "*", "", "pods/"]).to_owned();
    }
    let mut what = json!({
        "verb": verb, "group": group, "version": "v1", "resource": resource, "subresource": subresource,
        "namespace": namespace.unwrap_or_default(), "name": name.unwrap_or_default(),
    });
    match rng.random_range(0..10) {
        0..2 => what["fieldSelector"] = json!({"rawSelector": field_selector(grant, rng)}),
        2 => {
            let operator = pick(rng, &["In", "NotIn", "In", "Odd"]);
            let value = pick(rng, &["n1", "n2", "x,spec.nodeName=n1", "n1\\"]);
            let key = pick(rng, &["spec.nodeName", "spec.nodeName=n1,a", "metadata.name"]);
            what["fieldSelector"] =
                json!({"requirements": [{"key": key, "operator": operator, "values": [value]}]});
        }
        _ => {}
    }
    spec["resourceAttributes"] = what;
    spec
}
