use serde_json::Value;

use super::*;

fn problem(text: &str) -> String {
    Config::parse(text, "edge.yaml").unwrap_err().to_string()
}

#[test]
fn a_node_name_is_enough() {
    let config = Config::parse("nodeName: edge-a\n", "edge.yaml").unwrap();
    assert_eq!(config, Config::new(NodeId::parse("edge-a").unwrap(), "/var/lib/tombolo/edge"));
}

/// Settings that all differ from their defaults and are not empty.
fn everything() -> Config {
    let mut config = Config::new(NodeId::parse("edge-a").unwrap(), "/data");
    config.cloud = CloudConfig::at("fd00::1");
    config.cloud.transport = Transport::Quic;
    config.local_api.http = Some("127.0.0.1:10551".parse().unwrap());
    config.local_api.pods = Some("169.254.20.11:10552".parse().unwrap());
    config.wrapper = WrapperConfig {
        address: Some("10.0.0.7:51006".parse().unwrap()),
        node_name: Some(NodeId::parse("edge-b").unwrap()),
        tls: Some(WrapperTls {
            cert_file: "/etc/cert.pem".into(),
            key_file: "/etc/key.pem".into(),
            ca_file: Some("/etc/ca.pem".into()),
        }),
        local_rewrite: false,
        debug: true,
        watch_queue: 16,
    };
    config.dns = DnsConfig {
        hosts_path: Some("/etc/edge/hosts".into()),
        full_sync_seconds: 7,
        cluster_domain: "edge.example".to_owned(),
        address: Some("169.254.20.10:53".parse().unwrap()),
        upstreams: Some(vec![Upstream("192.0.2.1:5353".parse().unwrap())]),
        resolv_conf: "/run/resolv.conf".into(),
        forward_timeout_millis: 500,
        clients: vec!["10.9.0.0/16".to_owned().try_into().unwrap()],
        forward_private_reverse: true,
    };
    config.admin = None;
    config.node.labels.insert("shop".to_owned(), "7".to_owned());
    config.node.taints.push(Taint {
        key: "edge".to_owned(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    });
    config.node.address = Some("10.0.0.7".parse().unwrap());
    config.simulate_pods = true;
    config
}

#[test]
fn every_setting_reads_back_as_it_was_written() {
    let config = everything();
    let text = serde_saphyr::to_string(&config).unwrap();
    assert_eq!(Config::parse(&text, "edge.yaml").unwrap(), config, "{text}");
}

#[test]
fn dialect_kubeedge_is_spoken_over_websocket() {
    let config = Config::parse("nodeName: a\ndialect: kubeedge\n", "edge.yaml").unwrap();
    assert_eq!((config.dialect, config.cloud.transport), (Dialect::KubeEdge, Transport::Auto));
    let quic = problem("nodeName: a\ndialect: kubeedge\ncloud: {transport: quic}\n");
    assert!(quic.contains("cloud.transport") && quic.contains("WebSocket"), "{quic}");
    assert!(problem("nodeName: a\ndialect: other\n").contains("line 2"));
    // The QUIC address does not matter to a dialect that does not use it.
    let text = "nodeName: a\ndialect: kubeedge\ncloud: {websocket: 'hub:10000'}\n";
    assert!(Config::parse(text, "edge.yaml").is_ok());
}

#[test]
fn configuration_errors_name_line_and_column() {
    let unknown = problem("nodeName: edge-a\nsimulatePodz: true\n");
    assert!(unknown.starts_with("edge.yaml:") && unknown.contains("simulatePodz"), "{unknown}");
    assert!(unknown.contains("line 2"), "{unknown}");
    assert!(problem("nodeName: Edge_A\n").contains("Edge_A"));
    assert!(problem("dataDir: /data\n").contains("nodeName"));
    let address = problem("nodeName: a\ncloud: {websocket: hub}\n");
    assert_eq!(address, "edge.yaml: setting cloud.websocket: \"hub\" is not HOST:PORT");
    assert!(problem("nodeName: a\ncloud: {quic: 'b:1'}\n").contains("cloud.quic"));
    assert!(problem("nodeName: a\nlocalApi: {http: 0.0.0.0:1}\n").contains("loopback"));
    assert!(problem("nodeName: a\ncloud: {backOff: {firstMillis: 0}}\n").contains("cloud.backOff"));
    assert!(problem("nodeName: a\nnode: {leaseIntervalMillis: 1}\n").contains("node.leaseIntervalMillis"));
    for labels in ["'a b': c", "zone: 'a b'", "'/zone': a"] {
        let label = problem(&format!("nodeName: a\nnode: {{labels: {{{labels}}}}}\n"));
        assert!(label.contains("setting node.labels: ") && label.contains("is not a valid label"), "{label}");
    }
    assert!(problem("nodeName: a\ndns: {upstreams: ['192.0.2.1:0']}\n").contains("192.0.2.1:0"));
}

#[test]
fn hosts_and_ports() {
    for (text, expected) in [
        ("hub:1", Some(("hub", 1))),
        ("[fd00::1]:65535", Some(("fd00::1", 65535))),
        ("fd00::1", None),
        ("hub:65536", None),
        (":1", None),
        ("[fd00::1:1", None),
        ("hub", None),
    ] {
        assert_eq!(host_and_port("cloud.join", text).ok(), expected, "{text}");
    }
}

#[test]
fn the_wrapper_is_for_this_machine_unless_clients_show_certificates() {
    let wrapper = Config::parse("nodeName: a\n", "edge.yaml").unwrap().wrapper;
    assert_eq!(wrapper.address, Some("127.0.0.1:51006".parse().unwrap()));
    assert_eq!((wrapper.node_name, wrapper.tls, wrapper.local_rewrite), (None, None, true));
    assert_eq!((wrapper.debug, wrapper.watch_queue), (false, 1024));
    let off = Config::parse("nodeName: a\nwrapper: {address: null}\n", "edge.yaml").unwrap();
    assert_eq!(off.wrapper.address, None);
    let open = "nodeName: a\nwrapper: {address: '0.0.0.0:51006', tls: {certFile: c, keyFile: k}}\n";
    assert!(problem(open).contains("set wrapper.tls.caFile"), "{}", problem(open));
    let closed = open.replace("keyFile: k", "keyFile: k, caFile: a");
    assert!(Config::parse(&closed, "edge.yaml").is_ok());
    for queue in [15, 65_537] {
        assert!(problem(&format!("nodeName: a\nwrapper: {{watchQueue: {queue}}}\n")).contains("16 to 65536"));
    }
}

#[test]
fn names_have_defaults_and_limits() {
    let dns = Config::parse("nodeName: a\n", "edge.yaml").unwrap().dns;
    assert_eq!(dns.hosts_path, Some("/data/edge/hosts".into()));
    assert_eq!((dns.full_sync_seconds, &*dns.cluster_domain), (30, "cluster.local"));
    assert_eq!((dns.address, dns.upstreams, dns.forward_timeout_millis), (None, None, 2000));
    assert_eq!(dns.resolv_conf, Path::new("/etc/resolv.conf"));
    let with = |settings: &str| format!("nodeName: a\ndns: {{{settings}}}\n");
    let short =
        Config::parse(&with("upstreams: [192.0.2.1, 'fd00::53', '192.0.2.1:5353']"), "edge.yaml").unwrap();
    let expected = ["192.0.2.1:53", "[fd00::53]:53", "192.0.2.1:5353"];
    assert_eq!(short.dns.upstreams.unwrap(), expected.map(|text| Upstream(text.parse().unwrap())));
    for (settings, named) in [
        ("hostsPath: hosts", "dns.hostsPath"),
        ("fullSyncSeconds: 0", "dns.fullSyncSeconds"),
        ("clusterDomain: cluster.local.", "dns.clusterDomain"),
        ("address: '0.0.0.0:53'", "dns.address"),
        ("upstreams: [one.example]", "one.example"),
        (
            "upstreams: [192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4, 192.0.2.5, 192.0.2.6, 192.0.2.7, 192.0.2.8, 192.0.2.9]",
            "dns.upstreams",
        ),
        ("address: '192.0.2.1:53', upstreams: [192.0.2.1]", "dns.upstreams"),
        ("resolvConf: resolv.conf", "dns.resolvConf"),
        ("forwardTimeoutMillis: 99", "dns.forwardTimeoutMillis"),
    ] {
        assert!(problem(&with(settings)).contains(named), "{settings}: {}", problem(&with(settings)));
    }
}

/// Paths of settings and their values as in a settings file. Keys that users choose are part of a value.
fn leaves(config: &Config) -> BTreeMap<String, Value> {
    fn descend(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(members) if path != "node.labels" => {
                for (name, member) in members {
                    let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    descend(&inner, member, found);
                }
            }
            _ => drop(found.insert(path.to_owned(), value.clone())),
        }
    }
    let mut found = BTreeMap::new();
    descend("", &serde_json::to_value(config).unwrap(), &mut found);
    found
}

