//! Discovery of a cloud that does not serve it in one document: the plain lists of groups and of their resources are
//! combined. In dialect `kubeedge` a request cannot specify the format of the answer.

use std::future::Future;

use serde_json::{Value, json};

/// Groups and versions whose resources are requested, at most.
const VERSIONS_MAX: usize = 96;

/// Combines a plain list of groups (`APIGroupList`) and the lists of resources (`APIResourceList`), which `ask` fetches
/// by path, into one `APIGroupDiscoveryList`. Groups that are `known` without a cloud are left out. If the list of a
/// version cannot be fetched, for example because its aggregated API is down, the entry from `before` is used.
pub(super) async fn gathered<F>(
    groups: &Value,
    before: &Value,
    known: impl Fn(&str) -> bool,
    ask: impl Fn(String) -> F,
) -> Value
where
    F: Future<Output = Result<Value, String>>,
{
    let (mut items, mut asked) = (Vec::new(), 0);
    'groups: for group in groups["groups"].as_array().into_iter().flatten() {
        let Some(name) = group["name"].as_str().filter(|name| !name.is_empty() && !known(name)) else {
            continue;
        };
        let mut versions = Vec::new();
        for version in preferred_first(group) {
            if asked == VERSIONS_MAX {
                tracing::warn!(group = name, "the cluster has more API versions than this node reads");
                break 'groups;
            }
            asked += 1;
            match ask(format!("/apis/{name}/{version}")).await {
                Ok(list) => {
                    versions.push(json!({"version": version, "resources": entries(name, version, &list)}));
                }
                Err(error) => {
                    tracing::debug!(group = name, version, error, "cannot fetch the list of resources");
                    versions.extend(said_before(before, name, version).cloned());
                }
            }
        }
        items.push(json!({"metadata": {"name": name}, "versions": versions}));
    }
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items})
}

/// The versions of a group, the preferred one first.
fn preferred_first(group: &Value) -> Vec<&str> {
    let listed = group["versions"].as_array().into_iter().flatten();
    let mut versions: Vec<&str> = listed.filter_map(|version| version["version"].as_str()).collect();
    let preferred = group["preferredVersion"]["version"].as_str();
    // The sort is stable, so the others keep their order.
    versions.sort_by_key(|version| Some(*version) != preferred);
    versions
}

fn said_before<'a>(before: &'a Value, group: &str, version: &str) -> Option<&'a Value> {
    let mut items = before["items"].as_array()?.iter();
    let item = items.find(|item| item["metadata"]["name"] == *group)?;
    item["versions"].as_array()?.iter().find(|known| known["version"] == *version)
}

