use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::config::WatchEvents;
use crate::edgecontroller::upstream::RequestKind;

/// Output of `cloudcore --defaultconfig` of KubeEdge v1.23.
const KUBEEDGE: &str = include_str!("kubeedge-default.yaml");

fn parse(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn hub(lines: &str) -> String {
    format!("kind: CloudCore\nmodules:\n  cloudHub:\n{lines}")
}

#[test]
fn the_default_file_of_kubeedge_is_understood() {
    let config = parse(KUBEEDGE);
    assert_eq!(config.listen.websocket, Some("0.0.0.0:10000".parse().expect("address")));
    assert_eq!(config.listen.quic, None, "KubeEdge has QUIC off");
    assert_eq!(config.listen.join, "0.0.0.0:10002".parse().expect("address"));
    assert_eq!(config.listen.admin, Some("127.0.0.1:9091".parse().expect("address")));
    assert_eq!(config.advertise, ["192.0.2.10"], "the empty DNS name is none");
    assert_eq!((config.kubeconfig, config.api_server), (None, None));
    assert_eq!((config.node_limit, config.token_refresh), (500, Duration::from_secs(12 * 3600)));
    assert_eq!(config.edge_certificate_life, Duration::from_secs(365 * 86_400));
    let authority = config.certificates.authority.expect("a pair of files");
    assert_eq!(authority.certificate, PathBuf::from("/etc/kubeedge/ca/rootCA.crt"));
    assert_eq!(authority.key, PathBuf::from("/etc/kubeedge/ca/rootCA.key"));
    assert!(config.upstream.enabled);
    assert_eq!(config.upstream.heartbeat_age_max, Duration::from_secs(10));
    assert_eq!(config.kubeedge.silence, Duration::from_secs(30));
}

#[test]
fn a_file_without_keys_has_the_defaults_of_kubeedge() {
    let (full, empty) = (parse(KUBEEDGE), parse("kind: CloudCore\n"));
    assert_eq!((full.listen, full.certificates), (empty.listen, empty.certificates));
    assert_eq!((full.node_limit, full.token_refresh), (empty.node_limit, empty.token_refresh));
    assert_eq!((full.upstream, full.watch_events), (empty.upstream, empty.watch_events));
    assert_eq!((full.kubeedge, full.edge_certificate_life), (empty.kubeedge, empty.edge_certificate_life));
}

#[test]
fn commonly_edited_settings_take_effect() {
    let edited = KUBEEDGE
        .replace("kubeConfig: \"\"", "kubeConfig: /root/.kube/config")
        .replace("master: \"\"", "master: https://192.0.2.1:6443")
        .replace("- 192.0.2.10", "- 192.0.2.20\n    - 192.0.2.21")
        .replace("dnsNames:\n    - \"\"", "dnsNames:\n    - hub.example")
        .replace("port: 10000", "port: 11000")
        .replace("port: 10002", "port: 11002")
        .replace("keepaliveInterval: 30", "keepaliveInterval: 45")
        .replace("tokenRefreshDuration: 12", "tokenRefreshDuration: 24")
        .replace("edgeCertSigningDuration: 365", "edgeCertSigningDuration: 30")
        .replace("nodeUpdateFrequency: 10", "nodeUpdateFrequency: 25")
        .replace("bindAddress: 127.0.0.1:9091", "bindAddress: 0.0.0.0:9099")
        .replace("/etc/kubeedge/certs/server.crt\n    tlsPrivate", "/srv/hub.crt\n    tlsPrivate");
    let config = parse(&edited);
    assert_eq!(config.kubeconfig, Some(PathBuf::from("/root/.kube/config")));
    assert_eq!(config.api_server.as_deref(), Some("https://192.0.2.1:6443"));
    assert_eq!(config.advertise, ["192.0.2.20", "192.0.2.21", "hub.example"]);
    assert_eq!(config.listen.websocket.map(|address| address.port()), Some(11000));
    assert_eq!(config.listen.join.port(), 11002);
    assert_eq!(config.listen.admin, Some("0.0.0.0:9099".parse().expect("address")));
    assert_eq!(config.kubeedge.silence, Duration::from_secs(45));
    assert_eq!(config.token_refresh, Duration::from_secs(24 * 3600));
    assert_eq!(config.edge_certificate_life, Duration::from_secs(30 * 86_400));
    assert_eq!(config.upstream.heartbeat_age_max, Duration::from_secs(25));
    assert_eq!(config.certificates.server.expect("a pair").certificate, PathBuf::from("/srv/hub.crt"));
}

#[test]
fn every_buffer_and_load_setting_is_a_bound_or_listed_without_effect() {
    let base = parse(KUBEEDGE);
    let bounds = |config: &Config| (config.upstream.bounds.clone(), config.watch_events);
    let controller = KUBEEDGE.lines().skip_while(|line| *line != "  edgeController:");
    let keys = controller.skip_while(|line| line.trim() != "buffer:").skip(1);
    let keys =
        keys.take_while(|line| line.trim() != "iptablesManager:").filter(|line| line.starts_with("      "));
    let keys: Vec<_> = keys.collect();
    assert_eq!(keys.len(), 24 + 20, "every key of edgeController: {keys:?}");
    for line in keys {
        let (key, _) = line.split_once(':').expect("a key");
        let edited = KUBEEDGE.replace(line, &format!("{key}: 7777"));
        let path = format!("modules.edgeController.buffer.{}", key.trim());
        let has_no_effect = ignored::IGNORED.iter().any(|setting| setting.key == path);
        assert_eq!(bounds(&parse(&edited)) == bounds(&base), has_no_effect, "{key}");
    }
}

#[test]
fn buffer_and_load_keys_set_their_bounds() {
    let text = "modules:\n  edgeController:\n    buffer: {querySecret: 3, podEvent: 5, updateNodeStatus: 6}\n    \
                load: {querySecretWorkers: 2, CreatePodWorks: 9, UpdateRuleStatusWorkers: 8, queryNodeWorkers: 1}\n";
    let config = parse(text);
    let bound = |kind| {
        let bound = config.upstream.bounds[&kind];
        (bound.running.get(), bound.waiting)
    };
    assert_eq!(bound(RequestKind::QuerySecret), (2, 3));
    assert_eq!(bound(RequestKind::CreatePod), (9, 1024));
    assert_eq!(bound(RequestKind::RuleStatus), (8, 6));
    assert_eq!(
        bound(RequestKind::QueryNode),
        (500, 1524),
        "raised to what the node limit needs, as KubeEdge does"
    );
    let one = NonZeroU32::new(1);
    let events = WatchEvents { pod: NonZeroU32::new(5), config_map: one, secret: one };
    assert_eq!(config.watch_events, events);
    assert_eq!(config.upstream.bounds.len(), 20, "every kind that KubeEdge bounds");
}

#[test]
fn the_edge_controller_can_be_turned_off() {
    let config = parse("modules: {edgeController: {enable: false}}");
    assert!(!config.upstream.enabled);
}

#[test]
fn unsupported_keys_are_listed_with_their_reason() {
    let keys: Vec<_> = parse(KUBEEDGE).ignored.iter().map(|setting| setting.key).collect();
    for key in [
        "modules.cloudStream",
        "modules.iptablesManager",
        "kubeAPIConfig.qps",
        "modules.router",
        "modules.edgeController.buffer.rulesEvent",
        "modules.edgeController.buffer.ruleEndpointsEvent",
    ] {
        assert!(keys.contains(&key), "{key} is not among {keys:?}");
    }
    assert!(parse("kind: CloudCore").ignored.is_empty(), "what is not in the file is not listed");
    let one = parse("modules: {taskManager: {enable: true}}").ignored;
    assert_eq!(one.iter().map(|setting| setting.key).collect::<Vec<_>>(), ["modules.taskManager"]);
    assert!(one.iter().all(|setting| !setting.reason.is_empty()));
}

#[test]
fn modules_that_do_not_exist_are_named_by_whether_they_are_enabled() {
    let names = |text: &str| parse(text).missing.iter().map(|module| module.name).collect::<Vec<_>>();
    assert_eq!(
        names(KUBEEDGE),
        ["deviceController"],
        "router, cloudStream and taskManager are there and off"
    );
    assert_eq!(names("kind: CloudCore\n"), ["deviceController"], "KubeEdge's default for what is left out");
    assert_eq!(names("modules: {deviceController: {enable: false}}"), [""; 0]);
    let all = "modules: {router: {enable: true}, cloudStream: {enable: true}, taskManager: {enable: true}}";
    assert_eq!(names(all), ["deviceController", "taskManager", "cloudStream", "router"]);
    assert!(Config::default().missing.is_empty(), "a file of our own names no module");
    let document = include_str!("../../../../docs/migrating-from-kubeedge.md");
    for module in missing::MISSING {
        let row = format!("| `{}` | {} |", module.name, module.loss);
        assert!(document.contains(&row), "docs/migrating-from-kubeedge.md lacks {row}");
    }
}

#[test]
fn file_without_a_usable_listener_for_kubeedge_stops_the_start() {
    let text = hub("    websocket: {enable: false}\n    quic: {enable: true}\n");
    let error = Config::parse(&text).expect_err("no way in").to_string();
    assert!(
        error.contains("KubeEdge edges cannot connect in another way") && error.contains("Enable it"),
        "{error}"
    );
    // An absent section is enabled, as in KubeEdge.
    let config = parse(&hub("    quic: {enable: true}\n"));
    assert!(config.listen.websocket.is_some() && config.listen.quic.is_some());
}

#[test]
fn operators_can_read_every_name() {
    let document = include_str!("../../../../docs/operations.md");
    for setting in ignored::IGNORED {
        let row = format!("| `{}` | {} |", setting.key, setting.reason);
        assert!(document.contains(&row), "docs/operations.md lacks {row}");
    }
    for kind in parse(KUBEEDGE).upstream.bounds.keys() {
        let kind = serde_json::to_value(kind).expect("a name");
        let name = format!("`edgeController.requests.{}`", kind.as_str().expect("a name"));
        assert!(document.contains(&name), "docs/operations.md lacks {name}");
    }
}

#[test]
fn wrong_types_and_unknown_keys_are_reported_with_line_and_column() {
    for (text, line, column, says) in [
        (hub("    nodeLimits: 5\n"), 4, 5, "nodeLimits"),
        (hub("    websocket:\n      port: many\n"), 5, 13, ""),
        (hub("    websocket:\n      address: hub.example\n"), 5, 16, "hub.example"),
        (hub("    nodeLimit: [1]\n"), 4, 16, ""),
        ("apiVersion: cloudcore.config.kubeedge.io/v1\nkind: CloudCore\n".to_owned(), 1, 13, "v1alpha1"),
        ("modules:\n  cloudHubs: {}\n".to_owned(), 2, 3, "cloudHubs"),
        ("commonConfig:\n  monitorServer:\n    bindAddress: here\n".to_owned(), 3, 18, ""),
        ("kind: CloudCore\nfeatureGates:\n  noSuchGate: true\n".to_owned(), 3, 3, "noSuchGate"),
        ("modules: {edgeController: {load: {querySecretWorkers: 0}}}".to_owned(), 1, 35, ""),
    ] {
        let error = Config::parse(&text).expect_err(&text).to_string();
        let position = format!("line {line} column {column}");
        assert!(
            error.contains(&position) && error.contains(says),
            "{text:?} should name {position}: {error}"
        );
    }
}

#[test]
fn values_out_of_range_name_their_key() {
    for (text, key) in [
        (hub("    nodeLimit: 0\n"), "modules.cloudHub.nodeLimit"),
        (hub("    enable: false\n"), "modules.cloudHub.enable"),
        (hub("    websocket: {enable: false}\n"), "modules.cloudHub.websocket.enable"),
        (
            hub("    websocket: {enable: false}\n    quic: {enable: true}\n"),
            "modules.cloudHub.websocket.enable",
        ),
        (hub("    keepaliveInterval: 0\n"), "modules.cloudHub.keepaliveInterval"),
        (hub("    tokenRefreshDuration: 0\n"), "modules.cloudHub.tokenRefreshDuration"),
        (hub("    edgeCertSigningDuration: 0\n"), "modules.cloudHub.edgeCertSigningDuration"),
        (hub("    advertiseAddress: [a b]\n"), "modules.cloudHub.advertiseAddress"),
    ] {
        let error = Config::parse(&text).expect_err(&text).to_string();
        assert!(error.starts_with(key), "{text}: {error}");
    }
}

#[test]
fn a_key_without_a_value_has_its_default() {
    let sections = ["kubeAPIConfig", "commonConfig", "modules", "featureGates"];
    for section in sections {
        let config = parse(&format!("kind: CloudCore\n{section}:\n"));
        assert_eq!((config.node_limit, config.listen), (500, parse("kind: CloudCore").listen), "{section}");
    }
    let blank = parse(
        "kind: CloudCore\nkubeAPIConfig: {kubeConfig: , master: ~}\nmodules: {cloudHub: {nodeLimit: , \
         advertiseAddress: , websocket: {port: , address: }}, edgeController: {load: , buffer: {podEvent: }}}\n",
    );
    assert_eq!((blank.kubeconfig, blank.api_server), (None, None));
    assert_eq!((blank.node_limit, blank.advertise), (500, Vec::<String>::new()));
    assert_eq!(blank.listen.websocket, Some("0.0.0.0:10000".parse().expect("address")));
}

#[test]
fn keys_that_kubeedge_leaves_out_while_they_are_empty_are_known() {
    parse("modules: {deviceController: {buffer: {deviceStatusEvent: 1}}}");
}
