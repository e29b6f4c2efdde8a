//! What the handlers of requests share.

use http::{Response, StatusCode};

use super::Admitted;
use crate::accept::{Accepted, Kind};
use crate::body::{self, Body};
use crate::status::ApiError;

/// The answer to an unknown path, as kube-apiserver writes it.
const NO_SUCH_PAGE: &str = "404 page not found\n";

pub(super) type HandlerResult = Result<Response<Body>, ApiError>;

pub(super) fn accept(admitted: &Admitted, kind: Kind) -> Result<Accepted, ApiError> {
    Accepted::negotiate(&admitted.head.headers, &admitted.query.params, kind)
}

pub(super) fn header(admitted: &Admitted, name: &str) -> Option<String> {
    admitted.head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

pub(super) fn no_such_page() -> Response<Body> {
    body::text(StatusCode::NOT_FOUND, NO_SUCH_PAGE)
}
