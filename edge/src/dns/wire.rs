//! Sends one query to one upstream server.
//!
//! Packets are forwarded unchanged, so unknown records, signatures and options are preserved. Each query has its own
//! socket, and so a random port chosen by the system, and a random identifier.

use std::net::SocketAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use hickory_proto::op::Query;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::message::{DnsTransport, Question};

/// Largest answer over UDP that is read, in bytes.
const DATAGRAM_MAX: usize = 4096;

/// Queries one server. It is a trait so that tests can use servers without sockets and a virtual clock.
pub(super) trait Exchange: Send + Sync + std::fmt::Debug {
    /// The server's answer to this query. Its identifier is not that of the packet.
    ///
    /// # Errors
    /// The server cannot be reached, or its answer cannot be read. Without an answer the future waits for ever.
    fn exchange<'a>(
        &'a self,
        server: SocketAddr,
        packet: &'a [u8],
        question: &'a Question,
        transport: DnsTransport,
    ) -> BoxFuture<'a, std::io::Result<Vec<u8>>>;
}

/// The network.
#[derive(Debug)]
pub(super) struct Wire;

impl Exchange for Wire {
    fn exchange<'a>(
        &'a self,
        server: SocketAddr,
        packet: &'a [u8],
        question: &'a Question,
        transport: DnsTransport,
    ) -> BoxFuture<'a, std::io::Result<Vec<u8>>> {
        async move {
            let mut request = packet.to_vec();
            request[..2].copy_from_slice(&rand::random::<[u8; 2]>());
            match transport {
                DnsTransport::Udp => over_udp(server, &request, question).await,
                DnsTransport::Tcp => over_tcp(server, &request, question).await,
            }
        }
        .boxed()
    }
}

/// The local address to send from.
fn any_of(server: SocketAddr) -> SocketAddr {
    match server {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

async fn over_udp(server: SocketAddr, request: &[u8], question: &Question) -> std::io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(any_of(server)).await?;
    // On a connected socket the system drops packets of other senders.
    socket.connect(server).await?;
    socket.send(request).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if is_answer(&buffer[..length], request, question) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(server: SocketAddr, request: &[u8], question: &Question) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(request.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), request].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    if !is_answer(&answer, request, question) {
        return Err(std::io::Error::other("the answer does not match the query"));
    }
    Ok(answer)
}

/// Whether a packet answers this question.
fn is_answer(packet: &[u8], request: &[u8], question: &Question) -> bool {
    if packet.len() < 12 || packet[..2] != request[..2] || packet[2] & 0x80 == 0 {
        return false;
    }
    let mut decoder = hickory_proto::serialize::binary::BinDecoder::new(&packet[12..]);
    let asked: Result<Query, _> = hickory_proto::serialize::binary::BinDecodable::read(&mut decoder);
    // A server that could not parse the question answers with an error and does not repeat it.
    let count = u16::from_be_bytes([packet[4], packet[5]]);
    let failed = packet[3] & 0x0f != 0;
    if count == 0 { failed } else { asked.is_ok_and(|asked| asked == question.query) }
}
