//! How one server is asked.
//!
//! Packets are passed on as they are: records, signatures and options that this program does not know arrive unharmed. Each
//! question has a socket of its own, so a port that the system chose at random, and a random identifier.

use std::net::SocketAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use hickory_proto::op::Query;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::message::{Question, Transport};

/// Largest answer over UDP that is read.
const DATAGRAM_MAX: usize = 4096;

/// Asks one server; a trait, so that tests can have servers without sockets, and a clock of their own.
pub(super) trait Exchange: Send + Sync + std::fmt::Debug {
    /// What the server answers to this question, under an identifier that means nothing.
    ///
    /// # Errors
    /// The server cannot be reached, or what it sends cannot be read. It waits for ever where nothing comes.
    fn exchange<'a>(
        &'a self,
        server: SocketAddr,
        packet: &'a [u8],
        question: &'a Question,
        transport: Transport,
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
        transport: Transport,
    ) -> BoxFuture<'a, std::io::Result<Vec<u8>>> {
        async move {
            let mut request = packet.to_vec();
            request[..2].copy_from_slice(&rand::random::<[u8; 2]>());
            match transport {
                Transport::Udp => over_udp(server, &request, question).await,
                Transport::Tcp => over_tcp(server, &request, question).await,
            }
        }
        .boxed()
    }
}

/// Where to send from.
fn any_of(server: SocketAddr) -> SocketAddr {
    match server {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

async fn over_udp(server: SocketAddr, request: &[u8], question: &Question) -> std::io::Result<Vec<u8>> {
    let socket = UdpSocket::bind(any_of(server)).await?;
    // Connected: the system drops what others send.
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
        return Err(std::io::Error::other("the answer is to another question"));
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
    // A server that could not read the question says so and does not repeat it.
    let count = u16::from_be_bytes([packet[4], packet[5]]);
    let failed = packet[3] & 0x0f != 0;
    if count == 0 { failed } else { asked.is_ok_and(|asked| asked == question.query) }
}
