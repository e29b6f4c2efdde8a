//! The work that both servers are measured with.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use serde_json::json;
use tokio::time::Instant;

use crate::client::Connection;
use crate::target::MeasuredServer;
use crate::watchers::Watchers;

/// Concurrent requests.
const CONCURRENT: usize = 16;

/// Bytes of data in an object.
const DATA_LEN: usize = 1024;

/// Number of lists in one measurement.
const LISTS: usize = 5;

/// Number of events that every watch receives.
const EVENTS: usize = 20;

/// Time for memory to settle before it is read.
const REST: Duration = Duration::from_secs(2);

/// Target: at least this many times less processor time, and memory, than kube-apiserver with etcd.
const AIM_CPU: Option<f64> = Some(5.0);
const AIM_MEMORY: Option<f64> = Some(10.0);

const NAMESPACE: &str = "/api/v1/namespaces/default/configmaps";

/// The amount of work.
pub(crate) struct Plan {
    /// Number of ConfigMaps.
    pub(crate) objects: usize,
    /// Number of watches.
    pub(crate) watchers: usize,
}

/// One figure of one run.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    /// Target: how many times less than kube-apiserver with etcd.
    pub(crate) aim: Option<f64>,
}

/// Runs all measurements.
pub(crate) async fn measure(target: &mut impl MeasuredServer, plan: &Plan) -> Result<Vec<Figure>> {
    let mut figures = load(&*target, plan).await?;
    let began = Instant::now();
    target.restart().await?;
    figures.push(Figure {
        name: "start on these objects, until ready",
        unit: "ms",
        value: began.elapsed().as_secs_f64() * 1e3,
        aim: None,
    });
    Ok(figures)
}

async fn load(target: &impl MeasuredServer, plan: &Plan) -> Result<Vec<Figure>> {
    let bench = Bench { target, connection: Connection::open(target).await? };
    // The first requests load code and fill caches, so they are not measured.
    bench
        .each(0..CONCURRENT, Method::POST, |number| (NAMESPACE.to_owned(), config_map("warm", number, 0)))
        .await?;
    bench.connection.call(Method::GET, NAMESPACE, Bytes::new()).await?;
    tokio::time::sleep(REST).await;
    let empty = target.read()?.resident;

    let mut figures = Vec::new();
    let named = |number: usize| format!("{NAMESPACE}/object-{number}");
    let all = 0..plan.objects;
    let create = |number: usize| (NAMESPACE.to_owned(), config_map("object", number, 0));
    figures.push(bench.cpu("create", plan.objects, bench.each(all.clone(), Method::POST, create)).await?);
    tokio::time::sleep(REST).await;
    let grown = target.read()?.resident.saturating_sub(empty);
    figures.push(Figure {
        name: "memory per 10,000 stored objects",
        unit: "MB",
        value: grown as f64 / 1e6 * 10_000.0 / plan.objects as f64,
        aim: AIM_MEMORY,
    });
    let get = |number: usize| (named(number), Bytes::new());
    figures.push(bench.cpu("get", plan.objects, bench.each(all.clone(), Method::GET, get)).await?);
    let update = |number: usize| (named(number), config_map("object", number, 1));
    figures.push(bench.cpu("update", plan.objects, bench.each(all, Method::PUT, update)).await?);
    figures.push(bench.cpu("list of all", LISTS, bench.lists()).await?);
    figures.push(bench.cpu("list of all in pages of 500", LISTS, bench.pages()).await?);
    figures.extend(bench.watches(plan).await?);
    figures.push(Figure {
        name: "resident at the end, objects and watches included",
        unit: "MB",
        value: target.read()?.resident as f64 / 1e6,
        aim: AIM_MEMORY,
    });
    Ok(figures)
}

struct Bench<'t, T> {
    target: &'t T,
    connection: Connection,
}

