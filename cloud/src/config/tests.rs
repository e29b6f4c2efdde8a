use super::*;

#[test]
fn empty_text_is_the_default_configuration() {
    let config = Config::parse("").expect("defaults");
    assert_eq!(config, Config::default());
    assert_eq!(config.listen.websocket, Some("0.0.0.0:10000".parse().expect("address")));
    assert_eq!(config.listen.quic, Some("0.0.0.0:10001".parse().expect("address")));
    assert_eq!(config.listen.join, "0.0.0.0:10002".parse().expect("address"));
    assert_eq!(config.listen.admin, Some("127.0.0.1:9091".parse().expect("address")));
    assert_eq!((config.node_limit, config.token_refresh), (1000, Duration::from_secs(12 * 3600)));
}

#[test]
fn keys_are_read_and_listeners_can_be_turned_off() {
    let text = "listen:\n  quic: null\n  websocket: 127.0.0.1:0\nadvertise: [hub.example, 10.0.0.1]\n\
                nodeLimit: 20\ntokenRefreshHours: 1\ndataDir: /tmp/x\nnamespace: edge-hub\n";
    let config = Config::parse(text).expect("valid");
    assert_eq!(config.listen.quic, None);
    assert_eq!(config.listen.websocket, Some("127.0.0.1:0".parse().expect("address")));
    assert_eq!(config.listen.join.port(), JOIN_PORT, "keys that are left out keep their defaults");
    assert_eq!(config.advertise, ["hub.example", "10.0.0.1"]);
    assert_eq!((config.node_limit, config.namespace.as_str()), (20, "edge-hub"));
}

#[test]
fn unknown_keys_are_refused_with_their_position() {
    let error = Config::parse("nodeLimit: 5\nnodeLimits: 6\n").expect_err("a typing mistake").to_string();
    assert!(error.contains("nodeLimits") && error.contains("line 2"), "{error}");
    let error = Config::parse("listen:\n  websocket: nowhere\n").expect_err("no address").to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn values_out_of_range_name_their_key() {
    for (text, key) in [
        ("nodeLimit: 0", "nodeLimit"),
        ("nodeLimit: 100001", "nodeLimit"),
        ("tokenRefreshHours: 0", "tokenRefreshHours"),
        ("tokenRefreshHours: 25", "tokenRefreshHours"),
        ("listen: {websocket: null, quic: null}", "listen"),
        ("advertise: ['a b']", "advertise"),
        ("namespace: Upper", "namespace"),
        ("drainGraceSeconds: 3601", "drainGraceSeconds"),
        ("edgeCertificateDays: 0", "edgeCertificateDays"),
        ("kubeedge: {window: 65}", "kubeedge.window"),
        ("kubeedge: {silenceSeconds: 0}", "kubeedge.silenceSeconds"),
        ("certificates: {caFile: /x}", "certificates.caFile"),
        ("certificates: {serverKeyFile: /x}", "certificates.serverFile"),
    ] {
        let error = Config::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(key), "{text}: {error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/no/such/file.yaml")).expect_err("missing").to_string();
    assert!(error.contains("/no/such/file.yaml"), "{error}");
}

#[test]
fn printed_configuration_reads_back() {
    let full = default_config().expect("text");
    assert_eq!(Config::parse(&full).expect("our own text"), Config::default());
    assert_eq!(Config::parse(min_config()).expect("our own text"), Config::default());
    for key in ["nodeLimit: 1000", "tokenRefreshHours: 12", "silenceSeconds: 30", "websocket: 0.0.0.0:10000"]
    {
        assert!(full.contains(key), "{key} is missing: {full}");
    }
}

#[test]
fn requests_and_watches_can_be_bounded() {
    let text = "edgeController:\n  enable: false\n  heartbeatAgeSeconds: 3\n  requests:\n    querySecret: {running: 2, waiting: 5}\n  \
                watchEvents: {pod: 7}\nkubeedge: {window: 64, silenceSeconds: 60}\nedgeCertificateDays: 2\n";
    let config = Config::parse(text).expect("valid");
    assert_eq!((config.upstream.enabled, config.upstream.heartbeat_age_max), (false, Duration::from_secs(3)));
    let bound = config.upstream.bounds[&crate::edgecontroller::upstream::RequestKind::QuerySecret];
    assert_eq!((bound.running.get(), bound.waiting), (2, 5));
    assert_eq!(config.watch_events.pod, NonZeroU32::new(7));
    assert_eq!((config.kubeedge.window, config.kubeedge.silence), (64, Duration::from_secs(60)));
    assert_eq!(config.edge_certificate_life, Duration::from_secs(2 * 86_400));
    let error = Config::parse("edgeController:\n  requests:\n    querySecrets: {running: 1, waiting: 1}\n");
    let error = error.expect_err("an unknown kind").to_string();
    assert!(error.contains("querySecrets") && error.contains("line 3"), "{error}");
}
