//! The `/version` endpoint.

use serde_json::{Value, json};

use crate::version;

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
