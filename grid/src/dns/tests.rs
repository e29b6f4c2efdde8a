use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::endpoints::ServiceName;
use crate::hosts::{GridName, Hosts, Names};

fn service(spec: &Value) -> Service {
    Service::of(json!({"metadata": {"name": "s"}, "spec": spec}).to_string().as_bytes()).unwrap()
}

fn slice(endpoints: &Value, ports: &Value) -> Slice {
    let object = json!({"metadata": {"name": "e"}, "endpoints": endpoints, "ports": ports});
    Slice::of(object.to_string().as_bytes()).unwrap()
}

fn name(name: &str) -> ServiceName {
    ServiceName::new("shop", name)
}

fn known() -> Zone {
    let mut zone = Zone::default();
    for part in [Part::Namespaces, Part::Services, Part::Slices] {
        zone.open(part);
    }
    zone.set_namespace("shop", true);
    zone
}

fn addresses(finding: &Finding<'_>) -> Vec<String> {
    match finding {
        Finding::NamedAddresses(named_addresses) => {
            named_addresses.addresses().map(|address| address.to_string()).collect()
        }
        other => panic!("{other:?}"),
    }
}

const HTTP: &str = r#"[{"name": "http", "protocol": "TCP", "port": 80}]"#;

fn http() -> Value {
    serde_json::from_str(HTTP).unwrap()
}

#[test]
fn unsynced_name_is_unknown_not_missing() {
    let mut zone = Zone::default();
    zone.set_namespace("shop", true);
    zone.open(Part::Namespaces);
    zone.open(Part::Slices);
    assert_eq!(zone.find("web.shop.svc"), Finding::Unknown);
    assert_eq!(zone.find("other.svc"), Finding::Unknown);
    zone.open(Part::Services);
    assert_eq!(zone.find("web.shop.svc"), Finding::NoName);
    assert_eq!(zone.find("other.svc"), Finding::NoName);
}

#[test]
fn names_above_services_exist_without_records() {
    let zone = known();
    for name in ["", "svc", "pod", "shop.svc", "shop.pod"] {
        assert_eq!(zone.find(name), Finding::Empty, "{name}");
    }
    for name in ["shop", "com", "web.shop.other", "a.b.c.web.shop.svc", "example.com.shop.svc", "web.svc"] {
        assert_eq!(zone.find(name), Finding::NoName, "{name}");
    }
    assert_eq!(zone.find("dns-version"), Finding::Version);
    assert_eq!(zone.find("x.dns-version"), Finding::NoName);
}

#[test]
fn service_resolves_to_its_addresses_and_labelled_endpoints() {
    let mut zone = known();
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}, {"name": "dns", "protocol": "UDP", "port": 53}]);
    zone.set_service(
        &name("web"),
        Some(service(
            &json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": ports}),
        )),
    );
    let endpoints = json!([{"addresses": ["10.0.0.1"], "hostname": "One"}, {"addresses": ["fd00::"]}]);
    zone.set_slice("shop", "web-1", Some(("web", slice(&endpoints, &http()))));
    let Finding::NamedAddresses(named_addresses) = zone.find("web.shop.svc") else {
        panic!("it has addresses")
    };
    assert_eq!(
        named_addresses.addresses().map(|one| one.to_string()).collect::<Vec<_>>(),
        ["10.96.0.1", "fd00::1"]
    );
    assert_eq!((named_addresses.len(), named_addresses.iter().count()), (4, 4), "once for each port");
    assert_eq!(addresses(&zone.find("_dns._udp.web.shop.svc")), ["10.96.0.1", "fd00::1"]);
    assert_eq!(addresses(&zone.find("dns.udp.web.shop.svc")), ["10.96.0.1", "fd00::1"]);
    assert_eq!(zone.find("_dns._tcp.web.shop.svc"), Finding::NoName);
    assert_eq!(addresses(&zone.find("one.web.shop.svc")), ["10.0.0.1"]);
    assert_eq!(addresses(&zone.find("fd00--0.web.shop.svc")), ["fd00::"]);
    assert_eq!(zone.find("10-0-0-1.web.shop.svc"), Finding::NoName, "it has a hostname");
    zone.set_service(&name("web"), Some(service(&json!({"clusterIP": "", "ports": ports}))));
    assert_eq!(zone.find("web.shop.svc"), Finding::Empty, "it has no address yet");
}

