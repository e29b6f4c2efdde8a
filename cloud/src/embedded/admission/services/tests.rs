#![allow(clippy::needless_pass_by_value, reason = "literals read better by value in tests")]

use tombolo_apiserve::history::LogLimits;
use tombolo_apiserve::memory::MemoryStore;

use super::super::addresses::{Reservations, ServiceRange};
use super::*;
use crate::embedded::objects::Objects;

fn addresses() -> Addresses {
    let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
    Addresses::new(objects, ServiceRange::parse("10.0.0.0/24").unwrap(), Reservations::default())
}

fn spec(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[test]
fn an_address_is_given_kept_and_checked() {
    let addresses = addresses();
    let mut new = spec(json!({"type": "ClusterIP"}));
    cluster_address(&addresses, &mut new, None).unwrap();
    let given = new["clusterIP"].as_str().unwrap().to_owned();
    assert!(given.starts_with("10.0.0."));
    assert_eq!(new["clusterIPs"], json!([given]));
    assert_eq!((&new["ipFamilies"], &new["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
    let old = json!({"spec": new});
    let mut changed = spec(json!({"type": "ClusterIP"}));
    keep_allocated(&mut changed, Some(&old));
    cluster_address(&addresses, &mut changed, Some(&old)).unwrap();
    assert_eq!(changed["clusterIP"], json!(given));
    let (field, _, why) =
        cluster_address(&addresses, &mut spec(json!({"clusterIP": given})), None).unwrap_err();
    assert_eq!(field, "spec.clusterIPs");
    assert!(why.contains("already allocated"), "{why}");
}

#[test]
fn headless_services_have_no_address() {
    let mut headless = spec(json!({"clusterIP": "None"}));
    cluster_address(&addresses(), &mut headless, None).unwrap();
    assert_eq!(headless["clusterIPs"], json!(["None"]));
}

#[test]
fn node_ports_are_given_kept_and_checked() {
    let addresses = addresses();
    let mut new = spec(json!({"type": "NodePort", "ports": [
        {"port": 80, "nodePort": 30080}, {"port": 443}, {"port": 80, "protocol": "UDP", "nodePort": 30080},
    ]}));
    node_ports(&addresses, &mut new, None).unwrap();
    assert!(port_number(&new["ports"][1], "nodePort").is_some());
    let old = json!({"spec": new});
    let mut changed = spec(json!({"type": "NodePort", "ports": [{"port": 443}]}));
    keep_allocated(&mut changed, Some(&old));
    node_ports(&addresses, &mut changed, Some(&old)).unwrap();
    assert_eq!(changed["ports"][0]["nodePort"], old["spec"]["ports"][1]["nodePort"]);
    let mut taken = spec(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30080}]}));
    assert_eq!(node_ports(&addresses, &mut taken, None).unwrap_err().0, "spec.ports[0].nodePort");
    let mut inner = spec(json!({"type": "ClusterIP", "ports": [{"port": 1}]}));
    node_ports(&addresses, &mut inner, None).unwrap();
    assert_eq!(inner["ports"][0].get("nodePort"), None);
}
