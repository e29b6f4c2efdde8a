//! How long a request may take, following kube-apiserver's deadline filter.

use std::time::Duration;

use http::StatusCode;

use crate::query::Query;
use crate::query::path::Target;
use crate::status::{ApiError, Details};

/// Time limit of a request that is neither a watch nor a stream (kube-apiserver's `--request-timeout`).
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);

/// Subresources whose answers continue for as long as the client reads.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// The time limit of a request; `None` for long-running ones. The client may ask for less than the maximum with
/// `timeout`, a duration in Go syntax.
///
/// # Errors
/// 400 when the parameter is not a duration.
pub(super) fn of(query: &Query) -> Result<Option<Duration>, ApiError> {
    if is_long_running(query) {
        return Ok(None);
    }
    let Some(text) = query.params.text("timeout") else { return Ok(Some(REQUEST_TIME_MAX)) };
    let wanted = parse(text).map_err(|why| {
        ApiError::bad_request(format!("invalid timeout specified in the request URL - time: {why}"))
    })?;
    Ok(Some(if wanted.is_zero() { REQUEST_TIME_MAX } else { wanted.min(REQUEST_TIME_MAX) }))
}

/// 504 for a request that exceeds its time limit.
pub(super) fn passed() -> ApiError {
    let message = "Timeout: request did not complete within the allotted timeout";
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).with_details(Details::default())
}

/// Whether a subresource is a connection to something outside the store.
pub(super) fn is_stream(subresource: &str) -> bool {
    STREAMS.contains(&subresource)
}

/// Whether the answer continues for as long as the client reads.
pub(super) fn is_long_running(query: &Query) -> bool {
    let subresource = match &query.target {
        Target::Resource(path) => path.subresource.as_deref(),
        _ => None,
    };
    query.verb == "watch" || subresource.is_some_and(is_stream)
}

/// Parses a duration as Go's `time.ParseDuration` does: numbers with units, for example `1m30s` or `-1.5h`. Negative
/// durations count as zero.
fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("invalid duration {text:?}");
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().map_err(|_| invalid())?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        if end == 0 {
            return Err(format!("missing unit in duration {text:?}"));
        }
        seconds += number * unit(&rest[..end], text)?;
        rest = &rest[end..];
    }
    // Go counts nanoseconds in 63 bits.
    if seconds > i64::MAX as f64 / 1e9 {
        return Err(invalid());
    }
    Ok(if negative { Duration::ZERO } else { Duration::from_secs_f64(seconds) })
}

/// Seconds of one unit.
fn unit(name: &str, text: &str) -> Result<f64, String> {
    Ok(match name {
        "ns" => 1e-9,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit {name:?} in duration {text:?}")),
    })
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn time_of(method: &Method, path: &str, query: &str) -> Result<Option<Duration>, String> {
        of(&Query::parse(method, path, query)).map_err(|error| error.message)
    }

    #[test]
    fn clients_may_shorten_the_deadline() {
        let pods = "/api/v1/namespaces/default/pods";
        let seconds =
            |query: &str| time_of(&Method::GET, pods, query).map(|time| time.map(|t| t.as_secs_f64()));
        for (text, wanted) in [
            ("", 60.0),
            ("0", 60.0),
            ("0s", 60.0),
            ("-5s", 60.0),
            ("34s", 34.0),
            ("0.5m1s", 31.0),
            ("3h", 60.0),
            ("15ms", 0.015),
        ] {
            assert_eq!(seconds(&format!("timeout={text}")), Ok(Some(wanted)), "{text}");
        }
        let refused = |text: &str| seconds(&format!("timeout={text}")).unwrap_err();
        let start = "invalid timeout specified in the request URL - time: ";
        assert_eq!(refused("invalid"), format!("{start}invalid duration \"invalid\""));
        assert_eq!(refused("5"), format!("{start}missing unit in duration \"5\""));
        assert_eq!(refused("5q"), format!("{start}unknown unit \"q\" in duration \"5q\""));
        assert_eq!(refused("."), format!("{start}invalid duration \".\""));
    }

    #[test]
    fn watches_and_streams_have_no_deadline() {
        let pod = "/api/v1/namespaces/default/pods/a";
        for (method, path, query) in [
            (Method::GET, "/api/v1/pods".to_owned(), "watch=1&timeout=nothing"),
            (Method::GET, format!("{pod}/log"), ""),
            (Method::POST, format!("{pod}/exec"), ""),
        ] {
            assert_eq!(time_of(&method, &path, query), Ok(None), "{path}");
        }
        assert!(time_of(&Method::GET, "/version", "").unwrap().is_some());
    }
}
