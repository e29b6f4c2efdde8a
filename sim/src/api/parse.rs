//! Reads requests as kube-apiserver does: what a path and its query ask for.

use http::Method;

use super::kinds::KindKey;
use super::selectors;
use super::status::ApiStatus;

/// What a path of the API addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PathTarget {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    /// Empty for cluster scope and for all namespaces.
    pub(super) namespace: String,
    /// Empty for a collection.
    pub(super) name: String,
    pub(super) subresource: String,
    /// Whether the path itself asks for a watch, in the deprecated form `/api/v1/watch/`.
    pub(super) watches: bool,
}

impl PathTarget {
    pub(super) fn key(&self) -> KindKey {
        KindKey::new(&self.group, &self.resource)
    }
}

/// Where a request leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestRoute {
    Resource(PathTarget),
    /// A document, such as discovery.
    Document(String),
}

/// Reads a path. It is decoded as a whole before it is split (docs/reference/kubernetes.md#names-in-paths).
pub(super) fn route(path: &str) -> Result<RequestRoute, ApiStatus> {
    let decoded = decoded(path);
    let parts: Vec<&str> = decoded.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => (("", *version), rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => ((*group, *version), rest),
        _ => return Ok(RequestRoute::Document(decoded)),
    };
    let (watches, rest) = match rest {
        ["watch", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (namespace, rest) = match rest {
        // The namespace itself and its subresources are objects of the cluster.
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let (resource, name, subresource) = match rest {
        [resource] => (*resource, "", String::new()),
        [resource, name] => (*resource, *name, String::new()),
        [resource, name, below @ ..] => (*resource, *name, below.join("/")),
        [] => return Ok(RequestRoute::Document(decoded)),
    };
    if name == "." || name == ".." || name.contains('%') {
        return Err(ApiStatus::bad_request(&format!("Name parameter invalid: {name:?}")));
    }
    Ok(RequestRoute::Resource(PathTarget {
        group: group.0.to_owned(),
        version: group.1.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource,
        watches,
    }))
}

/// A text without its percent-encoding. A `%` without two hexadecimal digits after it stands for itself.
fn decoded(text: &str) -> String {
    let (bytes, mut plain, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let escape = (*byte == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(escaped) => {
                plain.push(escaped);
                at += 3;
            }
            None => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn form_decoded(text: &str) -> String {
    decoded(&text.replace('+', " "))
}

/// The parameters of a query; the first of several counts.
#[derive(Debug, Clone, Default)]
pub(super) struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    /// Reads a query as Go's `net/url` does, which ignores a parameter with a `;`.
    pub(super) fn parse(query: &str) -> Self {
        let parts = query.split('&').filter(|part| !part.contains(';') && !part.is_empty());
        let pairs = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
        Self(pairs.map(|(key, value)| (form_decoded(key), form_decoded(value))).collect())
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// A parameter that is false as `0` or `false`, or when it is missing, and true otherwise.
    pub(super) fn flag(&self, name: &str) -> bool {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.is_some_and(|(_, value)| value != "0" && value != "false")
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }
}

/// The verb of a request for a resource, as authorizers see it.
pub(super) fn verb(method: &Method, target: &PathTarget, params: &QueryParams) -> Option<&'static str> {
    let collection = target.name.is_empty();
    Some(match *method {
        Method::GET | Method::HEAD if target.watches => "watch",
        Method::GET | Method::HEAD if collection && params.flag("watch") => "watch",
        Method::GET | Method::HEAD if collection => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if collection => "deletecollection",
        Method::DELETE => "delete",
        _ => return None,
    })
}

/// The name that a right is asked for: that of the path, or the one that the field selector of a collection fixes.
pub(super) fn name_for_rights(target: &PathTarget, params: &QueryParams) -> String {
    if !target.name.is_empty() {
        return target.name.clone();
    }
    selectors::fixed_field(params.text("fieldSelector"), "metadata.name").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> PathTarget {
        match route(path).expect("a path") {
            RequestRoute::Resource(target) => target,
            RequestRoute::Document(document) => panic!("{document} is a document"),
        }
    }

    #[test]
    fn paths_are_read_as_an_api_server_reads_them() {
        let pod = target("/api/v1/namespaces/d/pods/p/status");
        assert_eq!(
            (&*pod.namespace, &*pod.resource, &*pod.name, &*pod.subresource),
            ("d", "pods", "p", "status")
        );
        let namespace = target("/api/v1/namespaces/d");
        assert_eq!((&*namespace.resource, &*namespace.name, &*namespace.namespace), ("namespaces", "d", ""));
        let lease = target("/apis/coordination.k8s.io/v1/namespaces/k/leases/%61");
        assert_eq!((&*lease.group, &*lease.name), ("coordination.k8s.io", "a"));
        assert_eq!(target("/api/v1/namespaces/d/secrets/a%2Fb").subresource, "b");
        assert!(target("/api/v1/watch/pods").watches);
        for path in ["/api/v1/nodes/%2E%2E", "/api/v1/nodes/a%25b"] {
            assert_eq!(route(path).expect_err(path).code, 400);
        }
        for path in ["/api", "/api/v1", "/apis/apps/v1", "/version", "/openapi/v3/apis/apps/v1"] {
            assert!(matches!(route(path), Ok(RequestRoute::Document(_))), "{path}");
        }
    }

    #[test]
    fn verbs_and_names_are_those_that_rights_are_asked_for() {
        let pods = target("/api/v1/pods");
        for (query, expected) in [
            ("", "list"),
            ("watch=true", "watch"),
            ("watch", "watch"),
            ("watch=0", "list"),
            ("watch=false", "list"),
            ("fieldSelector=watch%3D1", "list"),
        ] {
            assert_eq!(verb(&Method::GET, &pods, &QueryParams::parse(query)), Some(expected), "{query}");
        }
        assert_eq!(verb(&Method::DELETE, &pods, &QueryParams::default()), Some("deletecollection"));
        assert_eq!(verb(&Method::TRACE, &pods, &QueryParams::default()), None);
        let named = QueryParams::parse("fieldSelector=metadata.name%3Dtombolo-epoch");
        assert_eq!(name_for_rights(&pods, &named), "tombolo-epoch");
        let hidden = QueryParams::parse("fieldSelector=metadata.name%3Da;&limit=1");
        assert_eq!((hidden.text("fieldSelector"), hidden.number("limit")), ("", Some(1)));
    }
}
