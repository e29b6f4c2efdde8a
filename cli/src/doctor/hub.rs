//! The hub as an edge sees it: join endpoints, a certificate, then both transports with it.

use std::net::IpAddr;
use std::time::Duration;

use tombolo_cloud::bootstrap::{Inspection, NewToken};
use tombolo_edge::JoinError;
use tombolo_edge::identity::{EnrollOptions, Identity, enroll, show};
use tombolo_link::ConnectError;
use tombolo_link::client::{Choice, Target, connect};
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

/// Joins in memory and connects.
pub(super) async fn examine(options: &DoctorOptions, api: &Reached, kept: &Inspection, report: &mut Report) {
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
        if options.transport.is_some_and(|only| only != option) {
            continue;
        }
        let target = Target {
            host: host.clone(),
            websocket_port: options.websocket_port,
            quic_port: options.quic_port,
            choice,
        };
        let check = format!("{name} at {bracketed}:{port}");
        dial(&check, protocol, target, &identity, report).await;
    }
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
pub(super) async fn dial(
    check: &str,
    protocol: &str,
    target: Target,
    identity: &Identity,
    report: &mut Report,
) {
    let link = match identity.client_tls() {
        Ok(tls) => connect(target, tls).await,
        Err(error) => Err(ConnectError::from(error)),
    };
    match link {
        Ok(link) => {
            link.close(CLOSE_LIMIT).await;
            report.ok(check, "both certificates are accepted");
        }
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
