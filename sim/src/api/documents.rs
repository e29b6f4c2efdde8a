//! What the server publishes: version, health, discovery, OpenAPI, and the keys of its tokens.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::kinds::{KindInfo, REVIEWS, subresources};
use super::state::ModelState;
use super::status::ApiStatus;

/// Media type of a discovery of all groups in one document.
const AGGREGATED: &str = "as=APIGroupDiscoveryList";

/// A document and its media type.
pub(super) type PublishedDocument = (&'static str, Vec<u8>);

/// Reads a document.
///
/// # Errors
/// 404.
pub(super) fn read(state: &ModelState, path: &str, accept: &str) -> Result<PublishedDocument, ApiStatus> {
    let json = |value: &Value| Ok(("application/json", value.to_string().into_bytes()));
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["healthz" | "livez" | "readyz"] => Ok(("text/plain; charset=utf-8", b"ok".to_vec())),
        ["version"] => json(&json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitTreeState": "clean", "goVersion": "go1.26",
            "compiler": "gc", "platform": "linux/amd64", "gitCommit": "", "buildDate": "2026-01-01T00:00:00Z",
        })),
        ["openid", "v1", "jwks"] => {
            Ok(("application/jwk-set+json", json!({"keys": []}).to_string().into_bytes()))
        }
        [".well-known", "openid-configuration"] => json(&json!({
            "issuer": "https://kubernetes.default.svc", "jwks_uri": "https://kubernetes.default.svc/openid/v1/jwks",
            "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        })),
        ["api" | "apis"] if accept.contains(AGGREGATED) => {
            let list = aggregated(state, parts[0] == "api");
            Ok((
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                list.to_string().into_bytes(),
            ))
        }
        ["api"] => {
            json(&json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}))
        }
        ["apis"] => json(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups(state)})),
        ["api", "v1"] => json(&resources(state, "", "v1").ok_or_else(ApiStatus::no_such_path)?),
        ["apis", group] => {
            let found = groups(state).into_iter().find(|one| one["name"] == *group);
            let mut found = found.ok_or_else(ApiStatus::no_such_path)?;
            found["kind"] = "APIGroup".into();
            found["apiVersion"] = "v1".into();
            json(&found)
        }
        ["apis", group, version] => {
            json(&resources(state, group, version).ok_or_else(ApiStatus::no_such_path)?)
        }
        ["openapi", "v3"] => json(&openapi_list(state)),
        ["openapi", "v3", "api", version] => json(&openapi(state, "", version)?),
        ["openapi", "v3", "apis", group, version] => json(&openapi(state, group, version)?),
        ["openapi", "v2"] => json(&json!({
            "swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.3"}, "paths": {}, "definitions": {},
        })),
        _ => Err(ApiStatus::no_such_path()),
    }
}

/// The served kinds by group and version.
fn by_version(state: &ModelState) -> BTreeMap<(String, String), Vec<KindInfo>> {
    let mut found: BTreeMap<(String, String), Vec<KindInfo>> = BTreeMap::new();
    for kind in state.served() {
        found.entry((kind.key.group.clone(), kind.version.clone())).or_default().push(kind);
    }
    for (group, ..) in REVIEWS {
        found.entry((group.to_owned(), "v1".to_owned())).or_default();
    }
    found
}

fn groups(state: &ModelState) -> Vec<Value> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (group, version) in by_version(state).into_keys().filter(|(group, _)| !group.is_empty()) {
        groups.entry(group).or_default().push(version);
    }
    let named = |group: &str, version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let entry = |(group, versions): (String, Vec<String>)| {
        let all: Vec<Value> = versions.iter().map(|version| named(&group, version)).collect();
        json!({"name": group, "versions": all, "preferredVersion": all.last()})
    };
    groups.into_iter().map(entry).collect()
}

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// The subresources of a kind, with their verbs.
fn below(kind: &KindInfo) -> Vec<(&'static str, &'static [&'static str])> {
    let status: &[&str] = &["get", "patch", "update"];
    let of_status = kind.has_status.then_some(("status", status));
    let others = subresources(&kind.key).iter().map(|name| match *name {
        "approval" | "finalize" => (*name, status),
        name => (name, &["create"][..]),
    });
    of_status.into_iter().chain(others).collect()
}

/// An `APIResourceList`; none when the group has no such version.
fn resources(state: &ModelState, group: &str, version: &str) -> Option<Value> {
    let kinds = by_version(state).remove(&(group.to_owned(), version.to_owned()))?;
    let mut list = Vec::new();
    for kind in kinds {
        list.push(json!({
            "name": kind.key.resource, "singularName": kind.kind.to_lowercase(), "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": VERBS,
        }));
        for (name, verbs) in below(&kind) {
            list.push(json!({
                "name": format!("{}/{name}", kind.key.resource), "singularName": "", "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": verbs,
            }));
        }
    }
    for (_, resource, kind, namespaced) in REVIEWS.iter().filter(|(of, ..)| *of == group) {
        list.push(json!({
            "name": resource, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind,
            "verbs": ["create"],
        }));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}),
    )
}

