//! Serves OpenAPI documents.

use http::{Response, StatusCode};

use super::Admitted;
use super::handler::{HandlerResult, accept, header, no_such_page};
use crate::accept::{self, Kind};
use crate::body::{self, Body};
use crate::openapi::v2;
use crate::registry::Catalog;

/// Answers paths under `/openapi`; `None` when nothing is served there.
pub(super) fn answer(admitted: &Admitted, catalog: &Catalog, path: &str) -> Option<HandlerResult> {
    match path.strip_prefix("/openapi/")? {
        "v2" => Some(Ok(swagger(admitted, catalog))),
        rest if rest == "v3" || rest.starts_with("v3/") => Some(by_version(admitted, catalog, path)),
        _ => None,
    }
}

/// The OpenAPI 2.0 document of all versions. It has its own content negotiation, because its protobuf form has its own
/// media type.
fn swagger(admitted: &Admitted, catalog: &Catalog) -> Response<Body> {
    let headers = &admitted.head.headers;
    let offered = v2::OFFERED.iter().map(|(media, _)| *media);
    let Some(chosen) = accept::preferred(headers, &offered) else {
        return body::text(StatusCode::NOT_ACCEPTABLE, "");
    };
    let document = v2::Document::of(&catalog.kinds);
    let etag = format!("\"{}\"", document.hash());
    let mut response = if header(admitted, "if-none-match").as_ref() == Some(&etag) {
        body::text(StatusCode::NOT_MODIFIED, "")
    } else {
        let gzip = accept::takes_gzip(headers);
        match v2::OFFERED[chosen] {
            (_, true) => body::binary(document.protobuf(), v2::PROTOBUF, gzip),
            (media, false) => body::binary(document.json(), media, gzip),
        }
    };
    body::cacheable(&mut response, &etag, false);
    body::varies(&mut response, "Accept");
    response
}

/// The index of OpenAPI 3.0 or one of its documents, or 304 when the client already has it.
fn by_version(admitted: &Admitted, catalog: &Catalog, path: &str) -> HandlerResult {
    let accepted = accept(admitted, Kind::Document)?;
    let Some(document) = catalog.openapi(path) else { return Ok(no_such_page()) };
    let etag = document.hash().map(|hash| format!("\"{hash}\""));
    if etag.is_some() && header(admitted, "if-none-match") == etag {
        return Ok(body::text(StatusCode::NOT_MODIFIED, ""));
    }
    let asked = admitted.query.params.text("hash");
    if let (Some(current), true) = (document.hash(), asked.is_some() && asked != document.hash()) {
        // The requested hash belongs to other content for good: redirect to the current hash.
        let mut response = body::moved(&format!("{path}?hash={current}"));
        body::cacheable(&mut response, &format!("\"{current}\""), false);
        return Ok(response);
    }
    let mut response = body::document(StatusCode::OK, document.write(), &accepted);
    if let Some(etag) = etag {
        // A path with a hash always names the same content.
        body::cacheable(&mut response, &etag, asked.is_some());
    }
    Ok(response)
}
