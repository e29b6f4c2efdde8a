//! Every combination of the parameters of lists and watches.

use std::time::Duration;

use serde_json::json;
use tombolo_testkit::wait_for;

use crate::line::{Answer, Line};
use crate::target::Target;

use super::JSON;

const BASE: &str = "/api/v1/namespaces/kube-public/configmaps";

/// Concurrent watches: the real server, too, must begin each within its timeout.
const AT_ONCE: usize = 16;

/// `{rv}` and `{token}` are specific to each server.
pub(crate) fn paths() -> Vec<String> {
    let mut paths = Vec::new();
    let of = |name: &'static str, values: &'static [&'static str]| {
        std::iter::once(String::new()).chain(values.iter().map(move |value| format!("&{name}={value}")))
    };
    for revision in of("resourceVersion", &["0", "{rv}"]) {
        for mode in of("resourceVersionMatch", &["Exact", "NotOlderThan", "Foo"]) {
            for initial in of("sendInitialEvents", &["true", "false"]) {
                let shared = format!("{revision}{mode}{initial}");
                for bookmarks in of("allowWatchBookmarks", &["true"]) {
                    paths.push(format!(
                        "{BASE}?watch=1&timeoutSeconds=4{shared}{bookmarks}&labelSelector=combined"
                    ));
                }
                for limit in of("limit", &["1"]) {
                    for token in of("continue", &["{token}"]) {
                        paths.push(format!("{BASE}?labelSelector=combined{shared}{limit}{token}"));
                    }
                }
            }
        }
    }
    paths
}

/// One server's answers to all combinations. They change nothing, so they are sent concurrently.
pub(crate) async fn ask(target: &Target) -> Vec<Answer> {
    for name in ["a", "b", "c"] {
        let body = json!({"metadata": {"name": name, "labels": {"combined": ""}}}).to_string();
        let path = format!("{BASE}?fieldManager=m");
        assert_eq!(target.ask(&Line::new(&("POST", &path, JSON, &body))).await.code, 201);
    }
    // An edge answers lists from a copy that may lag behind the answer to a write.
    let all = Line::get(&format!("{BASE}?labelSelector=combined"));
    wait_for("the written objects to be listed", Duration::from_secs(20), || async {
        let list = target.raw(&all).await.body;
        let count = list["items"].as_array().map_or(0, Vec::len);
        if count == 3 { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
    let first = target.raw(&Line::get(&format!("{BASE}?limit=1&labelSelector=combined"))).await.body;
    let text = |name: &str| first["metadata"][name].as_str().unwrap().to_owned();
    let (revision, token) = (text("resourceVersion"), text("continue"));
    let lines = paths()
        .into_iter()
        .map(|path| Line::get(&path.replace("{rv}", &revision).replace("{token}", &token)));
    target.ask_all(lines, AT_ONCE).await
}
