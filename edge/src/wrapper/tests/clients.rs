//! Tests of clients that come and go, and of clients that do not read.

use std::net::SocketAddr;
use std::sync::Weak;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpSocket, TcpStream};
use tombolo_apicore::server::WRITE_STALL_MAX;

use super::http_api::{Served, settings};
use super::*;
use crate::config::{WATCH_QUEUE, WrapperConfig};
use crate::wrapper::{CONNECTIONS_MAX, Wrapper};

const SERVICES: &str = "/api/v1/services";

/// Sends a request on a socket and checks the first line of the answer.
async fn ask(mut stream: TcpStream, path: &str) -> Lines<BufReader<TcpStream>> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    let first = tokio::time::timeout(DEADLINE, lines.next_line()).await.expect("an answer").unwrap();
    assert_eq!(first.as_deref(), Some("HTTP/1.1 200 OK"), "{path}");
    lines
}

/// The next event; none at the end.
async fn event(lines: &mut Lines<BufReader<TcpStream>>) -> Option<Value> {
    let next = async {
        // Headers and chunk sizes are between the events; an empty chunk is the last.
        while let Ok(Some(line)) = lines.next_line().await
            && line != "0"
        {
            if let Ok(event @ Value::Object(_)) = serde_json::from_str(&line) {
                return Some(event);
            }
        }
        None
    };
    tokio::time::timeout(DEADLINE, next).await.expect("an event or the end")
}

/// Row W19 of docs/reference/superedge.md#list-and-watch-rows: however a watch ends, its resources are freed. There are
/// more watches than slots for watches and for connections.
#[tokio::test]
async fn ended_watches_leave_no_state() {
    let served = Served::with_cluster(&WrapperConfig { debug: true, ..settings() }).await;
    let newest = served.revision(SERVICES).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for number in 0..=CONNECTIONS_MAX {
        let stream = TcpStream::connect(served.address).await.unwrap();
        let query = match number % 4 {
            0 => "watch=true".to_owned(),
            1 => format!("watch=true&resourceVersion={newest}&allowWatchBookmarks=true"),
            // The server ends this watch, and the client closes the connection.
            2 => "watch=true&resourceVersion=1".to_owned(),
            _ => {
                stream.set_zero_linger().unwrap();
                "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()
            }
        };
        drop(ask(stream, &format!("{SERVICES}?{query}")).await);
    }
    tombolo_testkit::wait_for("nothing to be left", DEADLINE, || async {
        let (_, dump) = served.get("/debug/dump").await;
        let (watches, tasks) = (&dump["kinds"]["services"]["watches"], tasks());
        let left = || format!("{watches} watches, {tasks} tasks, before {before}");
        (*watches == 0 && tasks <= before).then_some(()).ok_or_else(left)
    })
    .await;
    served.end().await;
}

/// Buffer size of the slow clients' sockets. It is small, so that little data fills them.
const SOCKET_LEN: u32 = 8 * 1024;

/// A wrapper with small sockets, over one Service.
async fn with_small_sockets(queue: usize) -> Served {
    let settings = WrapperConfig { watch_queue: queue, ..settings() };
    let mut wrapper = Wrapper::bind(&settings).await.unwrap().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    // Accepted sockets inherit the buffer sizes of the listener.
    socket.set_send_buffer_size(SOCKET_LEN).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    wrapper.listener = socket.listen(16).unwrap();
    wrapper.address = wrapper.listener.local_addr().unwrap();
    let source = Source::new();
    change(&source, 0);
    let served = Served::start_on(wrapper, SystemTime::now(), &source, &settings);
    served.ready().await;
    served
}

async fn slow(address: SocketAddr, path: &str) -> Lines<BufReader<TcpStream>> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(SOCKET_LEN).unwrap();
    ask(socket.connect(address).await.unwrap(), path).await
}

/// A change that is larger than the socket buffers.
fn change(source: &Source, number: usize) {
    let mut changed = service(false);
    changed["metadata"]["annotations"]["pad"] = "x".repeat(2 * SOCKET_LEN as usize).into();
    changed["spec"]["number"] = number.into();
    put(&source.store(), ProjectedKind::Services, "web", changed);
}

/// Row W11 of docs/reference/superedge.md#list-and-watch-rows, on sockets: the watch of a client that does not read is
/// ended: with an error at the bound of its queue if the client reads again, or without one if it does not. No history
/// is kept for it, and clients that read see everything.
#[tokio::test]
async fn a_watcher_that_does_not_read_is_ended_alone() {
    const CHANGES: usize = 60;
    let queue = *WATCH_QUEUE.start();
    let served = with_small_sockets(queue).await;
    let (web, resource) = (key(ProjectedKind::Services, "web"), ProjectedKind::Services.resource());
    let path = format!("{SERVICES}?watch=true&resourceVersion={}", served.revision(SERVICES).await);
    let silent = slow(served.address, &path).await;
    let mut late = slow(served.address, &path).await;
    let mut quick = ask(TcpStream::connect(served.address).await.unwrap(), &path).await;
    let mut versions: Vec<Weak<Stored>> = Vec::new();
    for number in 1..=CHANGES {
        change(&served.source, number);
        assert_eq!(event(&mut quick).await.unwrap()["object"]["spec"]["number"], number);
        versions.push(Arc::downgrade(&served.view.get(&web).unwrap().unwrap()));
    }
    // Each change in the history holds a version and the one that it replaced.
    let held = versions.iter().filter(|version| version.strong_count() > 0).count();
    assert!(held <= queue + 1, "{held} versions of {CHANGES} are held for a queue of {queue}");

    let mut seen = Vec::new();
    while let Some(event) = event(&mut late).await {
        seen.push(event);
    }
    let last = seen.pop().unwrap();
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)), "{last}");
    let numbers: Vec<_> = seen.iter().map(|event| event["object"]["spec"]["number"].clone()).collect();
    assert!(numbers.len() < CHANGES - queue, "it was behind");
    assert_eq!(numbers, (1..=numbers.len()).map(Value::from).collect::<Vec<_>>(), "every event until then");
    tombolo_testkit::wait_for(
        "the watch of the silent client to end",
        WRITE_STALL_MAX + DEADLINE,
        || async {
            let watchers = served.view.served().watchers(&resource);
            (watchers <= 1).then_some(()).ok_or_else(|| format!("{watchers} watch"))
        },
    )
    .await;
    change(&served.source, 0);
    assert_eq!(event(&mut quick).await.unwrap()["object"]["spec"]["number"], 0);
    drop(silent);
    served.end().await;
}