/// Settings in the tables of the documentation with their documented defaults. A row may have several of both.
fn documented() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for document in ["edge-node.md", "dns.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(document);
        let text = std::fs::read_to_string(path).unwrap();
        let (_, rest) = text.split_once("| setting | default | meaning |").expect("a table of settings");
        for row in rest.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let names: Vec<&str> = cells[1].split(", ").map(|name| name.trim_matches('`')).collect();
            let defaults: Vec<&str> = cells[2].split(", ").collect();
            for (index, name) in names.iter().enumerate().filter(|(_, name)| !name.ends_with('*')) {
                let default = if defaults.len() == names.len() { defaults[index] } else { cells[2] };
                assert!(found.insert((*name).to_owned(), default.to_owned()).is_none(), "{name} twice");
                assert!(!cells[3].is_empty(), "{name}: its meaning");
            }
        }
    }
    found
}

#[test]
fn every_setting_is_documented_with_its_default() {
    let (named, defaults) =
        (documented(), leaves(&Config::new(NodeId::parse("a").unwrap(), "/var/lib/tombolo/edge")));
    let all: Vec<String> = leaves(&everything()).into_keys().collect();
    assert_eq!(named.keys().cloned().collect::<Vec<_>>(), all);
    for (name, said) in named {
        let text = match defaults.get(&name).unwrap_or(&Value::Null) {
            _ if name == "nodeName" => String::new(),
            // A null default is documented in words: that the setting is off, or what replaces it.
            Value::Null => {
                let words = ["none", "off", "the local address of the connection to the cloud", "`nodeName`"];
                assert!(words.iter().any(|word| said.starts_with(word)), "{name}: {said}");
                continue;
            }
            Value::String(text) => format!("`{text}`"),
            Value::Bool(flag) => format!("`{flag}`"),
            Value::Number(number) => number.to_string(),
            Value::Array(_) | Value::Object(_) => "none".to_owned(),
        };
        assert_eq!(said, text, "{name}");
    }
}

