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
fn unknown_keys_are_refused_with_their_place() {
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
