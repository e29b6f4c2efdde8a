//! Compares the agent's DNS server with stock CoreDNS: the same queries to both, about the same objects.

use std::net::SocketAddr;

use hickory_proto::rr::RecordType;
use tombolo_testkit::{cluster_or_skip, free_port, wait_for};
use tombolo_tests::network::CoreDns;
use tombolo_tests::world::DEADLINE;

use crate::ask::{Said, Way, addresses, ask, leads_to};
use crate::cluster::Cluster;
use crate::differences::{DIFFERENCES, Difference};
use crate::elsewhere::Elsewhere;

const TYPES: [RecordType; 10] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::TXT,
    RecordType::CNAME,
    RecordType::PTR,
    RecordType::MX,
    RecordType::SOA,
    RecordType::HTTPS,
    RecordType::ANY,
];

/// Names below the cluster domain.
const NAMES: [&str; 47] = [
    "",
    "svc",
    "pod",
    "nonsense",
    "shop.svc",
    "shop.pod",
    "elsewhere.svc",
    "elsewhere.pod",
    "web.shop.svc",
    "WEB.Shop.svc",
    "web.elsewhere.svc",
    "missing.shop.svc",
    "_http._tcp.web.shop.svc",
    "_HTTP._TCP.web.shop.svc",
    "_metrics._tcp.web.shop.svc",
    "_http._udp.web.shop.svc",
    "http.tcp.web.shop.svc",
    "_missing._tcp.web.shop.svc",
    "a._http._tcp.web.shop.svc",
    "10-1-0-1.web.shop.svc",
    "10-2-0-1.web.shop.svc",
    "plain.shop.svc",
    "10-1-0-3.plain.shop.svc",
    "db.shop.svc",
    "db-0.db.shop.svc",
    "db-1.db.shop.svc",
    "db-2.db.shop.svc",
    "db-a-0.db.shop.svc",
    "db-b-0.db.shop.svc",
    "_http._tcp.db.shop.svc",
    "six.shop.svc",
    "fd00-1--20.six.shop.svc",
    "fd00-1--0.six.shop.svc",
    "_http._tcp.six.shop.svc",
    "nobody.shop.svc",
    "bare.shop.svc",
    "out.shop.svc",
    "gone.shop.svc",
    "inner.shop.svc",
    "dangling.shop.svc",
    "itself.shop.svc",
    "ping.shop.svc",
    "number.shop.svc",
    "twice.shop.svc",
    "10-9-8-7.shop.pod",
    "nonsense.shop.pod",
    "dns-version",
];

/// Whole names.
const OTHERS: [&str; 9] = [
    "www.example",
    "missing.example",
    "www.example.shop.svc.cluster.local",
    "www.example.svc.cluster.local",
    "www.example.cluster.local",
    "20.0.1.10.in-addr.arpa",
    "30.0.1.10.in-addr.arpa",
    "66.66.66.10.in-addr.arpa",
    "1.10.in-addr.arpa",
];

fn questions(cluster_ip: &str) -> Vec<(String, RecordType, Way)> {
    let domain = |name: &str| {
        if name.is_empty() { "cluster.local".to_owned() } else { format!("{name}.cluster.local") }
    };
    let reverse: Vec<&str> = cluster_ip.rsplit('.').collect();
    let names = NAMES.into_iter().map(domain).chain(OTHERS.map(str::to_owned));
    let names = names.chain([format!("{}.in-addr.arpa", reverse.join("."))]);
    let six = "0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.d.f.ip6.arpa".to_owned();
    let mut all: Vec<(String, RecordType, Way)> = names
        .chain([six])
        .flat_map(|name| TYPES.map(|record_type| (name.clone(), record_type, Way::Udp)))
        .collect();
    all.push(("cluster.local".to_owned(), RecordType::NS, Way::Udp));
    for name in ["cluster.local", "web.shop.svc.cluster.local", "www.example"] {
        all.push((name.to_owned(), RecordType::AXFR, Way::Tcp));
    }
    for way in [Way::Udp, Way::Edns(512), Way::Edns(1232), Way::Edns(4096), Way::Tcp] {
        for (name, record_type) in [
            ("web.shop.svc.cluster.local", RecordType::A),
            ("many.shop.svc.cluster.local", RecordType::A),
            ("missing.shop.svc.cluster.local", RecordType::A),
            ("db-0.db.shop.svc.cluster.local", RecordType::A),
            ("www.example", RecordType::A),
        ] {
            all.push((name.to_owned(), record_type, way));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_dns_servers_answer_alike() {
    cluster_or_skip!("both_dns_servers_answer_alike");
    let elsewhere = Elsewhere::start().await.unwrap();
    let dns: SocketAddr = format!("127.0.0.1:{}", free_port().unwrap()).parse().unwrap();
    let cluster = Cluster::start(dns, elsewhere.address).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let coredns_address: SocketAddr = format!("127.0.0.1:{}", free_port().unwrap()).parse().unwrap();
    let coredns =
        CoreDns::start(&cluster.coredns(coredns_address, elsewhere.address, false), folder.path()).unwrap();
    for server in [dns, coredns_address] {
        leads_to(server, "db-0.db.shop.svc.cluster.local", &["10.1.0.10"]).await;
        leads_to(server, "bare.shop.svc.cluster.local", &["10.1.0.30"]).await;
        wait_for("all endpoints", DEADLINE, || async {
            let found = addresses(server, "many.shop.svc.cluster.local").await.len();
            if found == 90 { Ok(()) } else { Err(format!("{found}; {}", coredns.log())) }
        })
        .await;
    }
    // With both servers, a Service that is closed inside the unit has only the pods of this unit.
    for server in [dns, coredns_address] {
        leads_to(server, "db.shop.svc.cluster.local", &["10.1.0.10", "10.1.0.11"]).await;
    }

    let questions = questions(&cluster.cluster_ip("web").await);
    let (mut unexpected, mut seen) = (Vec::new(), [0_usize; DIFFERENCES.len()]);
    for (name, record_type, way) in &questions {
        let ours = ask(dns, name, *record_type, *way).await;
        let theirs = ask(coredns_address, name, *record_type, *way).await;
        let named = DIFFERENCES.iter().position(|Difference { shows, .. }| shows(name, *record_type, *way));
        match (same(&ours, &theirs), named) {
            (true, None) => {}
            (false, Some(index)) => seen[index] += 1,
            // A named difference is about a kind of query; some of these queries have equal answers.
            (true, Some(_)) => {}
            (false, None) => unexpected
                .push(format!("{name} {record_type} {way:?}\n  ours   {ours:?}\n  coredns {theirs:?}")),
        }
    }
    println!("{} questions to both, differences seen: {seen:?}", questions.len());
    assert!(unexpected.is_empty(), "{} answers differ:\n{}", unexpected.len(), unexpected.join("\n"));
    for (difference, seen) in DIFFERENCES.iter().zip(seen) {
        assert!(seen > 0, "the difference no longer occurs: {}", difference.name);
    }
}

fn same(ours: &anyhow::Result<Said>, theirs: &anyhow::Result<Said>) -> bool {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => ours == theirs,
        _ => false,
    }
}
