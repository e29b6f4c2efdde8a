//! The hub as an edge sees it: join endpoints, a certificate, then both transports with it.

use std::net::IpAddr;
use std::time::Duration;

use tombolo_cloud::Listeners;
use tombolo_cloud::bootstrap::{Inspection, NewToken};
use tombolo_edge::JoinError;
use tombolo_edge::identity::{EnrollOptions, Identity, enroll, show};
use tombolo_link::ConnectError;
use tombolo_link::client::{Choice, Target, connect, connect_documents};
use tombolo_proto::NodeId;

use super::api::Reached;
use super::{DoctorOptions, Report};
use crate::token;
use crate::transport::TransportOption;

/// Advice when TLS fails.
const ADVERTISE: &str =
    "cloudcore's setting advertise must contain this address, and no proxy may terminate TLS";

/// Node name under which the doctor joins; always the same, so that nothing accumulates.
const NAME: &str = "tombolo-doctor";

/// Lifetime of its token.
const TOKEN_LIFE: Duration = Duration::from_secs(300);

/// How long the hub has to accept the goodbye.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Joins in memory and connects. `listeners` are those of cloudcore's settings, if these are known.
pub(super) async fn examine(
    options: &DoctorOptions,
    api: &Reached,
    kept: &Inspection,
    listeners: Option<&Listeners>,
    report: &mut Report,
) {
    let Some(host) = host(options, kept) else {
        return report.warn("hub", "not checked: its address is unknown", "Pass --cloud HOST");
    };
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let join = format!("{bracketed}:{}", options.join_port);
    if !shows_our_authority(&join, kept, report).await {
        return;
    }
    let Some(identity) = joined(&join, api, report).await else { return };
    let choices = [
        (TransportOption::Websocket, Choice::WebSocket, "WebSocket", options.websocket_port, "TCP"),
        (TransportOption::Quic, Choice::Quic, "QUIC", options.quic_port, "UDP"),
    ];
    for (option, choice, name, port, protocol) in choices {
        match options.transport {
            Some(only) if only != option => continue,
            None if is_off(option, listeners) => {
                report.ok(name, "is off in the settings of cloudcore");
                continue;
            }
            _ => {}
        }
        let target = Target {
            host: host.clone(),
            websocket_port: options.websocket_port,
            quic_port: options.quic_port,
            choice,
        };
        let outcome = try_connection(target, &identity).await;
        report_connection(&format!("{name} at {bracketed}:{port}"), protocol, outcome, report);
    }
}

/// Whether the settings of cloudcore turn a transport off.
fn is_off(transport: TransportOption, listeners: Option<&Listeners>) -> bool {
    listeners.is_some_and(|listeners| match transport {
        TransportOption::Websocket => listeners.websocket.is_none(),
        TransportOption::Quic => listeners.quic.is_none(),
    })
}

