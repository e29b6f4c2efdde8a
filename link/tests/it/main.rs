//! Links over real loopback sockets and in memory.

mod fallback;
mod frames;
mod hostile;
mod lanes;
mod memory;
mod pki;
mod sessions;
mod stock_cloud;
mod strangers;
mod tls;
mod upgrades;
mod world;
