use serde_json::{Value, json};

use super::*;

fn pod(uid: &str, addresses: &[&str]) -> OwnPod {
    let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let pod = json!({"metadata": {"name": "p", "uid": uid}, "status": {"podIPs": addresses, "podIP": addresses[0]["ip"]}});
    OwnPod::of(pod.to_string().as_bytes()).unwrap()
}

fn pods() -> OwnPods {
    let mut pods = OwnPods::new("n1");
    assert!(pods.set("shop", "p", Some(pod("u1", &["10.0.0.9", "fd00::9"]))));
    pods
}

fn endpoint(address: &str, node: &str, uid: &str) -> Value {
    json!({
        "addresses": [address], "nodeName": node, "conditions": {"ready": true},
        "targetRef": {"kind": "Pod", "name": "p", "namespace": "shop", "uid": uid},
    })
}

/// Addresses of a slice with these endpoints, after relocation.
fn shown(pods: &OwnPods, namespace: &str, endpoints: &[Value]) -> Vec<String> {
    let slice =
        json!({"metadata": {"name": "s", "namespace": namespace}, "endpoints": endpoints, "ports": []});
    let text = slice.to_string();
    let relocated = pods.relocate(Carrier::EndpointSlice, text.as_bytes()).unwrap();
    let relocated: Value = serde_json::from_slice(&relocated).unwrap();
    let list = relocated["endpoints"].as_array().unwrap();
    let mut back = slice.clone();
    for (endpoint, moved) in back["endpoints"].as_array_mut().unwrap().iter_mut().zip(list) {
        endpoint["addresses"] = moved["addresses"].clone();
    }
    assert_eq!(back, relocated, "nothing but addresses differs");
    list.iter().map(|endpoint| endpoint["addresses"][0].as_str().unwrap().to_owned()).collect()
}

#[test]
fn endpoints_of_own_pods_have_their_present_addresses() {
    let own = |address: &str| endpoint(address, "n1", "u1");
    let others = [
        endpoint("10.0.0.1", "n2", "u1"),
        endpoint("10.0.0.1", "n1", "u2"),
        json!({"addresses": ["10.0.0.1"], "nodeName": "n1"}),
        json!({"addresses": [], "nodeName": "n1", "targetRef": {"kind": "Pod", "name": "p", "uid": "u1"}}),
    ];
    assert_eq!(
        shown(&pods(), "shop", &[own("10.0.0.1"), own("fd00::1"), own("10.0.0.9")]),
        ["10.0.0.9", "fd00::9", "10.0.0.9"]
    );
    assert_eq!(shown(&pods(), "shop", &others[..3]), ["10.0.0.1"; 3]);
    assert_eq!(shown(&pods(), "another", &[own("10.0.0.1")]), ["10.0.0.1"]);
    let text = json!({"metadata": {"namespace": "shop"}, "endpoints": others}).to_string();
    assert!(matches!(pods().relocate(Carrier::EndpointSlice, text.as_bytes()), Ok(Cow::Borrowed(_))));
}

#[test]
fn a_pod_with_one_family_leaves_endpoints_of_the_other() {
    let mut pods = pods();
    assert!(pods.set("shop", "p", Some(pod("u1", &["10.0.0.9"]))));
    assert_eq!(shown(&pods, "shop", &[endpoint("fd00::1", "n1", "u1")]), ["fd00::1"]);
}

#[test]
fn endpoints_of_the_older_kind_move_whether_they_are_ready_or_not() {
    let address = |ip: &str| json!({"ip": ip, "nodeName": "n1", "targetRef": {"kind": "Pod", "name": "p", "uid": "u1"}});
    let endpoints = json!({
        "metadata": {"name": "s", "namespace": "shop"},
        "subsets": [{"addresses": [address("10.0.0.1")], "notReadyAddresses": [address("fd00::1")]}],
    })
    .to_string();
    let moved = pods().relocate(Carrier::Endpoints, endpoints.as_bytes()).unwrap();
    let moved: Value = serde_json::from_slice(&moved).unwrap();
    let subset = &moved["subsets"][0];
    assert_eq!(
        (&subset["addresses"][0]["ip"], &subset["notReadyAddresses"][0]["ip"]),
        (&json!("10.0.0.9"), &json!("fd00::9"))
    );
}

#[test]
fn only_a_different_address_is_a_change() {
    let mut pods = pods();
    assert!(!pods.set("shop", "p", Some(pod("u1", &["10.0.0.9", "fd00::9"]))));
    assert!(!pods.set("shop", "q", None));
    let unplaced = OwnPod::of(br#"{"metadata":{"uid":"u1"},"status":null}"#).unwrap();
    assert!(pods.set("shop", "p", Some(unplaced.clone())));
    assert!(pods.is_empty() && !pods.set("shop", "p", Some(unplaced)));
    for text in ["[]", "", r#"{"metadata":7}"#, r#"{"metadata":{},"status":{"podIPs":7}}"#] {
        assert!(OwnPod::of(text.as_bytes()).is_err(), "{text}");
    }
}