impl<T: MeasuredServer> Bench<'_, T> {
    /// Processor time of the server for each of `count` operations.
    async fn cpu(
        &self,
        name: &'static str,
        count: usize,
        work: impl Future<Output = Result<()>>,
    ) -> Result<Figure> {
        let before = self.target.read()?.cpu;
        work.await.with_context(|| name.to_owned())?;
        let used = self.target.read()?.cpu - before;
        Ok(Figure { name, unit: "µs of CPU", value: used.as_secs_f64() * 1e6 / count as f64, aim: AIM_CPU })
    }

    /// Sends one request per number, [`CONCURRENT`] at a time.
    async fn each(
        &self,
        numbers: std::ops::Range<usize>,
        method: Method,
        request: impl Fn(usize) -> (String, Bytes),
    ) -> Result<()> {
        let calls = stream::iter(numbers).map(|number| {
            let (path, body) = request(number);
            let method = method.clone();
            async move { self.connection.call(method, &path, body).await.map(drop) }
        });
        calls.buffer_unordered(CONCURRENT).try_collect().await
    }

    async fn lists(&self) -> Result<()> {
        for _ in 0..LISTS {
            self.connection.call(Method::GET, NAMESPACE, Bytes::new()).await?;
        }
        Ok(())
    }

    async fn pages(&self) -> Result<()> {
        for _ in 0..LISTS {
            let mut next = String::new();
            loop {
                let path = format!("{NAMESPACE}?limit=500{next}");
                let page: Page =
                    serde_json::from_slice(&self.connection.call(Method::GET, &path, Bytes::new()).await?)?;
                if page.metadata.next.is_empty() {
                    break;
                }
                next = format!("&continue={}", page.metadata.next);
            }
        }
        Ok(())
    }

    async fn watches(&self, plan: &Plan) -> Result<Vec<Figure>> {
        let before = self.target.read()?.resident;
        let path = format!("{NAMESPACE}?limit=1");
        let first: Page =
            serde_json::from_slice(&self.connection.call(Method::GET, &path, Bytes::new()).await?)?;
        let path = format!(
            "{NAMESPACE}?watch=1&timeoutSeconds=600&resourceVersion={}",
            first.metadata.resource_version
        );
        let mut watchers = Watchers::open(self.target, &path, plan.watchers).await?;
        tokio::time::sleep(REST).await;
        let grown = self.target.read()?.resident.saturating_sub(before);

        let mut slowest = Vec::new();
        let cpu_before = self.target.read()?.cpu;
        for event in 0..EVENTS {
            let begin = Instant::now();
            let body = config_map("object", 0, event + 2);
            self.connection.call(Method::PUT, &format!("{NAMESPACE}/object-0"), body).await?;
            let mut times = watchers.all_see_one(begin).await?;
            times.sort();
            slowest.push(times[times.len() * 99 / 100]);
        }
        let used = self.target.read()?.cpu - cpu_before;
        watchers.nothing_more()?;
        slowest.sort();
        Ok(vec![
            Figure {
                name: "memory per idle watch",
                unit: "KiB",
                value: grown as f64 / 1024.0 / plan.watchers as f64,
                aim: AIM_MEMORY,
            },
            Figure {
                name: "event to one watch",
                unit: "µs of CPU",
                value: used.as_secs_f64() * 1e6 / (EVENTS * plan.watchers) as f64,
                aim: AIM_CPU,
            },
            Figure {
                name: "event to all watches, p99, middle event",
                unit: "ms",
                value: slowest[slowest.len() / 2].as_secs_f64() * 1e3,
                aim: None,
            },
        ])
    }
}

#[derive(serde::Deserialize)]
struct Page {
    metadata: PageMetadata,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

/// Words that setting names consist of: few enough that some occur twice in an object, and all of them in many objects.
const WORDS: [&str; 16] = [
    "address", "backoff", "cache", "database", "endpoint", "feature", "interval", "level", "limit", "log",
    "memory", "pool", "queue", "retry", "timeout", "worker",
];

/// A ConfigMap of [`DATA_LEN`] bytes whose data depends on the version. It contains settings whose names are words and
/// whose values are unpredictable numbers. A third of such a text is random.
fn config_map(name: &str, number: usize, version: usize) -> Bytes {
    let mut text = String::new();
    let mut random = DefaultHasher::new();
    (number, version).hash(&mut random);
    while text.len() < DATA_LEN {
        text.len().hash(&mut random);
        let value = random.finish();
        let word = |shift: u32| WORDS[(value >> shift) as usize % WORDS.len()];
        let _ = writeln!(text, "{}.{}={:08x}", word(32), word(40), value as u32);
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("{name}-{number}"), "labels": {"app": "bench"}},
        "data": {"text": text[..DATA_LEN]},
    });
    Bytes::from(object.to_string())
}
