//! The `/version` and health endpoints.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Body};
use crate::query::params::Params;
use crate::version;

use super::builder::Parts;

/// The content of `/version`. Clients read the numbers to decide what the server supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// Major version of the Kubernetes API that is served.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Full version, for example `v1.36.3`; a suffix after `+` may name this server.
    pub git_version: String,
}

impl Default for ServerInfo {
    fn default() -> Self {
        let (major, minor) = version::numbers();
        Self { major, minor, git_version: format!("{}+tombolo", version::kubernetes()) }
    }
}

impl ServerInfo {
    pub(crate) fn document(&self) -> Value {
        let (major, minor) = (self.major.to_string(), self.minor.to_string());
        json!({
            "major": major,
            "minor": minor,
            "emulationMajor": major,
            "emulationMinor": minor,
            "minCompatibilityMajor": major,
            "minCompatibilityMinor": self.minor.saturating_sub(1).to_string(),
            "gitVersion": self.git_version,
            "gitCommit": "",
            "gitTreeState": "",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "",
            "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, go_arch()),
        })
    }
}

/// The machine architecture in Go's naming, which clients expect.
fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

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