#[test]
fn headless_service_resolves_to_ready_endpoints() {
    let mut zone = known();
    zone.set_service(&name("db"), Some(service(&json!({"clusterIP": "None"}))));
    assert_eq!(zone.find("db.shop.svc"), Finding::NoName, "as in CoreDNS, without endpoints");
    let endpoints = json!([
        {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
        {"addresses": ["10.0.0.3"], "conditions": {}},
        {"addresses": ["10.0.0.4", "no address"]},
    ]);
    zone.set_slice("shop", "db-1", Some(("db", slice(&endpoints, &Value::Null))));
    assert_eq!(addresses(&zone.find("db.shop.svc")), ["10.0.0.1", "10.0.0.3", "10.0.0.4"]);
    let Finding::NamedAddresses(named_addresses) = zone.find("10-0-0-3.db.shop.svc") else {
        panic!("it is ready")
    };
    let named = named_addresses.iter().next().unwrap();
    assert_eq!((named.port, named.label.as_deref()), (None, Some("10-0-0-3")));
    // The slice moves to another Service, and is then removed.
    zone.set_slice("shop", "db-1", Some(("other", slice(&endpoints, &Value::Null))));
    assert_eq!(zone.find("db.shop.svc"), Finding::NoName);
    zone.set_service(&name("other"), Some(service(&json!({"clusterIP": "None"}))));
    assert_eq!(addresses(&zone.find("other.shop.svc")).len(), 3);
    zone.set_slice("shop", "db-1", None);
    assert_eq!(zone.find("other.shop.svc"), Finding::NoName);
}

#[test]
fn external_names_are_names() {
    let mut zone = known();
    let external =
        |target: &str| service(&json!({"type": "ExternalName", "externalName": target, "clusterIP": ""}));
    zone.set_service(&name("out"), Some(external("Example.ORG.")));
    assert_eq!(zone.find("out.shop.svc"), Finding::External("example.org"));
    assert_eq!(zone.find("_http._tcp.out.shop.svc"), Finding::NoName);
    assert_eq!(zone.find("one.out.shop.svc"), Finding::NoName);
    for target in ["192.0.2.1", "fd00::1", ""] {
        zone.set_service(&name("out"), Some(external(target)));
        assert_eq!(zone.find("out.shop.svc"), Finding::NoName, "{target}");
    }
}

#[test]
fn names_of_pods_are_their_addresses() {
    let zone = known();
    let pod = |text: &str| Finding::Pod(text.parse().unwrap());
    assert_eq!(zone.find("10-0-0-1.shop.pod"), pod("10.0.0.1"));
    assert_eq!(zone.find("fd00--1.shop.pod"), pod("fd00::1"));
    assert_eq!(zone.find("nonsense.shop.pod"), Finding::NoName);
    assert_eq!(zone.find("10-0-0-1.elsewhere.pod"), Finding::NoName);
}

#[test]
fn uniform_names_come_first_and_are_unknown_until_they_are_known() {
    let mut zone = known();
    let body = json!({"metadata": {"name": "db", "labels": {"superedge.io/grid-uniq-key": "zone"}}, "spec": {"clusterIP": "None"}});
    zone.set_service(&name("db"), Some(Service::of(body.to_string().as_bytes()).unwrap()));
    zone.set_service(&name("plain"), Some(service(&json!({"clusterIP": "None"}))));
    assert_eq!(zone.find("db-0.db.shop.svc"), Finding::Unknown);
    assert_eq!(zone.find("db-0.plain.shop.svc"), Finding::NoName, "no grid has it");
    let mut hosts = Hosts::new("cluster.local");
    let address = "10.0.0.1".parse().unwrap();
    let names = Names {
        service: "db".to_owned(),
        addresses: BTreeMap::from([("db-0".to_owned(), BTreeSet::from([address]))]),
    };
    hosts.set(GridName { namespace: "shop".to_owned(), name: "db".to_owned() }, Some(names));
    zone.set_uniform(&hosts);
    assert_eq!(zone.find("db-0.db.shop.svc"), Finding::Uniform(&[address]));
    assert_eq!(zone.find("db-1.db.shop.svc"), Finding::NoName);
}

#[test]
fn reverse_lookup_prefers_services_over_endpoints() {
    let mut zone = known();
    let address = "10.0.0.1".parse().unwrap();
    let endpoints = json!([{"addresses": ["10.0.0.1"], "hostname": "one"}]);
    zone.set_slice("shop", "db-1", Some(("db", slice(&endpoints, &http()))));
    zone.set_slice("shop", "web-1", Some(("web", slice(&json!([{"addresses": ["10.0.0.1"]}]), &http()))));
    let owner = |label: Option<&str>, service: &str| Owner {
        label: label.map(str::to_owned),
        service: name(service),
    };
    assert_eq!(zone.owners(address, 16), [owner(Some("one"), "db"), owner(Some("10-0-0-1"), "web")]);
    assert_eq!(zone.owners(address, 1), [owner(Some("one"), "db")]);
    zone.set_service(&name("vip"), Some(service(&json!({"clusterIP": "10.0.0.1"}))));
    assert_eq!(zone.owners(address, 16), [owner(None, "vip")]);
    zone.set_service(&name("vip"), None);
    zone.set_slice("shop", "db-1", None);
    zone.set_slice("shop", "web-1", None);
    assert_eq!(zone.owners(address, 16), []);
    assert!(zone.is_bare(), "no record of removed objects is left: {zone:?}");
}

/// 20,000 ports on each of 200 pods: four million places.
#[test]
fn query_does_not_build_ports_times_endpoints() {
    if !alone(module_path!(), "query_does_not_build_ports_times_endpoints") {
        return;
    }
    let mut zone = known();
    zone.set_service(&name("db"), Some(service(&json!({"clusterIP": "None"}))));
    let endpoints: Vec<Value> = (0..200).map(|pod| json!({"addresses": [format!("10.0.0.{pod}")]})).collect();
    for number in 0..200 {
        let port = |port| json!({"name": format!("p{number}-{port}"), "protocol": "TCP", "port": port});
        let ports: Vec<Value> = (1..=100).map(port).collect();
        zone.set_slice(
            "shop",
            &format!("db-{number}"),
            Some(("db", slice(&json!(endpoints), &json!(ports)))),
        );
    }
    let growth = Growth::begin();
    for (asked, all) in [("db", 4_000_000), ("_p7-42._tcp.db", 200), ("10-0-0-7.db", 20_000)] {
        let asked = format!("{asked}.shop.svc");
        let Finding::NamedAddresses(named_addresses) = zone.find(&asked) else { panic!("{asked}") };
        assert_eq!(named_addresses.len(), all, "{asked}");
        assert_eq!(named_addresses.iter().take(100).count(), 100, "{asked}");
        let addresses: BTreeSet<_> = named_addresses.addresses().collect();
        assert_eq!(addresses.len(), if asked.starts_with("10-0-0-7") { 1 } else { 200 }, "{asked}");
    }
    assert_eq!(zone.find("_p7-142._tcp.db.shop.svc"), Finding::NoName);
    assert!(growth.most() < 4 * 1024 * 1024, "{} bytes", growth.most());
}

/// Input that Kubernetes' validation would refuse takes no memory here.
#[test]
fn slices_beyond_the_limit_of_kubernetes_are_ignored() {
    let read = |endpoints: usize, addresses: usize, ports: usize| {
        let endpoint = json!({"addresses": vec!["10.0.0.1"; addresses]});
        let object =
            json!({"endpoints": vec![endpoint; endpoints], "ports": vec![json!({"port": 1}); ports]});
        Slice::of(object.to_string().as_bytes()).map(|slice| (slice.endpoints.len(), slice.ports.len()))
    };
    assert_eq!(read(1_000, 1, 100), Ok((1_000, 100)));
    assert_eq!(read(1, 100, 1), Ok((100, 1)));
    for (endpoints, addresses, ports) in [(1_001, 1, 1), (1, 101, 1), (1, 1, 101)] {
        assert!(read(endpoints, addresses, ports).is_err(), "{endpoints} {addresses} {ports}");
    }
    assert_eq!(Slice::of(br#"{"endpoints":null,"ports":null}"#).map(|slice| slice.endpoints.len()), Ok(0));
    assert!(Slice::of(br#"{"endpoints":{}}"#).is_err());
}

/// An address in a slice has 11 bytes of its text; its memory here must not be a multiple of that and the hostname.
#[test]
fn addresses_of_an_endpoint_share_its_hostname() {
    let endpoint = json!({"addresses": ["10.0.0.1", "10.0.0.2"], "hostname": "H".repeat(63)});
    let slice = slice(&json!([endpoint]), &http());
    let [one, two] = &*slice.endpoints else { panic!("{slice:?}") };
    assert!(std::ptr::eq(one.hostname.as_deref().unwrap(), two.hostname.as_deref().unwrap()));
}

proptest! {
    /// A comparison with an address's label agrees with the label that is generated.
    #[test]
    fn labels_of_addresses_are_compared_as_they_are_written(address in any::<std::net::IpAddr>(), other in any::<std::net::IpAddr>()) {
        for address in [address, "fd00::".parse().unwrap(), "::".parse().unwrap(), "::ffff:10.0.0.1".parse().unwrap()] {
            let endpoint = Endpoint { address, hostname: None };
            let label = endpoint.label();
            prop_assert!(endpoint.is_labelled(&label));
            for wrong in [format!("{label}0"), label[1..].to_owned(), label[..label.len() - 1].to_owned(), String::new()] {
                prop_assert!(!endpoint.is_labelled(&wrong), "{} {}", label, wrong);
            }
            let other = Endpoint { address: other, hostname: None };
            prop_assert_eq!(endpoint.is_labelled(&other.label()), label == other.label());
        }
    }

    /// In whatever order changes arrive, the zone ends up like one that received only the result.
    #[test]
    fn result_is_independent_of_the_order_of_changes(
        changes in prop::collection::vec((0u8..3, 0u8..3, 0u8..3, any::<bool>()), 0..40),
    ) {
        let mut zone = known();
        let mut services: BTreeMap<u8, u8> = BTreeMap::new();
        let mut slices: BTreeMap<u8, (u8, u8)> = BTreeMap::new();
        let content = |variant: u8| slice(&json!([{"addresses": [format!("10.0.0.{variant}")]}]), &http());
        let headless = |variant: u8| service(&json!({"clusterIP": if variant == 0 { "None".to_owned() } else { format!("10.0.0.{variant}") }}));
        for (object, other, variant, gone) in changes {
            let (slice, target) = (format!("e{object}"), format!("s{other}"));
            match (variant, gone) {
                (0, true) => { zone.set_service(&name(&target), None); services.remove(&other); }
                (0, false) => { zone.set_service(&name(&target), Some(headless(object))); services.insert(other, object); }
                (_, true) => { zone.set_slice("shop", &slice, None); slices.remove(&object); }
                (_, false) => {
                    zone.set_slice("shop", &slice, Some((&target, content(variant))));
                    slices.insert(object, (other, variant));
                }
            }
        }
        let mut fresh = known();
        for (other, object) in &services { fresh.set_service(&name(&format!("s{other}")), Some(headless(*object))); }
        for (object, (other, variant)) in &slices {
            fresh.set_slice("shop", &format!("e{object}"), Some((&format!("s{other}"), content(*variant))));
        }
        for number in 0..3 {
            let asked = format!("s{number}.shop.svc");
            prop_assert_eq!(zone.find(&asked), fresh.find(&asked));
            let address = format!("10.0.0.{number}").parse().unwrap();
            let sorted = |zone: &Zone| {
                let mut all: Vec<String> = zone.owners(address, 16).iter().map(|owner| format!("{owner:?}")).collect();
                all.sort();
                all
            };
            prop_assert_eq!(sorted(&zone).len().min(1), sorted(&fresh).len().min(1));
        }
    }
}
