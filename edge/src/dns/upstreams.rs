//! The upstream DNS servers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::{DNS_PORT, DnsConfig, UPSTREAMS_MAX};

/// How long the content of resolv.conf is cached. It is short because a device may change networks.
const REREAD: Duration = Duration::from_secs(10);

/// Largest file that is read, in bytes.
const FILE_LEN_MAX: u64 = 64 * 1024;

/// The upstream servers, from the settings or from resolv.conf.
#[derive(Debug)]
pub(super) struct Upstreams {
    own: SocketAddr,
    source: UpstreamSource,
}

#[derive(Debug)]
enum UpstreamSource {
    Named(Vec<SocketAddr>),
    File { path: PathBuf, read: Mutex<Option<(Instant, Vec<SocketAddr>)>> },
}

impl Upstreams {
    /// Uses the servers of the settings, or those of the machine's resolv.conf. `own` is the address of this server, to
    /// which it never forwards.
    pub(super) fn new(settings: &DnsConfig, own: SocketAddr) -> Self {
        let source = match &settings.upstreams {
            Some(named) => UpstreamSource::Named(named.iter().map(|upstream| upstream.0).collect()),
            None => UpstreamSource::File { path: settings.resolv_conf.clone(), read: Mutex::default() },
        };
        Self { own, source }
    }

    /// The servers in order of preference.
    pub(super) fn now(&self) -> Vec<SocketAddr> {
        let mut all = match &self.source {
            UpstreamSource::Named(named) => named.clone(),
            UpstreamSource::File { path, read } => {
                let mut read = read.lock();
                let fresh = read.as_ref().filter(|(at, _)| at.elapsed() < REREAD);
                match fresh {
                    Some((_, servers)) => servers.clone(),
                    None => {
                        let servers = in_file(path);
                        *read = Some((Instant::now(), servers.clone()));
                        servers
                    }
                }
            }
        };
        all.retain(|upstream| *upstream != self.own);
        all.truncate(UPSTREAMS_MAX);
        all
    }
}

fn in_file(path: &Path) -> Vec<SocketAddr> {
    let small = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() <= FILE_LEN_MAX);
    let text = if small { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    name_servers(&text)
}

/// The servers that a resolv.conf names (resolv.conf(5)); zones of IPv6 addresses are not supported.
fn name_servers(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        let address: IpAddr = address.parse().ok()?;
        // Resolvers treat an unspecified address as this machine.
        let address = match address {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
            other => other,
        };
        Some(SocketAddr::new(address, DNS_PORT))
    });
    servers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolv_conf_names_servers() {
        let text = "# comment\nsearch example.org\nnameserver 192.0.2.1\n nameserver\tfd00::53 # second\n\
                    nameserver 0.0.0.0\nnameserver nonsense\nnameserver fe80::1%eth0\noptions ndots:5\n";
        let expected = ["192.0.2.1:53", "[fd00::53]:53", "127.0.0.1:53"].map(|text| text.parse().unwrap());
        assert_eq!(name_servers(text), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_is_read_again_and_never_names_this_server() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "nameserver 192.0.2.1\nnameserver 192.0.2.53\n").unwrap();
        let settings = DnsConfig { resolv_conf: file.path().to_owned(), ..DnsConfig::default() };
        let upstreams = Upstreams::new(&settings, "192.0.2.53:53".parse().unwrap());
        assert_eq!(upstreams.now(), ["192.0.2.1:53".parse().unwrap()]);
        std::fs::write(file.path(), "nameserver 192.0.2.7\n").unwrap();
        assert_eq!(upstreams.now(), ["192.0.2.1:53".parse().unwrap()]);
        tokio::time::advance(REREAD).await;
        assert_eq!(upstreams.now(), ["192.0.2.7:53".parse().unwrap()]);
        std::fs::remove_file(file.path()).unwrap();
        tokio::time::advance(REREAD).await;
        assert_eq!(upstreams.now(), []);
    }
}
