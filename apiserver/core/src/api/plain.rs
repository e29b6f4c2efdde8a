//! Paths that are not resources: health, discovery, OpenAPI, `/version`. Also the answers for unknown paths.

use bytes::Bytes;
use http::{Method, Response, StatusCode, Uri};
use hyper::body::Body as HttpBody;

use super::handler::{HandlerResult, accept, header, no_such_page};
use super::{Admitted, ApiServer, health, openapi};
use crate::accept::{Accepted, Form, Kind};
use crate::body::{self, Body};
use crate::discovery;
use crate::gofmt;
use crate::kinds::KindInfo;
use crate::query::path::ResourcePath;
use crate::registry::Catalog;
use crate::status::ApiError;
use crate::value::to_bytes;

impl ApiServer {
    /// Answers paths that are not resources.
    pub(super) async fn plain<B>(
        &self,
        admitted: Admitted,
        request_body: B,
        catalog: &Catalog,
    ) -> HandlerResult
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::fmt::Display + Send,
    {
        if let Some(route) = self.routed(&admitted) {
            return self.route(route, admitted, request_body).await;
        }
        let path = admitted.query.path.as_str();
        if let Some(response) = health::health(&self.parts, path, &admitted.query.params) {
            return Ok(response);
        }
        if let Some(answer) = openapi::answer(&admitted, catalog, path) {
            return answer;
        }
        let path = path.trim_end_matches('/');
        let document = match path {
            "/version" => Some(to_bytes(&self.parts.info.document())),
            "" => Some(catalog.documents.paths()),
            _ => catalog.documents.get(path).cloned(),
        };
        let Some(document) = document else {
            return nobodys(catalog, path);
        };
        if admitted.head.method != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        if matches!(path, "" | "/version") {
            // These documents have one form, whatever the client accepts.
            let accepted = Accepted { pretty: true, ..Accepted::default() };
            return Ok(body::document(StatusCode::OK, document, &accepted));
        }
        let root = matches!(path, "/api" | "/apis");
        let accepted = accept(&admitted, if root { Kind::DiscoveryRoot } else { Kind::Document })?;
        if accepted.form == Form::Discovery {
            return Ok(aggregated(&admitted, catalog, path));
        }
        let document =
            if path == "/api" { discovery::with_address(&document, &authority(&admitted)) } else { document };
        Ok(body::document(StatusCode::OK, document, &accepted))
    }
}

/// The answer for a resource that is not served. The handler of custom resources comes after the built-in groups, and a
/// path that it does not find gets a text page.
pub(super) fn missing(catalog: &Catalog, path: &ResourcePath, verb: &str, error: ApiError) -> HandlerResult {
    match (catalog.find(path), &path.name) {
        (Some(kind), _) if is_elsewhere(kind, path, verb) => Ok(no_such_page()),
        (Some(kind), Some(name)) if kind.custom && path.subresource.is_some() => {
            Err(ApiError::not_found(&path.group, &path.resource, name))
        }
        (Some(_), _) => Err(error),
        (None, _) if is_builtin(catalog, &path.group) => Err(error),
        (None, _) => Ok(no_such_page()),
    }
}

/// Whether a path names a custom kind but cannot name its objects, because the scope differs.
pub(super) fn is_elsewhere(kind: &KindInfo, path: &ResourcePath, verb: &str) -> bool {
    let across_all = matches!(verb, "list" | "watch");
    kind.custom && kind.namespaced != path.one_namespace().is_some() && !(kind.namespaced && across_all)
}

/// The answer for a path that is not a resource: a `Status` for an unknown version of a built-in group, otherwise a
/// text page.
fn nobodys(catalog: &Catalog, path: &str) -> HandlerResult {
    let group = match path.trim_start_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["api", _] => Some(""),
        ["apis", group, _] => Some(*group),
        _ => None,
    };
    match group {
        Some(group) if is_builtin(catalog, group) => Err(ApiError::no_such_path()),
        _ => Ok(no_such_page()),
    }
}

fn is_builtin(catalog: &Catalog, group: &str) -> bool {
    catalog.kinds.iter().any(|kind| !kind.custom && *kind.resource.group == *group)
}

/// The answer for a path that ends after a verb, as kube-apiserver writes it.
pub(super) fn incomplete(uri: &Uri) -> Response<Body> {
    let asked = uri.path_and_query().map_or("/", |asked| asked.as_str());
    let safe = asked.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let why = format!("unable to determine kind and namespace from url, {safe}");
    let text =
        format!("Internal Server Error: {}: failed to create RequestInfo: {why}\n", gofmt::quoted(&safe));
    body::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// The host name under which the client reached this server; empty when the request does not say.
fn authority(admitted: &Admitted) -> String {
    let named = admitted.head.uri.authority().map(ToString::to_string);
    named.or_else(|| header(admitted, "host")).unwrap_or_default()
}

fn aggregated(admitted: &Admitted, catalog: &Catalog, path: &str) -> Response<Body> {
    let Some(document) = catalog.documents.aggregated(path) else {
        return no_such_page();
    };
    let unchanged = header(admitted, "if-none-match").is_some_and(|known| known == document.etag);
    body::discovery(&document.etag, if unchanged { None } else { Some(document.body.clone()) })
}
