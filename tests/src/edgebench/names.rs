//! Sends queries to the DNS server as fast as it answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use tombolo_cli::process::Process;
use tombolo_testkit::wait_for;
use tombolo_tests::world::DEADLINE;
use tombolo_tests::world::objects::NAMESPACE;

use crate::cluster::SERVICES;

/// Outstanding queries of one client.
const WINDOW: usize = 16;
const CLIENTS: usize = 4;

/// How long a client waits for an answer before it counts the missing ones as lost.
const LOST_AFTER: Duration = Duration::from_millis(200);

pub(crate) struct Names {
    pub(crate) each_cpu_second: f64,
    pub(crate) each_second: f64,
    /// Fraction of the queries that were lost.
    pub(crate) lost: f64,
}

fn packet(service: usize) -> Result<Vec<u8>> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    let name = Name::from_ascii(format!("service-{service}.{NAMESPACE}.svc.cluster.local."))?;
    message.add_query(Query::query(name, RecordType::A));
    Ok(message.to_vec()?)
}

/// Queries the addresses of Services.
pub(crate) async fn measure(server: SocketAddr, agent: Process, time: Duration) -> Result<Names> {
    for service in [0, SERVICES - 1] {
        let asked = packet(service)?;
        wait_for("a name", DEADLINE, || async {
            let answer = one(server, &asked).await.map_err(|error| format!("{error:#}"))?;
            let good = answer.metadata.response_code == ResponseCode::NoError && answer.answers.len() == 1;
            if good { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
    let packets: Vec<Vec<u8>> = (0..SERVICES).map(packet).collect::<Result<_>>()?;
    let (before, began) = (agent.read()?.cpu, Instant::now());
    let clients = (0..CLIENTS).map(|first| client(server, &packets, first * SERVICES / CLIENTS, time));
    let counts = futures::future::try_join_all(clients).await?;
    let (cpu, took) = (agent.read()?.cpu - before, began.elapsed());
    let answered: u64 = counts.iter().map(|(answered, _)| answered).sum();
    let lost: u64 = counts.iter().map(|(_, lost)| lost).sum();
    ensure!(answered > 0, "no query was answered");
    Ok(Names {
        each_cpu_second: answered as f64 / cpu.as_secs_f64(),
        each_second: answered as f64 / took.as_secs_f64(),
        lost: lost as f64 / (answered + lost) as f64,
    })
}

async fn one(server: SocketAddr, packet: &[u8]) -> Result<Message> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = [0; 1500];
    let length = timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await??;
    Ok(Message::from_vec(&buffer[..length])?)
}

/// Keeps a window of queries outstanding. Returns the numbers of queries answered with records and of unanswered ones.
async fn client(server: SocketAddr, packets: &[Vec<u8>], first: usize, time: Duration) -> Result<(u64, u64)> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    socket.connect(server).await?;
    let mut questions = packets.iter().cycle().skip(first);
    let (mut under_way, mut answered, mut lost) = (0, 0, 0);
    let (began, mut buffer) = (Instant::now(), [0; 1500]);
    while began.elapsed() < time {
        while under_way < WINDOW {
            let Some(question) = questions.next() else { break };
            socket.send(question).await?;
            under_way += 1;
        }
        match timeout(LOST_AFTER, socket.recv(&mut buffer)).await {
            Ok(length) => {
                // The answer count in the header: a refusal would be faster than an answer.
                ensure!(length? > 12 && buffer[7] == 1, "an answer without a record");
                under_way -= 1;
                answered += 1;
                while let Ok(length) = socket.try_recv(&mut buffer) {
                    ensure!(length > 12 && buffer[7] == 1, "an answer without a record");
                    under_way -= 1;
                    answered += 1;
                }
            }
            Err(_) => {
                lost += under_way as u64;
                under_way = 0;
            }
        }
    }
    Ok((answered, lost))
}
