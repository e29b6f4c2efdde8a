//! The upstream DNS server for everything outside the cluster.

use std::net::SocketAddr;

use anyhow::Result;
use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tombolo_testkit::bind_both;
use tombolo_tests::network::serve_each;

/// Answers with one address for every name, except names that begin with `missing`. It stops when dropped.
pub(crate) struct Elsewhere {
    pub(crate) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Elsewhere {
    pub(crate) async fn start() -> Result<Self> {
        let (udp, tcp) = bind_both()?;
        let (udp, tcp) = (UdpSocket::from_std(udp)?, TcpListener::from_std(tcp)?);
        let address = tcp.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = udp.recv_from(&mut buffer).await {
                if let Some(answer) = answer(&buffer[..length]) {
                    let _ = udp.send_to(&answer, peer).await;
                }
            }
        });
        tasks.spawn(serve_each(tcp, answer_each, drop));
        Ok(Self { address, _tasks: tasks })
    }
}

async fn answer_each(mut stream: TcpStream) {
    while let Ok(length) = stream.read_u16().await {
        let mut packet = vec![0; usize::from(length)];
        if stream.read_exact(&mut packet).await.is_err() {
            return;
        }
        let Some(answer) = answer(&packet) else { return };
        let framed = [&(answer.len() as u16).to_be_bytes(), answer.as_slice()].concat();
        if stream.write_all(&framed).await.is_err() {
            return;
        }
    }
}

fn answer(packet: &[u8]) -> Option<Vec<u8>> {
    let asked = Message::from_vec(packet).ok()?;
    let query = asked.queries.first()?.clone();
    let mut reply = Message::response(asked.metadata.id, OpCode::Query);
    reply.metadata.recursion_desired = asked.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    if let Some(edns) = asked.edns {
        reply.set_edns(edns);
    }
    let missing = query.name().to_ascii().starts_with("missing");
    let nothing = query.query_type() != RecordType::A;
    if missing {
        reply.metadata.response_code = ResponseCode::NXDomain;
    }
    if missing || nothing {
        let zone = Name::from_ascii("example.").ok()?;
        let soa = SOA::new(zone.clone(), zone.clone(), 1, 1, 1, 1, 30);
        reply.add_authority(Record::from_rdata(zone, 30, RData::SOA(soa)));
    } else {
        let data = RData::A(A([192, 0, 2, 1].into()));
        reply.add_answer(Record::from_rdata(query.name().clone(), 30, data));
    }
    reply.add_query(query);
    reply.to_vec().ok()
}
