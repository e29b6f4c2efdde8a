//! Detects calls whose answers have no end of their own. A reply cannot carry them.
//!
//! All calls are classified by one parser of paths and parameters, so a call is judged as the API server reads it,
//! however it is spelled. A call that the API server would read differently is rejected, because the right to it is
//! checked by what was read here.

use tombolo_apicore::query::Query;
use tombolo_apicore::query::params::PARAMS_MAX;
use tombolo_apicore::query::path::Target;

use super::api_call::{ApiCall, CallError};

/// Subresources that are connections to a node or to a workload on it.
const CONNECTIONS: [&str; 4] = ["attach", "exec", "portforward", "proxy"];

/// Parses a call as the API server does.
///
/// # Errors
/// [`CallError::Endless`], and [`CallError::Invalid`] for a text that can be read in two ways or has more parameters
/// than are read here, because the API server reads all of them.
pub(super) fn read(call: &ApiCall) -> Result<Query, CallError> {
    let (path, query) = call.path_and_query.split_once('?').unwrap_or((&call.path_and_query, ""));
    if is_ambiguous(path, query) {
        let why = "a path must not contain '#', and a query must not contain '#', ';' or a '%' without two \
                   hexadecimal digits after it";
        return Err(CallError::Invalid(why.to_owned()));
    }
    if query.split('&').count() > PARAMS_MAX {
        return Err(CallError::Invalid(format!("a query has at most {PARAMS_MAX} parameters")));
    }
    let asked = Query::parse(&call.method, path, query);
    if is_endless(&asked) { Err(CallError::Endless) } else { Ok(asked) }
}

/// Whether the API server would receive less than this text, such as everything before a `#`, or would ignore a
/// parameter that is read here, as Go's `net/url` does with one that contains a `;` or an invalid escape.
fn is_ambiguous(path: &str, query: &str) -> bool {
    let is_broken = |rest: &str| !rest.get(..2).is_some_and(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
    path.contains('#') || query.contains(['#', ';']) || query.split('%').skip(1).any(is_broken)
}

fn is_endless(asked: &Query) -> bool {
    let Target::Resource(path) = &asked.target else { return false };
    let subresource = path.subresource.as_deref().unwrap_or_default();
    let connects = path.group.is_empty() && matches!(&*path.resource, "nodes" | "pods" | "services");
    asked.verb == "watch"
        || connects && CONNECTIONS.contains(&subresource)
        || subresource == "log" && asked.params.flag("follow")
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn judged(method: &Method, path: &str) -> Result<(), CallError> {
        read(&ApiCall { method: method.clone(), ..ApiCall::get(path) }).map(drop)
    }

    #[test]
    fn endless_call_is_recognised_however_it_is_spelled() {
        for path in [
            "/api/v1/pods?watch=true",
            "/api/v1/pods?watch=1",
            "/api/v1/pods?watch",
            "/api/v1/pods?limit=1&watch=yes",
            "/api/v1/pods?w%61tch=1",
            "/api/v1/pods?%77atch=%31",
            "/api/v1/pods/?watch=1",
            "/api/v1/namespaces/d/pods?fieldSelector=metadata.name%3Da&watch=1",
            "/apis/apps/v1/deployments?watch=1&watch=0",
            "/api/v1/watch/pods",
            "/api/v1/w%61tch/pods",
            "/api/v1/watch/namespaces/d/pods/p",
            "/apis/apps/v1/watch/deployments?watch=false",
            "/api/v1/namespaces/d/pods/p/log?follow=1",
            "/api/v1/namespaces/d/pods/p/log?container=c&f%6Fllow=true",
            "/api/v1/namespaces/d/pods/p/exec?command=ls",
            "/api/v1/namespaces/d/pods/p/attach",
            "/api/v1/namespaces/d/pods/p/portforward",
            "/api/v1/namespaces/d/pods/p/proxy",
            "/api/v1/namespaces/d/services/s:80/proxy/a/b",
            "/api/v1/nodes/n/proxy/logs/",
        ] {
            let error = judged(&Method::GET, path).expect_err(path);
            assert!(matches!(error, CallError::Endless), "{path}: {error}");
        }
        for path in ["/api/v1/namespaces/d/pods/p/exec", "/api/v1/nodes/n/proxy", "/api/v1/watch/pods"] {
            assert!(matches!(judged(&Method::POST, path), Err(CallError::Endless)), "POST {path}");
        }
    }

    #[test]
    fn ending_calls_are_not_endless() {
        for path in [
            "/api/v1/pods?watch=false",
            "/api/v1/pods?watch=0&watch=1",
            "/api/v1/pods?fieldSelector=watch%3D1",
            "/api/v1/namespaces/d/pods/p/log?tailLines=5",
            "/api/v1/namespaces/d/pods/p/log?follow=false",
            "/api/v1/namespaces/d/configmaps/exec",
            "/api/v1/namespaces/watch/pods",
            "/apis/example.com/v1/things/t/proxy",
            "/version?watch=1",
        ] {
            judged(&Method::GET, path).expect(path);
        }
        judged(&Method::POST, "/api/v1/namespaces/d/pods?fieldManager=watch").expect("a write");
    }

    #[test]
    fn ambiguous_calls_are_invalid() {
        let selector = "/api/v1/namespaces/d/secrets?fieldSelector=metadata.name%3Da";
        for path in [
            format!("{selector},metadata.namespace%21%3Db;"),
            format!("{selector},metadata.namespace%21%3D%zz"),
            format!("{selector}%"),
            format!("{selector}%2"),
            format!("{selector}%2\u{e4}"),
            selector.replace('?', "?x=1#&"),
            selector.replace('?', "#/a?"),
            "/api/v1/nodes#".to_owned(),
        ] {
            let error = judged(&Method::GET, &path).expect_err(&path);
            assert!(matches!(error, CallError::Invalid(_)), "{path}: {error}");
        }
        judged(&Method::GET, selector).expect("a list");
        judged(&Method::GET, &selector.replace("%3Da", "%3da%23%3B%25")).expect("escaped");
    }

    #[test]
    fn calls_with_too_many_parameters_are_invalid() {
        let query = |count: usize| format!("/api/v1/pods?{}watch=1", "a&".repeat(count));
        assert!(matches!(judged(&Method::GET, &query(PARAMS_MAX - 1)), Err(CallError::Endless)));
        assert!(matches!(judged(&Method::GET, &query(PARAMS_MAX)), Err(CallError::Invalid(_))));
    }
}
