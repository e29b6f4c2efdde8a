//! Reads the `cloudcore.yaml` of KubeEdge v1.23 (docs/reference/kubeedge.md#cloudcore-settings) as a configuration of
//! this cloudcore.
//!
//! Every key of KubeEdge is known here. Supported keys are honoured. The others are listed once at start, with the
//! reason why they have no effect. A key that KubeEdge does not know is an error here too.

mod file;
mod ignored;
mod limits;
mod missing;
mod section;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::{
    Config, ConfigError, KubeEdgeSessions, Listeners, advertised, days, invalid, node_limit, silence, typed,
};
use crate::bootstrap::{CertificateFiles, PemPair};
use crate::edgecontroller::UpstreamSettings;
use file::{CloudHub, File};

pub use ignored::IgnoredSetting;
pub use missing::MissingModule;

/// Longest interval between two join tokens, in hours.
const TOKEN_REFRESH_HOURS_MAX: u32 = 8760;

/// The text as a document, if it is a KubeEdge file: it says so, or has a section that only KubeEdge has.
pub(super) fn document(text: &str) -> Option<Value> {
    // Text that is not YAML is not a KubeEdge file either; parsing it as Tombolo's own file reports the error.
    let document: Value = serde_saphyr::from_str(text).ok()?;
    let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
    let says = text("kind") == "CloudCore" || text("apiVersion").starts_with("cloudcore.config.kubeedge.io/");
    let has = ["modules", "kubeAPIConfig", "commonConfig"].iter().any(|key| document.get(key).is_some());
    (says || has).then_some(document)
}

/// The configuration that a file describes. `document` is the same text, needed to see which keys are present.
pub(super) fn read(document: &Value, text: &str) -> Result<Config, ConfigError> {
    let File { kube_api_config, modules, common_config, .. } = typed(text)?;
    let missing = missing::of(&modules);
    let (hub, controller) = (modules.cloud_hub, modules.edge_controller);
    let nodes = node_limit("modules.cloudHub.nodeLimit", hub.node_limit)?;
    let requests = limits::requests(&controller.buffer, &controller.load, hub.node_limit);
    let node_update = Duration::from_secs(controller.node_update_frequency.into());
    Ok(Config {
        listen: listeners(&hub, common_config.monitor_server.bind_address)?,
        advertise: advertise(&hub)?,
        kubeconfig: Some(kube_api_config.kube_config).filter(|path| !path.as_os_str().is_empty()),
        api_server: Some(kube_api_config.master).filter(|address| !address.is_empty()),
        certificates: certificates(&hub),
        node_limit: nodes,
        // KubeEdge edges join with it, and so does every user of keadm.
        shared_token: true,
        token_refresh: token_refresh(hub.token_refresh_duration)?,
        edge_certificate_life: edge_certificate_life(hub.edge_cert_signing_duration)?,
        upstream: UpstreamSettings {
            enabled: controller.enable,
            heartbeat_age_max: node_update,
            bounds: requests,
        },
        watch_events: limits::watch_events(&controller.buffer),
        kubeedge: KubeEdgeSessions {
            silence: silence("modules.cloudHub.keepaliveInterval", hub.keepalive_interval)?,
            ..Config::default().kubeedge
        },
        ignored: ignored::of(document),
        missing,
        ..Config::default()
    })
}

fn listeners(hub: &CloudHub, admin: SocketAddr) -> Result<Listeners, ConfigError> {
    if !hub.enable {
        return Err(invalid(
            "modules.cloudHub.enable",
            "must be true: cloudcore serves no edge without its hub",
        ));
    }
    if !hub.websocket.enable {
        let problem = "must be true: KubeEdge edges cannot connect in another way, because the QUIC listener here \
                       does not speak KubeEdge's protocol. Enable it, and set its port in modules.edgeHub.websocket \
                       of the edges. If there are no KubeEdge edges, write the settings in Tombolo's own format \
                       (docs/operations.md)";
        return Err(invalid("modules.cloudHub.websocket.enable", problem));
    }
    let at = |address, port| SocketAddr::new(address, port);
    Ok(Listeners {
        websocket: hub.websocket.enable.then(|| at(hub.websocket.address.0, hub.websocket.port)),
        quic: hub.quic.enable.then(|| at(hub.quic.address.0, hub.quic.port)),
        join: at(hub.https.address.0, hub.https.port),
        admin: Some(admin),
    })
}

/// Names and addresses for the certificate. KubeEdge prints one empty name where there is none.
fn advertise(hub: &CloudHub) -> Result<Vec<String>, ConfigError> {
    let names = hub.advertise_address.iter().chain(&hub.dns_names).filter(|name| !name.is_empty());
    let names: Vec<String> = names.cloned().collect();
    advertised("modules.cloudHub.advertiseAddress, modules.cloudHub.dnsNames", &names)?;
    Ok(names)
}

fn certificates(hub: &CloudHub) -> CertificateFiles {
    let pair = |certificate: &PathBuf, key: &PathBuf| {
        let named = !certificate.as_os_str().is_empty() || !key.as_os_str().is_empty();
        named.then(|| PemPair { certificate: certificate.clone(), key: key.clone() })
    };
    CertificateFiles {
        authority: pair(&hub.tls_ca_file, &hub.tls_ca_key_file),
        server: pair(&hub.tls_cert_file, &hub.tls_private_key_file),
    }
}

fn token_refresh(hours: u32) -> Result<Duration, ConfigError> {
    match (1..=TOKEN_REFRESH_HOURS_MAX).contains(&hours) {
        true => Ok(Duration::from_secs(u64::from(hours) * 3600)),
        false => Err(invalid("modules.cloudHub.tokenRefreshDuration", "must be between 1 and 8760 hours")),
    }
}

fn edge_certificate_life(count: u32) -> Result<Duration, ConfigError> {
    match (1..=super::EDGE_CERTIFICATE_DAYS_MAX).contains(&count) {
        true => Ok(days(count)),
        false => Err(invalid("modules.cloudHub.edgeCertSigningDuration", "must be between 1 and 36500 days")),
    }
}