/// An `APIGroupDiscoveryList` of the core group, or of all others.
fn aggregated(state: &ModelState, core: bool) -> Value {
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for ((group, version), kinds) in by_version(state) {
        if group.is_empty() != core {
            continue;
        }
        let mut resources: Vec<Value> = kinds.iter().map(discovered).collect();
        for (_, resource, kind, namespaced) in REVIEWS.iter().filter(|(of, ..)| *of == group) {
            resources.push(json!({
                "resource": resource, "responseKind": {"group": group, "version": version, "kind": kind},
                "scope": scope(*namespaced), "singularResource": kind.to_lowercase(), "verbs": ["create"],
            }));
        }
        let entry = json!({"version": version, "resources": resources, "freshness": "Current"});
        groups.entry(group).or_default().push(entry);
    }
    let items = groups.into_iter().map(|(group, versions)| {
        json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
    });
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items.collect::<Vec<_>>(),
    })
}

fn scope(namespaced: bool) -> &'static str {
    if namespaced { "Namespaced" } else { "Cluster" }
}

fn discovered(kind: &KindInfo) -> Value {
    let response = json!({"group": kind.key.group, "version": kind.version, "kind": kind.kind});
    let below: Vec<Value> = below(kind)
        .into_iter()
        .map(|(name, verbs)| json!({"subresource": name, "responseKind": response, "verbs": verbs}))
        .collect();
    let mut entry = json!({
        "resource": kind.key.resource, "responseKind": response, "scope": scope(kind.namespaced),
        "singularResource": kind.kind.to_lowercase(), "verbs": VERBS,
    });
    if !below.is_empty() {
        entry["subresources"] = below.into();
    }
    entry
}

fn openapi_path((group, version): &(String, String)) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The list of OpenAPI documents. The hash of a document changes with its kinds.
fn openapi_list(state: &ModelState) -> Value {
    let paths: BTreeMap<String, Value> = by_version(state)
        .iter()
        .map(|(version, kinds)| {
            let path = openapi_path(version);
            let link = format!("/openapi/v3/{path}?hash={:X}", kinds.len());
            (path, json!({ "serverRelativeURL": link }))
        })
        .collect();
    json!({ "paths": paths })
}

/// An OpenAPI document with the names of the kinds and without their fields.
fn openapi(state: &ModelState, group: &str, version: &str) -> Result<Value, ApiStatus> {
    let kinds = by_version(state).remove(&(group.to_owned(), version.to_owned()));
    let kinds = kinds.ok_or_else(ApiStatus::no_such_path)?;
    let schemas: BTreeMap<String, Value> = kinds
        .iter()
        .map(|kind| {
            let identity = json!([{"group": group, "version": version, "kind": kind.kind}]);
            let name = format!("{}.{version}.{}", kind.key.resource, kind.kind);
            (name, json!({"type": "object", "x-kubernetes-group-version-kind": identity}))
        })
        .collect();
    Ok(json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.36.3"}, "paths": {},
        "components": {"schemas": schemas},
    }))
}

#[cfg(test)]
mod tests {
    use super::super::rights::RightsTable;
    use super::*;

    fn document(state: &ModelState, path: &str, accept: &str) -> Result<Value, ApiStatus> {
        let (_, body) = read(state, path, accept)?;
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn discovery_names_built_in_kinds_and_those_of_definitions() {
        let mut state = ModelState::new(1, 0, RightsTable::default());
        assert_eq!(document(&state, "/apis/superedge.io/v1", "").expect_err("not yet").code, 404);
        let kind = state.served().find(|kind| kind.kind == "CustomResourceDefinition").expect("a kind");
        let definition = json!({
            "metadata": {"name": "servicegrids.superedge.io"},
            "spec": {"group": "superedge.io", "scope": "Namespaced",
                     "names": {"plural": "servicegrids", "kind": "ServiceGrid"},
                     "versions": [{"name": "v1", "served": true, "subresources": {"status": {}}}]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]},
        });
        state.put(&kind, definition, "c");
        let list = document(&state, "/apis/superedge.io/v1", "").expect("a list");
        let names: Vec<&str> = list["resources"]
            .as_array()
            .expect("kinds")
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        assert_eq!(names, ["servicegrids", "servicegrids/status"]);
        let all = document(&state, "/apis", AGGREGATED).expect("a list");
        let groups: Vec<&Value> =
            all["items"].as_array().expect("groups").iter().map(|one| &one["metadata"]["name"]).collect();
        assert!(groups.contains(&&json!("superedge.io")) && groups.contains(&&json!("apps")), "{groups:?}");
        let paths = document(&state, "/openapi/v3", "").expect("a list");
        let link = paths["paths"]["apis/superedge.io/v1"]["serverRelativeURL"].as_str().expect("a link");
        let path = link.split('?').next().expect("a path");
        assert!(document(&state, path, "").expect("a document")["components"]["schemas"].is_object());
        for path in ["/version", "/api", "/api/v1", "/apis", "/openid/v1/jwks", "/openapi/v2"] {
            assert!(document(&state, path, "").is_ok(), "{path}");
        }
        assert_eq!(document(&state, "/metrics", "").expect_err("no document").code, 404);
    }
}
