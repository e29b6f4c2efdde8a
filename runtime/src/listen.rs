//! Binding sockets with errors that name the setting to change.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use thiserror::Error;
use tokio::net::TcpListener;

/// A listener could not be bound.
#[derive(Debug, Error)]
#[error("cannot listen on {protocol} {address} (setting {setting}): {}", explain(source))]
pub struct ListenError {
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// The address asked for.
    pub address: SocketAddr,
    /// The configuration key or flag that set it.
    pub setting: String,
    /// What the operating system said.
    pub source: io::Error,
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the address is in use; stop the other program or change the setting (port 0 picks a free one)"
                .into()
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address; change the setting".into(),
        io::ErrorKind::PermissionDenied => {
            "permission denied; ports below 1024 need CAP_NET_BIND_SERVICE, or change the setting".into()
        }
        _ => error.to_string(),
    }
}

/// Binds a TCP listener. `setting` is the configuration key or flag that the address came from.
///
/// # Errors
/// [`ListenError`], which says what to change.
pub async fn tcp(setting: &str, address: SocketAddr) -> Result<TcpListener, ListenError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ListenError { protocol: "TCP", address, setting: setting.to_owned(), source })
}

/// Binds a UDP socket. `setting` is the configuration key or flag that the address came from.
///
/// # Errors
/// [`ListenError`], which says what to change.
pub fn udp(setting: &str, address: SocketAddr) -> Result<UdpSocket, ListenError> {
    let bound = UdpSocket::bind(address);
    bound.map_err(|source| ListenError { protocol: "UDP", address, setting: setting.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_used_port_names_the_setting() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let first = tcp("hub.websocket", any).await.unwrap();
        let address = first.local_addr().unwrap();
        let error = tcp("hub.websocket", address).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("TCP {address} (setting hub.websocket): the address is in use")),
            "{text}"
        );

        let first = udp("hub.quic", any).unwrap();
        let error = udp("hub.quic", first.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains("setting hub.quic"), "{error}");
    }

    #[tokio::test]
    async fn a_foreign_address_is_explained() {
        let error = tcp("admin.listen", "192.0.2.1:0".parse().unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("this machine has no such address"), "{error}");
    }
}
