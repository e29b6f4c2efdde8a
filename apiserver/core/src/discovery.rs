//! Discovery documents: the old form (one document per group version) and the aggregated one.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::kinds::{KindInfo, Kinds, SubresourceInfo, order};
use crate::value::to_bytes;

/// The documents of one set of kinds, encoded once.
#[derive(Debug)]
pub(crate) struct Documents {
    by_path: BTreeMap<String, Bytes>,
    aggregated: BTreeMap<&'static str, Aggregated>,
}

/// One aggregated document and its entity tag.
#[derive(Debug, Clone)]
pub(crate) struct Aggregated {
    pub(crate) body: Bytes,
    pub(crate) etag: String,
}

impl Documents {
    pub(crate) fn new(kinds: &Kinds) -> Self {
        let groups = Groups::of(kinds);
        let mut by_path = BTreeMap::new();
        by_path.insert("/api".to_owned(), to_bytes(&core_versions(&groups)));
        let list: Vec<Value> = groups.named().map(|(name, versions)| group(name, versions)).collect();
        by_path.insert(
            "/apis".to_owned(),
            to_bytes(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list})),
        );
        for (name, versions) in &groups.0 {
            if !name.is_empty() {
                let mut document = group(name, versions);
                document["kind"] = "APIGroup".into();
                document["apiVersion"] = "v1".into();
                by_path.insert(format!("/apis/{name}"), to_bytes(&document));
            }
            for (version, kinds) in versions {
                let path = if name.is_empty() {
                    format!("/api/{version}")
                } else {
                    format!("/apis/{name}/{version}")
                };
                by_path.insert(path, to_bytes(&resources(name, version, kinds)));
            }
        }
        let mut aggregated = BTreeMap::new();
        for root in ["/api", "/apis"] {
            aggregated.insert(root, aggregate(&groups, root == "/api"));
        }
        Self { by_path, aggregated }
    }

    /// The document of a path, which must not end with a slash.
    pub(crate) fn get(&self, path: &str) -> Option<&Bytes> {
        self.by_path.get(path)
    }

    /// The document of `/`: the list of all paths.
    pub(crate) fn paths(&self) -> Bytes {
        let mut paths: Vec<&str> = self.by_path.keys().map(String::as_str).collect();
        paths.extend(["/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]);
        paths.sort_unstable();
        to_bytes(&json!({"paths": paths}))
    }

    /// The aggregated form of `/api` or `/apis`.
    pub(crate) fn aggregated(&self, path: &str) -> Option<&Aggregated> {
        self.aggregated.get(path)
    }
}

type Versions<'a> = Vec<(&'a str, Vec<&'a KindInfo>)>;

/// Groups with their versions, in discovery order.
struct Groups<'a>(Vec<(&'a str, Versions<'a>)>);

impl<'a> Groups<'a> {
    fn of(kinds: &'a Kinds) -> Self {
        let mut groups: BTreeMap<&str, BTreeMap<&str, Vec<&KindInfo>>> = BTreeMap::new();
        for kind in kinds.iter() {
            let resource = &kind.resource;
            groups.entry(&resource.group).or_default().entry(&resource.version).or_default().push(kind);
        }
        let sort = |(group, versions): (&'a str, BTreeMap<&'a str, Vec<&'a KindInfo>>)| {
            let mut versions: Versions<'a> = versions.into_iter().collect();
            versions.sort_by_cached_key(|(version, _)| order::version_key(group, version));
            (group, versions)
        };
        let mut groups: Vec<(&str, Versions<'_>)> = groups.into_iter().map(sort).collect();
        groups.sort_by_cached_key(|(group, versions)| {
            let versions: Vec<&str> = versions.iter().map(|(version, _)| *version).collect();
            order::group_key(group, &versions)
        });
        Self(groups)
    }

    fn named(&self) -> impl Iterator<Item = (&'a str, &Versions<'a>)> {
        self.0.iter().filter(|(name, _)| !name.is_empty()).map(|(name, versions)| (*name, versions))
    }
}

fn core_versions(groups: &Groups<'_>) -> Value {
    let core = groups.0.iter().filter(|(name, _)| name.is_empty());
    let versions: Vec<&str> = core.flat_map(|(_, versions)| versions).map(|(version, _)| *version).collect();
    json!({"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": []})
}

/// The document of core versions, with the address under which the client reached this server.
pub(crate) fn with_address(versions: &Bytes, address: &str) -> Bytes {
    let Ok(mut document) = serde_json::from_slice::<Value>(versions) else { return versions.clone() };
    if !address.is_empty() {
        document["serverAddressByClientCIDRs"] =
            json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]);
    }
    to_bytes(&document)
}

