//! The health endpoints.

use http::{Response, StatusCode};

use super::builder::Parts;
use crate::body::{self, Body};
use crate::query::params::Params;

/// Answers `/healthz`, `/livez`, `/readyz` and the single checks below them.
pub(crate) fn health(parts: &Parts, path: &str, params: &Params) -> Option<Response<Body>> {
    let path = path.strip_prefix('/')?;
    let (endpoint, single) = match path.split_once('/') {
        Some((endpoint, single)) => (endpoint, Some(single)),
        None => (path, None),
    };
    if !matches!(endpoint, "healthz" | "livez" | "readyz") {
        return None;
    }
    let mut results = vec![("ping".to_owned(), Ok(()))];
    let checks = parts.checks.iter().filter(|check| endpoint != "livez" || check.is_vital());
    results.extend(checks.map(|check| (check.name().to_owned(), check.check())));
    if endpoint == "readyz" {
        let stopping =
            if parts.stop.is_cancelled() { Err("the server is stopping".to_owned()) } else { Ok(()) };
        results.push(("shutdown".to_owned(), stopping));
    }
    if let Some(single) = single {
        let (_, result) = results.into_iter().find(|(name, _)| name == single)?;
        return Some(match result {
            Ok(()) => body::text(StatusCode::OK, "ok"),
            Err(why) => {
                body::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n"))
            }
        });
    }
    let excluded = |name: &str| params.first("exclude") == Some(name);
    let failed = results.iter().any(|(name, result)| result.is_err() && !excluded(name));
    if !failed && params.first("verbose").is_none() {
        return Some(body::text(StatusCode::OK, "ok"));
    }
    let mut text = String::new();
    for (name, result) in &results {
        match result {
            _ if excluded(name) => text.push_str(&format!("[+]{name} excluded: ok\n")),
            Ok(()) => text.push_str(&format!("[+]{name} ok\n")),
            Err(why) => text.push_str(&format!("[-]{name} failed: {why}\n")),
        }
    }
    let (status, verdict) =
        if failed { (StatusCode::INTERNAL_SERVER_ERROR, "failed") } else { (StatusCode::OK, "passed") };
    text.push_str(&format!("{endpoint} check {verdict}\n"));
    Some(body::text(status, text))
}
