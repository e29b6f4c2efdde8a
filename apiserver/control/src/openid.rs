//! The token issuer's discovery documents, by which other programs verify service-account tokens (OpenID Connect
//! discovery).

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use tombolo_apicore::accept;
use tombolo_apicore::api::builder::Route;
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::body::{self, Body};
use tombolo_apicore::status::ApiError;

use super::authn::tokens::{ISSUER, TokenKey};

/// Path of the configuration document.
pub(super) const CONFIGURATION: &str = "/.well-known/openid-configuration";

/// Path of the key set.
pub(super) const KEYS: &str = "/openid/v1/jwks";

/// Serves both documents.
pub(super) struct Discovery(pub(super) Arc<TokenKey>);

impl Route for Discovery {
    fn call<'a>(
        &'a self,
        request: Request<Bytes>,
        _: &'a Attributes,
    ) -> BoxFuture<'a, Result<Response<Body>, ApiError>> {
        let answer = match request.uri().path() {
            CONFIGURATION => Ok((configuration(), "application/json")),
            KEYS => Ok((self.0.key_set(), "application/jwk-set+json")),
            _ => Err(ApiError::no_such_path()),
        };
        let response = answer.and_then(|(document, media_type)| {
            accept::check_routed(request.headers(), media_type)?;
            let mut response = Response::new(body::full(Bytes::from(document.to_string())));
            response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(media_type));
            Ok(response)
        });
        Box::pin(std::future::ready(response))
    }
}

fn configuration() -> serde_json::Value {
    serde_json::json!({
        "issuer": ISSUER,
        "jwks_uri": format!("{ISSUER}{KEYS}"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}
