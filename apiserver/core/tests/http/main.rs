//! The whole server over real sockets: reads, watches, writes, refusals.

mod clients;
mod discovery;
mod limits;
mod overtaken;
mod protobuf;
mod reads;
mod refused;
mod server;
mod soak;
mod tls;
mod watches;
mod writes;