#[test]
fn network_contains_the_addresses_with_its_prefix() {
    let network = |text: &str| super::Network::try_from(text.to_owned());
    for (text, inside, outside) in [
        ("10.9.0.0/16", "10.9.255.1", "10.10.0.0"),
        ("10.9.1.1", "10.9.1.1", "10.9.1.2"),
        ("0.0.0.0/0", "203.0.113.7", "::1"),
        ("fd00:7::/64", "fd00:7::ffff", "fd00:7:0:1::1"),
        ("::/0", "2001:db8::1", "10.0.0.1"),
        ("fd00::1", "fd00::1", "fd00::2"),
    ] {
        let read = network(text).unwrap();
        assert!(read.contains(inside.parse().unwrap()), "{text}: {inside}");
        assert!(!read.contains(outside.parse().unwrap()), "{text}: {outside}");
    }
    for text in ["", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "10.0.0.0/-1", "10.0.0.0/8/8", "pods"] {
        assert!(network(text).unwrap_err().contains("is not a network"), "{text}");
    }
}

#[test]
fn rewrite_without_a_reachable_target_is_warned_about() {
    let mut config = Config::new(NodeId::parse("edge-a").unwrap(), "/data");
    assert!(config.warnings()[0].contains("localApi.pods"), "the defaults have no address for pods");
    for pods in ["127.0.0.1:10551", "[::1]:10551"] {
        config.local_api.pods = Some(pods.parse().unwrap());
        assert_eq!(config.warnings().len(), 1, "{pods}");
    }
    for pods in ["169.254.20.11:10551", "0.0.0.0:10551"] {
        config.local_api.pods = Some(pods.parse().unwrap());
        assert_eq!(config.warnings(), [] as [String; 0], "{pods}");
    }
    config.local_api.pods = None;
    config.local_api.https = "192.0.2.7:10550".parse().unwrap();
    assert_eq!(config.warnings(), [] as [String; 0]);
    config.local_api.https = "127.0.0.1:10550".parse().unwrap();
    config.wrapper.local_rewrite = false;
    assert_eq!(config.warnings(), [] as [String; 0]);
}