fn group(name: &str, versions: &Versions<'_>) -> Value {
    let version = |version: &str| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let all: Vec<Value> = versions.iter().map(|(name, _)| version(name)).collect();
    let preferred = all.first().cloned().unwrap_or_default();
    json!({"name": name, "versions": all, "preferredVersion": preferred})
}

fn resources(group: &str, version: &str, kinds: &[&KindInfo]) -> Value {
    let mut list = Vec::new();
    for kind in kinds {
        if !kind.verbs.is_empty() {
            list.push(resource(kind));
        }
        list.extend(kind.subresources.iter().map(|sub| subresource(kind, sub)));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list})
}

fn resource(kind: &KindInfo) -> Value {
    let mut entry = json!({
        "name": &*kind.resource.name,
        "singularName": &*kind.singular,
        "namespaced": kind.namespaced,
        "kind": &*kind.kind,
        "verbs": texts(&kind.verbs),
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = texts(&kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = texts(&kind.categories);
    }
    if kind.verbs.iter().any(|verb| &**verb == "list") {
        entry["storageVersionHash"] = storage_hash(kind).into();
    }
    entry
}

fn subresource(kind: &KindInfo, sub: &SubresourceInfo) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", kind.resource.name, sub.name),
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": &*sub.kind,
        "verbs": texts(&sub.verbs),
    });
    if (&*sub.group, &*sub.version) != (&*kind.resource.group, &*kind.resource.version) {
        entry["group"] = (*sub.group).into();
        entry["version"] = (*sub.version).into();
    }
    entry
}

fn texts(list: &[std::sync::Arc<str>]) -> Value {
    list.iter().map(|text| Value::from(&**text)).collect()
}

/// Eight bytes that change when the stored version does (in the format of kube-apiserver).
fn storage_hash(kind: &KindInfo) -> String {
    use base64::Engine;
    let stored = format!("{}/{}/{}", kind.storage.group, kind.storage.version, kind.kind);
    base64::engine::general_purpose::STANDARD.encode(&Sha256::digest(stored.as_bytes())[..8])
}

fn aggregate(groups: &Groups<'_>, core: bool) -> Aggregated {
    let items: Vec<Value> = groups
        .0
        .iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<Value> =
                versions.iter().map(|(version, kinds)| version_of(version, kinds)).collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let body = to_bytes(&json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }));
    let etag = format!("\"{}\"", hex(&Sha256::digest(&body)));
    Aggregated { body, etag }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

fn version_of(version: &str, kinds: &[&KindInfo]) -> Value {
    let resources: Vec<Value> = kinds.iter().map(|kind| aggregated_resource(kind)).collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

fn aggregated_resource(kind: &KindInfo) -> Value {
    let scope = if kind.namespaced { "Namespaced" } else { "Cluster" };
    let own = (&*kind.resource.group, &*kind.resource.version);
    // kube-apiserver names the group and version of a built-in kind only where they differ from those of the path.
    let response_kind = |group: &str, version: &str, name: &str| {
        let (group, version) =
            if !kind.custom && (group, version) == own { ("", "") } else { (group, version) };
        json!({"group": group, "version": version, "kind": name})
    };
    let mut entry = json!({
        "resource": &*kind.resource.name,
        "responseKind": response_kind(own.0, own.1, &kind.kind),
        "scope": scope,
        "singularResource": &*kind.singular,
        "verbs": texts(&kind.verbs),
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = texts(&kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = texts(&kind.categories);
    }
    let subresource = |sub: &SubresourceInfo| {
        json!({
            "subresource": &*sub.name,
            "responseKind": response_kind(&sub.group, &sub.version, &sub.kind),
            "verbs": texts(&sub.verbs),
        })
    };
    if !kind.subresources.is_empty() {
        entry["subresources"] = kind.subresources.iter().map(subresource).collect();
    }
    entry
}
