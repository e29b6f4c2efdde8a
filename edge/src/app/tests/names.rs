//! Tests that the settings of names reach the hosts file and the DNS server.

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::net::UdpSocket;

use super::*;

const UNIFORM: &str = "db-0.db.default.svc.edge.local";

/// A grid with a pod in each of two units, of which this node is in the first.
fn with_grid(cloud: &FakeCloud) {
    let put = |group: &str, resource: &str, namespace: &str, name: &str, object: Value| {
        let key = ObjectKey::new(Resource::new(group, "v1", resource), namespace, name);
        cloud.put(&key, &format!("{resource}-{name}"), &object, &[]);
    };
    put("", "nodes", "", "edge-a", json!({"metadata": {"labels": {"zone": "a"}}}));
    put("", "nodes", "", "edge-b", json!({"metadata": {"labels": {"zone": "b"}}}));
    put("", "namespaces", "", "default", json!({}));
    let labels = json!({"labels": {"superedge.io/grid-uniq-key": "zone"}});
    put("", "services", "default", "db", json!({"metadata": labels, "spec": {"clusterIP": "10.96.0.7"}}));
    let spec = json!({"gridUniqKey": "zone", "template": {"serviceName": "db"}});
    put(
        "superedge.io",
        "statefulsetgrids",
        "default",
        "db",
        json!({"spec": spec, "status": {"owned": ["a", "b"]}}),
    );
    let endpoint = |pod: &str, address: &str, node: &str| json!({"addresses": [address], "nodeName": node, "targetRef": {"kind": "Pod", "name": pod}});
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "db"}}, "addressType": "IPv4",
        "endpoints": [endpoint("db-a-0", "10.0.0.1", "edge-a"), endpoint("db-b-0", "10.0.0.2", "edge-b")],
    });
    put("discovery.k8s.io", "endpointslices", "default", "db-1", slice);
}

/// Code and addresses of an answer.
async fn ask(server: SocketAddr, name: &str) -> (ResponseCode, Vec<String>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii(format!("{name}.")).unwrap(), RecordType::A));
    socket.send(&question.to_vec().unwrap()).await.unwrap();
    let mut buffer = [0; 1232];
    let length = tokio::time::timeout(DEADLINE, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    let address = |data: &RData| match data {
        RData::A(A(address)) => Some(address.to_string()),
        _ => None,
    };
    let addresses = answer.answers.iter().filter_map(|record| address(&record.data)).collect();
    (answer.metadata.response_code, addresses)
}

#[tokio::test]
async fn hosts_file_and_dns_follow_the_settings() {
    let (folder, cloud) = (tempfile::tempdir().unwrap(), FakeCloud::new());
    with_grid(&cloud);
    let file = folder.path().join("names");
    let agent = Agent::start_with(folder.path(), &cloud, Duration::ZERO, |config| {
        config.dns.hosts_path = Some(file.clone());
        config.dns.cluster_domain = "edge.local".to_owned();
        config.dns.full_sync_seconds = 1;
        config.dns.address = Some("127.0.0.1:0".parse().unwrap());
        config.dns.upstreams = Some(Vec::new());
        // Reports about the node would cause frequent comparisons of the whole file.
        config.node.register = false;
    })
    .await;
    let server = agent.dns.unwrap();
    let says = async |expected: &str| std::fs::read_to_string(&file).unwrap_or_default() == expected;
    let line = format!("10.0.0.1 {UNIFORM}\n");
    wait_until("the file", DEADLINE, async || says(&line).await).await;
    wait_until("the uniform name", DEADLINE, async || ask(server, UNIFORM).await.1 == ["10.0.0.1"]).await;
    let service = "db.default.svc.edge.local";
    wait_until("the Service", DEADLINE, async || ask(server, service).await.1 == ["10.96.0.7"]).await;
    let other = ask(server, "db.default.svc.cluster.local").await;
    assert_eq!(other, (ResponseCode::Refused, Vec::new()), "another domain, and no upstream server");
    // By default the file would not be checked so often.
    for _ in 0..3 {
        std::fs::write(&file, "damage").unwrap();
        wait_until("the file to be put right", DEADLINE, async || says(&line).await).await;
    }
    agent.stop().await;
}
