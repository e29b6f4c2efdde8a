//! Links over real loopback sockets and in memory.

mod fallback;
mod frames;
mod hostile;
mod kubeedge_cloud;
mod lanes;
mod memory;
mod pki;
mod sessions;
mod strangers;
mod tls;
mod upgrades;
mod world;
