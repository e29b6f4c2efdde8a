//! Sends queries to DNS servers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tombolo_testkit::wait_for;
use tombolo_tests::world::DEADLINE;

/// A typical resolver's timeout.
const PATIENCE: Duration = Duration::from_secs(5);

/// The transport of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Udp,
    /// UDP with EDNS and this payload size.
    Edns(u16),
    Tcp,
}

/// The compared parts of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: String,
    pub(crate) authoritative: bool,
    pub(crate) truncated: bool,
    pub(crate) edns: bool,
    /// Records with lower-case names, unordered. Truncated answers contain as many as fit.
    pub(crate) answers: BTreeSet<String>,
    pub(crate) authorities: BTreeSet<String>,
    pub(crate) additionals: BTreeSet<String>,
}

pub(crate) async fn ask(server: SocketAddr, name: &str, record_type: RecordType, way: Way) -> Result<Said> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message
        .add_query(Query::query(Name::from_ascii(format!("{}.", name.trim_end_matches('.')))?, record_type));
    if let Way::Edns(room) = way {
        let mut edns = Edns::new();
        edns.set_max_payload(room);
        message.set_edns(edns);
    }
    let packet = message.to_vec()?;
    let exchange = async {
        match way {
            Way::Tcp => over_tcp(server, &packet).await,
            Way::Udp | Way::Edns(_) => over_udp(server, &packet).await,
        }
    };
    let answer = tokio::time::timeout(PATIENCE, exchange).await.context("no answer")??;
    let answer = Message::from_vec(&answer)?;
    ensure!(answer.metadata.id == message.metadata.id, "the answer belongs to another query");
    ensure!(answer.queries == message.queries, "the answer does not repeat the question: {answer:?}");
    ensure!(answer.metadata.recursion_desired, "the answer does not repeat the flag RD");
    let truncated = answer.metadata.truncation;
    let all = |records: &[Record]| records.iter().map(shown).collect();
    Ok(Said {
        code: answer.metadata.response_code.to_string(),
        authoritative: answer.metadata.authoritative,
        truncated,
        edns: answer.edns.is_some(),
        answers: if truncated { BTreeSet::new() } else { all(&answer.answers) },
        authorities: all(&answer.authorities),
        additionals: if truncated { BTreeSet::new() } else { all(&answer.additionals) },
    })
}

fn shown(record: &Record) -> String {
    let mut record = record.clone();
    // The time of the zone's last change is specific to each server.
    if let RData::SOA(soa) = &mut record.data {
        soa.serial = 0;
    }
    record.to_string().to_ascii_lowercase()
}

async fn over_udp(server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).await?;
    buffer.truncate(length);
    Ok(buffer)
}

async fn over_tcp(server: SocketAddr, packet: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u16(u16::try_from(packet.len())?).await?;
    stream.write_all(packet).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// The addresses of a name, sorted; empty if there are none for any reason.
pub(crate) async fn addresses(server: SocketAddr, name: &str) -> Vec<String> {
    let Ok(said) = ask(server, name, RecordType::A, Way::Tcp).await else { return Vec::new() };
    let records = said.answers.iter().filter_map(|record| record.split_once(" a "));
    let mut all: Vec<String> = records.map(|(_, address)| address.to_owned()).collect();
    all.sort();
    all
}

/// Waits until a name resolves to exactly these addresses.
pub(crate) async fn leads_to(server: SocketAddr, name: &str, expected: &[&str]) {
    wait_for(&format!("{name} to resolve to {expected:?}"), DEADLINE, || async {
        let found = addresses(server, name).await;
        if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}
