//! Accepting connections, and relaying them.

use std::future::Future;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Serves every connection of a listener. `spawned` gets the handle of each. All of them end with this future.
pub async fn serve_each<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
    spawned: impl Fn(AbortHandle),
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        spawned(connections.spawn(serve(stream)));
        while connections.try_join_next().is_some() {}
    }
}

/// Relays a connection to the first of these addresses that answers.
pub(crate) async fn relay(mut client: TcpStream, targets: Vec<SocketAddr>) {
    for target in targets {
        if let Ok(mut server) = TcpStream::connect(target).await {
            // Either end may close the connection, as on any network.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            return;
        }
    }
}
