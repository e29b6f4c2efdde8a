//! Rows of the printed tables.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;
use tombolo_tests::world::Transport;

/// One figure.
pub(crate) struct Row {
    name: String,
    value: f64,
    /// The floor's figure, and the ratio of this figure to it.
    floor: Option<(f64, f64)>,
    target: Option<f64>,
}

/// The results of one run of the floor and one of cloudcore.
pub(crate) struct Run {
    /// The floor's figures by name.
    pub(crate) floor: Value,
    /// The figures of `tombolo swarm`, in a list.
    pub(crate) figures: Value,
    /// Every kind of API write by cloudcore, and its count.
    pub(crate) writes: BTreeMap<String, usize>,
}

impl Run {
    fn figure(&self, name: &str) -> Option<&Value> {
        self.figures.as_array()?.iter().find(|figure| figure["name"] == name)
    }

    fn writes_per_delivery(&self) -> Option<f64> {
        let count: usize = self.writes.values().sum();
        Some(count as f64 / self.figure("deliveries")?["value"].as_f64()?)
    }
}

/// The median; none if there are no values.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Row {
    pub(crate) fn new(name: &str, unit: &str, value: f64) -> Self {
        let name = if unit.is_empty() { name.to_owned() } else { format!("{name} [{unit}]") };
        Self { name, value, floor: None, target: None }
    }

    /// Adds `floor`: the floor's figure and the ratio to it.
    fn beside(mut self, floor: Option<(f64, f64)>) -> Self {
        self.floor = floor;
        self
    }

    pub(crate) fn target(mut self, target: Option<f64>) -> Self {
        self.target = target;
        self
    }
}

/// A figure of `tombolo swarm`, the matching figure of the floor, and the target.
struct ComparedFigure {
    figure: &'static str,
    floor: Option<&'static str>,
    /// Absolute target over WebSocket and QUIC; if none, the target is 1.5 times the floor.
    targets: Option<(f64, f64)>,
}

const fn line(
    figure: &'static str,
    floor: Option<&'static str>,
    targets: Option<(f64, f64)>,
) -> ComparedFigure {
    ComparedFigure { figure, floor, targets }
}

const LINES: [ComparedFigure; 20] = [
    line("connections a second", Some("accepts_per_second"), None),
    line("processor time to accept a node", Some("accept_cpu_micros"), Some((500.0, 800.0))),
    line("time until every node is settled", None, None),
    line("memory per node's objects", None, None),
    line("memory per connected node, idle", Some("idle_kib_per_connection"), Some((30.0, 45.0))),
    line("memory per connected node, after work", Some("after_work_kib_per_connection"), Some((30.0, 45.0))),
    line("memory per node, grown by a large object", None, Some((0.0, 0.0))),
    line("processor time per delivered update, acknowledged", Some("update_cpu_micros"), None),
    line("fan-out of one update, p50", Some("fan_out_p50_ms"), None),
    line("fan-out of one update, p99, median run", Some("fan_out_p99_ms"), None),
    line("fan-out of one update, p99, worst run", Some("fan_out_p99_worst_ms"), None),
    line("fan-out of one update, max", None, None),
    line("queries a second", Some("queries_per_second"), None),
    line("processor time per query", Some("query_cpu_micros"), None),
    line("all nodes back and caught up", None, None),
    line("processor time per reconnect", None, None),
    line("objects sent again", None, Some((0.0, 0.0))),
    line("reconnect with nothing changed, sent by the node", None, None),
    line("reconnect with nothing changed, received", None, None),
    line("reconnect with nothing changed, round trips", None, Some((1.0, 1.0))),
];

/// The swarm's figures beside the floor's: for each figure and each ratio, the median of all runs.
pub(crate) fn beside_floor(transport: Transport, runs: &[Run]) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = LINES.iter().filter_map(|line| row(line, transport, runs)).collect();
    let writes = median(runs.iter().filter_map(Run::writes_per_delivery)).context("no deliveries counted")?;
    rows.push(Row::new("API writes per delivery", "", writes).target(Some(0.0)));
    Ok(rows)
}

fn row(line: &ComparedFigure, transport: Transport, runs: &[Run]) -> Option<Row> {
    let value = |run: &Run| run.figure(line.figure)?["value"].as_f64();
    let floor = |run: &Run| run.floor[line.floor?].as_f64();
    let ratio = |run: &Run| Some(value(run)? / floor(run)?);
    let unit = runs.first()?.figure(line.figure)?["unit"].as_str().unwrap_or_default();
    let floors = median(runs.iter().filter_map(floor)).zip(median(runs.iter().filter_map(ratio)));
    let target = line.targets.map(|(websocket, quic)| match transport {
        Transport::WebSocket => websocket,
        Transport::Quic => quic,
    });
    let middle = median(runs.iter().filter_map(value))?;
    Some(Row::new(line.figure, unit, middle).beside(floors).target(target))
}

/// Prints rows under a title.
pub(crate) fn print(title: &str, rows: &[Row]) {
    println!("\n{title}");
    println!("{:<56} {:>12} {:>12} {:>7} {:>10}", "", "Tombolo", "floor", "ratio", "target");
    for Row { name, value, floor, target } in rows {
        let (floor, ratio) = (floor.map(|floor| floor.0), floor.map(|floor| floor.1));
        println!(
            "{name:<56} {value:>12.2} {:>12} {:>7} {:>10}",
            number(floor),
            number(ratio),
            number(*target)
        );
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}
