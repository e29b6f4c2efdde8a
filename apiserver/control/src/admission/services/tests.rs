#![allow(clippy::needless_pass_by_value, reason = "literals read better by value in tests")]

use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;

use super::super::addresses::{Reservations, ServiceRange};
use super::*;
use crate::objects::Objects;

fn addresses() -> Addresses {
    let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
    Addresses::new(objects, ServiceRange::parse("10.0.0.0/24").unwrap(), Reservations::default())
}

fn spec(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[test]
fn service_address_is_allocated_kept_and_validated() {
    let addresses = addresses();
    let mut grant = addresses.grant();
    let mut new = spec(json!({"type": "ClusterIP"}));
    cluster_address(&mut grant, &mut new, None).unwrap();
    let given = new["clusterIP"].as_str().unwrap().to_owned();
    assert!(given.starts_with("10.0.0."));
    assert_eq!(new["clusterIPs"], json!([given]));
    let old = json!({"spec": new});
    let mut changed = spec(json!({"type": "ClusterIP"}));
    keep_allocated(&mut changed, Some(&old));
    cluster_address(&mut grant, &mut changed, Some(&old)).unwrap();
    assert_eq!(changed["clusterIP"], json!(given));
    let (field, _, why) =
        cluster_address(&mut grant, &mut spec(json!({"clusterIP": given})), None).unwrap_err();
    assert_eq!(field, "spec.clusterIPs");
    assert!(why.contains("already allocated"), "{why}");
}

#[test]
fn families_are_those_of_the_cluster() {
    let settled = |value: Value| {
        let mut spec = spec(value);
        families::settle(&mut spec).map(|()| (spec["ipFamilies"].clone(), spec["ipFamilyPolicy"].clone()))
    };
    let both = json!(["IPv4", "IPv6"]);
    for (service, families, policy) in [
        (json!({}), json!(["IPv4"]), "SingleStack"),
        (json!({"ipFamilyPolicy": "PreferDualStack"}), json!(["IPv4"]), "PreferDualStack"),
        (json!({"clusterIP": "None"}), both, "RequireDualStack"),
        (json!({"clusterIP": "None", "selector": {"a": "b"}}), json!(["IPv4"]), "SingleStack"),
    ] {
        assert_eq!(settled(service.clone()), Ok((families, json!(policy))), "{service}");
    }
    for (service, fields) in [
        (json!({"ipFamilies": ["IPv6"]}), &["spec.ipFamilies[0]"][..]),
        (json!({"ipFamilyPolicy": "RequireDualStack"}), &["spec.ipFamilyPolicy"]),
        (json!({"ipFamilies": ["IPv4", "IPv6"]}), &["spec.ipFamilyPolicy"]),
        (json!({"clusterIPs": ["fd00::1"], "clusterIP": "fd00::1"}), &["spec.clusterIPs[0]"]),
        (
            json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "RequireDualStack"}),
            &["spec.ipFamilyPolicy", "spec.ipFamilies[0]"],
        ),
    ] {
        let troubles = settled(service.clone()).unwrap_err();
        let found: Vec<&str> = troubles.iter().map(|(field, ..)| field.as_str()).collect();
        assert_eq!(found, fields, "{service}");
    }
}

#[test]
fn headless_services_have_no_address() {
    let mut headless = spec(json!({"clusterIP": "None"}));
    cluster_address(&mut addresses().grant(), &mut headless, None).unwrap();
    assert_eq!(headless["clusterIPs"], json!(["None"]));
}

#[test]
fn node_ports_are_allocated_kept_and_validated() {
    let addresses = addresses();
    let mut grant = addresses.grant();
    let mut new = spec(json!({"type": "NodePort", "ports": [
        {"port": 80, "nodePort": 30080}, {"port": 443}, {"port": 80, "protocol": "UDP", "nodePort": 30080},
    ]}));
    node_ports(&mut grant, &mut new, None).unwrap();
    assert!(port_number(&new["ports"][1], "nodePort").is_some());
    let old = json!({"spec": new});
    let mut changed = spec(json!({"type": "NodePort", "ports": [{"port": 443}]}));
    keep_allocated(&mut changed, Some(&old));
    node_ports(&mut grant, &mut changed, Some(&old)).unwrap();
    assert_eq!(changed["ports"][0]["nodePort"], old["spec"]["ports"][1]["nodePort"]);
    let mut taken = spec(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30080}]}));
    assert_eq!(node_ports(&mut grant, &mut taken, None).unwrap_err().0, "spec.ports[0].nodePort");
    let mut inner = spec(json!({"type": "ClusterIP", "ports": [{"port": 1}]}));
    node_ports(&mut grant, &mut inner, None).unwrap();
    assert_eq!(inner["ports"][0].get("nodePort"), None);
}

#[test]
fn requested_ports_are_not_allocated_at_random() {
    let addresses = addresses();
    let mut others = addresses.grant();
    // All but two ports are in use.
    NODE_PORTS.skip(2).for_each(|port| others.this_port(port).unwrap());
    let mut balancer = spec(json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000, "ports": [{"port": 80}],
    }));
    node_ports(&mut addresses.grant(), &mut balancer, None).unwrap();
    assert_eq!(
        (&balancer["ports"][0]["nodePort"], &balancer["healthCheckNodePort"]),
        (&json!(30001), &json!(30000))
    );
}

#[test]
fn allocations_of_failed_writes_are_released() {
    let addresses = addresses();
    let mut refused = addresses.grant();
    refused.this_port(30080).unwrap();
    assert!(addresses.grant().this_port(30080).is_err());
    drop(refused);
    let mut kept = addresses.grant();
    kept.this_port(30080).unwrap();
    kept.keep();
    assert!(addresses.grant().this_port(30080).is_err());
    addresses.release(&json!({"spec": {"ports": [{"nodePort": 30080}]}}));
    assert!(addresses.grant().this_port(30080).is_ok());
}