/// The address that edges use: the given one, or the first name in the certificate that is not local to this machine.
fn host(options: &DoctorOptions, kept: &Inspection) -> Option<String> {
    if options.cloud.is_some() {
        return options.cloud.clone();
    }
    let names = &kept.server.as_ref().ok()?.names;
    let outside = |name: &&String| {
        *name != "localhost" && !name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    names.iter().find(outside).or_else(|| names.first()).cloned()
}

/// Whether the join endpoints present the CA that the cluster holds.
async fn shows_our_authority(join: &str, kept: &Inspection, report: &mut Report) -> bool {
    let check = format!("join endpoints at {join}");
    let shown = match show(join).await {
        Ok(shown) => shown,
        Err(error) => {
            report.fail(
                check,
                error.to_string(),
                "Is cloudcore running, and do firewalls allow TCP to this port?",
            );
            return false;
        }
    };
    match &kept.authority {
        Err(_) => {
            report.warn(check, "answer, but their CA cannot be compared with the cluster's CA", "");
            false
        }
        Ok(facts) if facts.hash() == shown.hash => {
            report.ok(check, format!("present the cluster's CA, {}", &shown.hash[..12]));
            true
        }
        Ok(facts) => {
            let text =
                format!("present CA {}, but secret casecret has {}", &shown.hash[..12], &facts.hash()[..12]);
            report.fail(check, text, "Another cloudcore answers here, or cloudcore must be restarted");
            false
        }
    }
}

/// Gets a certificate for a node that does not exist; it is kept in memory only.
async fn joined(join: &str, api: &Reached, report: &mut Report) -> Option<Identity> {
    let check = format!("joining at {join}");
    let node = NodeId::parse(NAME).ok()?;
    // An earlier run of the doctor may have used the name.
    let token = NewToken { names: vec![node.clone()], uses: 1, life: TOKEN_LIFE, replace: true };
    let token = match token::make(api.client.clone(), &api.namespace, &token).await {
        Ok(token) => token,
        Err(error) => {
            let text = format!("not checked: cannot create a join token: {error:#}");
            report.warn(check, text, "Run as an administrator");
            return None;
        }
    };
    let options = EnrollOptions { endpoint: join.to_owned(), node, token };
    match enroll(&options).await {
        Ok(identity) => {
            report.ok(check, "the token is accepted and a certificate issued");
            Some(identity)
        }
        Err(error) => {
            let advice = match error {
                JoinError::Connect { .. } => ADVERTISE,
                _ => "See the log of cloudcore",
            };
            report.fail(check, error.to_string(), advice);
            None
        }
    }
}

/// Connects with a node's certificate, and disconnects.
pub(super) async fn try_connection(target: Target, identity: &Identity) -> Result<(), ConnectError> {
    connect(target, identity.client_tls()?).await?.close(CLOSE_LIMIT).await;
    Ok(())
}

/// The same in dialect `kubeedge`.
pub(super) async fn try_kubeedge_connection(
    target: &Target,
    node: &NodeId,
    identity: &Identity,
) -> Result<(), ConnectError> {
    connect_documents(target, node, &identity.client_tls()?).await?.close(CLOSE_LIMIT).await;
    Ok(())
}

/// Reports whether a connection was made.
pub(super) fn report_connection(
    check: &str,
    protocol: &str,
    outcome: Result<(), ConnectError>,
    report: &mut Report,
) {
    match outcome {
        Ok(()) => report.ok(check, "both certificates are accepted"),
        Err(error) => report.fail(check, error.to_string(), advice(&error, protocol)),
    }
}

fn advice(error: &ConnectError, protocol: &str) -> String {
    match error {
        ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } => {
            format!("Is cloudcore running, and do firewalls allow {protocol} to this port?")
        }
        ConnectError::Tls { .. } => ADVERTISE.to_owned(),
        ConnectError::Upgrade { .. } | ConnectError::Protocol { .. } => {
            "A program other than cloudcore answers at this port".to_owned()
        }
        _ => "See the log of cloudcore".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tombolo_cloud::Config;

    use super::*;

    #[test]
    fn a_transport_that_the_settings_turn_off_is_known() {
        let off = |text: &str| {
            let listeners = Config::parse(text).expect("settings").listen;
            [TransportOption::Websocket, TransportOption::Quic]
                .map(|transport| is_off(transport, Some(&listeners)))
        };
        assert_eq!(off(""), [false, false]);
        assert_eq!(off("listen: {quic: null}"), [false, true]);
        assert_eq!(off("listen: {websocket: null}"), [true, false]);
        assert_eq!(off("modules: {cloudHub: {enable: true}}"), [false, true], "KubeEdge's default");
        assert_eq!(off("modules: {cloudHub: {quic: {enable: true}}}"), [false, false]);
        assert_eq!(off("modules: {cloudHub: {quic: null}}"), [false, true]);
        assert!(!is_off(TransportOption::Quic, None), "without settings, both are checked");
    }
}