/// Resources with their subresources in the form of `APIGroupDiscoveryList`.
fn entries(group: &str, version: &str, list: &Value) -> Vec<Value> {
    let all = || list["resources"].as_array().into_iter().flatten();
    let kind = |entry: &Value| {
        let own = |key: &str, otherwise: &str| entry[key].as_str().unwrap_or(otherwise).to_owned();
        json!({"group": own("group", group), "version": own("version", version), "kind": entry["kind"]})
    };
    let subresources = |name: &str| -> Vec<Value> {
        let of =
            |entry: &Value| Some(entry["name"].as_str()?.strip_prefix(name)?.strip_prefix('/')?.to_owned());
        let found = all().filter_map(|entry| Some((of(entry)?, entry)));
        found
            .map(|(sub, entry)| json!({"subresource": sub, "responseKind": kind(entry), "verbs": entry["verbs"]}))
            .collect()
    };
    let resource = |entry: &Value| {
        let name = entry["name"].as_str().filter(|name| !name.contains('/'))?;
        Some(json!({
            "resource": name, "responseKind": kind(entry), "verbs": entry["verbs"],
            "scope": if entry["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": entry["singularName"], "shortNames": entry["shortNames"],
            "categories": entry["categories"], "subresources": subresources(name),
        }))
    };
    all().filter_map(resource).collect()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tombolo_proto::session::kubeedge::Kinds;

    use super::*;

    fn groups(groups: &[(&str, &[&str], &str)]) -> Value {
        let group = |(name, versions, preferred): &(&str, &[&str], &str)| {
            let versions: Vec<_> = versions.iter().map(|version| json!({"version": version})).collect();
            json!({"name": name, "versions": versions, "preferredVersion": {"version": preferred}})
        };
        json!({"kind": "APIGroupList", "groups": groups.iter().map(group).collect::<Vec<_>>()})
    }

    fn geese() -> Value {
        json!({"kind": "APIResourceList", "resources": [
            {"name": "geese", "singularName": "goose", "namespaced": true, "kind": "Goose", "verbs": ["get"], "shortNames": ["gs"]},
            {"name": "geese/status", "namespaced": true, "kind": "Goose", "verbs": ["patch"]},
            {"name": "geese/scale", "group": "autoscaling", "version": "v1", "namespaced": true, "kind": "Scale", "verbs": ["get"]},
            {"name": "ponds", "namespaced": false, "kind": "Pond", "verbs": ["get"]},
        ]})
    }

    fn gather(groups: &Value, before: &Value, ask: impl Fn(String) -> Result<Value, String>) -> Value {
        let gathered = gathered(groups, before, |name| name == "apps", |path| std::future::ready(ask(path)));
        gathered.now_or_never().expect("nothing waits")
    }

    #[test]
    fn plain_lists_make_one_document() {
        let listed = groups(&[("apps", &["v1"], "v1"), ("example.org", &["v1", "v2"], "v2")]);
        let document = gather(&listed, &Value::Null, |path| match path.as_str() {
            "/apis/example.org/v1" | "/apis/example.org/v2" => Ok(geese()),
            _ => Err(format!("{path} is asked for")),
        });
        assert_eq!(document["items"].as_array().map(Vec::len), Some(1), "{document}");
        let versions = &document["items"][0]["versions"];
        assert_eq!((&versions[0]["version"], &versions[1]["version"]), (&json!("v2"), &json!("v1")));
        let [goose, pond] = versions[0]["resources"].as_array().expect("resources").as_slice() else {
            panic!()
        };
        assert_eq!((&goose["scope"], &pond["scope"]), (&json!("Namespaced"), &json!("Cluster")));
        assert_eq!(goose["responseKind"], json!({"group": "example.org", "version": "v2", "kind": "Goose"}));
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        assert_eq!(goose["subresources"][1]["responseKind"], scale);
        assert_eq!(
            (&goose["subresources"][0]["subresource"], &goose["shortNames"]),
            (&json!("status"), &json!(["gs"]))
        );
        assert!(Kinds::discovered(document.to_string().as_bytes()).is_ok());
    }

    #[test]
    fn unavailable_groups_keep_their_entry_and_requests_are_bounded() {
        let listed = groups(&[("example.org", &["v1"], "v1"), ("metrics.example", &["v1"], "v1")]);
        let before = gather(&listed, &Value::Null, |_| Ok(geese()));
        let away = |path: String| if path.contains("metrics") { Err("503".to_owned()) } else { Ok(geese()) };
        assert_eq!(gather(&listed, &before, away), before);
        let without = gather(&listed, &Value::Null, away);
        assert_eq!(without["items"][1]["versions"], json!([]));
        let fewer = groups(&[("example.org", &["v1"], "v1")]);
        assert_eq!(
            gather(&fewer, &before, away)["items"].as_array().map(Vec::len),
            Some(1),
            "a removed kind stays removed"
        );
        let names: Vec<String> = (0..=VERSIONS_MAX).map(|number| format!("g{number}")).collect();
        let many: Vec<(&str, &[&str], &str)> =
            names.iter().map(|name| (&**name, &["v1"][..], "v1")).collect();
        let asked = std::cell::Cell::new(0);
        gather(&groups(&many), &Value::Null, |_| {
            asked.set(asked.get() + 1);
            Ok(geese())
        });
        assert_eq!(asked.get(), VERSIONS_MAX);
        for odd in [json!(7), json!({"groups": 7}), json!({"groups": [7, {"name": "a", "versions": [7]}]})] {
            assert!(gather(&odd, &odd, |_| Err(String::new()))["items"].is_array());
        }
    }
}
