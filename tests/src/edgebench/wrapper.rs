//! Measures lists and watches of the wrapper.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tombolo_cli::process::Process;
use tombolo_tests::world::objects::NAMESPACE;

use crate::Spread;
use crate::cluster::{Cluster, SLICES, slice};

const LISTS: usize = 500;

/// Lists before the measurement, which fill the buffers of the kernel and of both ends.
const WARM_UP: usize = 20;

/// Number of measured changes, and the pause between them, in which nothing else happens.
const CHANGES: usize = 300;
const PAUSE: Duration = Duration::from_millis(5);

/// Changes of a watched resource have to arrive within this time.
const WITHIN: Duration = Duration::from_secs(20);

/// Lists all slices repeatedly over one connection, as bytes: decoding them would be the client's own cost.
pub(crate) async fn lists(server: SocketAddr) -> Result<Spread> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let request = request(server, "");
    let (mut times, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + LISTS {
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let body = response(&mut stream, &mut bytes).await?;
        times.push(began.elapsed());
        let count = body.windows(ADDRESS_TYPE.len()).filter(|text| *text == ADDRESS_TYPE).count();
        // The list also has the slice of the API server itself.
        ensure!(count > SLICES, "the list has only {count} slices");
    }
    Ok(Spread::of(times.split_off(WARM_UP)))
}

/// A request for all slices.
fn request(server: SocketAddr, query: &str) -> String {
    format!(
        "GET /apis/discovery.k8s.io/v1/endpointslices{query} HTTP/1.1\r\nhost: {server}\r\naccept: application/json\r\n\r\n"
    )
}

const ADDRESS_TYPE: &[u8] = b"\"addressType\"";

/// Reads the body of a response, with a length or in chunks, into a buffer that is reused.
async fn response<'a>(stream: &mut TcpStream, bytes: &'a mut Vec<u8>) -> Result<&'a [u8]> {
    bytes.clear();
    bytes.reserve(4 << 20);
    let head_end = loop {
        ensure!(stream.read_buf(bytes).await? > 0, "the connection is closed");
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    match length {
        Some(length) => {
            let whole = head_end + length.trim().parse::<usize>()?;
            while bytes.len() < whole {
                ensure!(stream.read_buf(bytes).await? > 0, "the connection is closed");
            }
        }
        None => {
            while !bytes.ends_with(b"\r\n0\r\n\r\n") {
                ensure!(stream.read_buf(bytes).await? > 0, "the connection is closed");
            }
        }
    }
    Ok(&bytes[head_end..])
}

pub(crate) struct Watched {
    pub(crate) times: Spread,
    /// Processor time of the agent for one change.
    pub(crate) cpu: Duration,
}

/// The resourceVersion of a list of all slices.
async fn newest(server: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(request(server, "").as_bytes()).await?;
    let mut bytes = Vec::new();
    let body = String::from_utf8_lossy(response(&mut stream, &mut bytes).await?).into_owned();
    let (_, rest) = body.split_once("\"resourceVersion\":\"").context("the list has no resourceVersion")?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

/// When each change arrived, by its mark.
type ArrivalTimes = Arc<Mutex<HashMap<String, Instant>>>;

/// Changes slices one at a time, and measures the delay between the first byte that leaves the hub and its arrival at a
/// watcher of the wrapper.
pub(crate) async fn watches(
    cluster: &Cluster,
    agent: Process,
    watchers: usize,
    run: usize,
) -> Result<Watched> {
    let here = ArrivalTimes::default();
    let mut tasks = JoinSet::new();
    let since = newest(cluster.wrapper).await?;
    tasks.spawn(note(watch(cluster.wrapper, &since).await?, Arc::clone(&here)));
    for _ in 1..watchers {
        tasks.spawn(drain(watch(cluster.wrapper, &since).await?));
    }
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let before = agent.read()?.cpu;
    let mut times = Vec::new();
    for turn in 0..CHANGES {
        let mut object = slice(turn % SLICES, turn + watchers + run);
        let mark = format!("{watchers}-{run}-{turn}");
        object["metadata"]["annotations"] = json!({"mark": mark});
        let name = object["metadata"]["name"].as_str().context("the slice has no name")?.to_owned();
        cluster.world.take_from_cloud();
        slices.patch(&name, &PatchParams::default(), &Patch::Merge(&object)).await?;
        let deadline = Instant::now() + WITHIN;
        let seen = loop {
            tokio::time::sleep(PAUSE).await;
            if let Some(seen) = here.lock().get(&mark) {
                break *seen;
            }
            ensure!(Instant::now() < deadline, "the change {mark} did not arrive");
        };
        let left = cluster.world.take_from_cloud().context("the change has not passed the link")?;
        times.push(seen.saturating_duration_since(left));
    }
    let cpu = (agent.read()?.cpu - before) / u32::try_from(CHANGES)?;
    Ok(Watched { times: Spread::of(times), cpu })
}

/// Opens a watch of all changes after a list, as bytes: decoding them would be the client's own cost. The watch has
/// begun on return.
async fn watch(server: SocketAddr, since: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(server).await?;
    let query = format!("?watch=true&timeoutSeconds=3600&resourceVersion={since}");
    stream.write_all(request(server, &query).as_bytes()).await?;
    let mut head = [0; b"HTTP/1.1 200".len()];
    stream.read_exact(&mut head).await?;
    ensure!(&head == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// Records when the marks of slices arrive.
async fn note(mut stream: TcpStream, seen: ArrivalTimes) {
    let mut bytes = Vec::new();
    while matches!(stream.read_buf(&mut bytes).await, Ok(length) if length > 0) {
        let now = Instant::now();
        for mark in marks(&bytes) {
            seen.lock().entry(mark).or_insert(now);
        }
        // Keeps the start of a line whose end has not arrived yet.
        let rest = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.drain(..rest);
    }
}

/// The marks in these lines.
fn marks(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let marks = text.split(MARK).skip(1).filter_map(|rest| rest.split_once('"'));
    marks.map(|(mark, _)| mark.to_owned()).collect()
}

/// The text before a mark in the JSON of a slice.
const MARK: &str = "\"mark\":\"";

/// Reads without decoding, so that this watcher's cost is the agent's.
async fn drain(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while matches!(stream.read(&mut buffer).await, Ok(length) if length > 0) {}
}
