//! Rows of the printed tables.

use serde_json::Value;
use tombolo_tests::world::Transport;

/// One figure.
pub(crate) struct Row {
    name: String,
    value: f64,
    floor: Option<f64>,
    target: Option<f64>,
}

impl Row {
    pub(crate) fn new(name: &str, unit: &str, value: f64) -> Self {
        let name = if unit.is_empty() { name.to_owned() } else { format!("{name} [{unit}]") };
        Self { name, value, floor: None, target: None }
    }

    pub(crate) fn beside(mut self, floor: Option<f64>) -> Self {
        self.floor = floor;
        self
    }

    pub(crate) fn target(mut self, target: Option<f64>) -> Self {
        self.target = target;
        self
    }
}

/// A figure of `tombolo swarm`, the floor's figure beside it, and what must be reached.
struct Line {
    figure: &'static str,
    floor: Option<&'static str>,
    /// Absolute target over WebSocket and QUIC; none: 1.5 times the floor alone.
    targets: Option<(f64, f64)>,
}

const fn line(figure: &'static str, floor: Option<&'static str>, targets: Option<(f64, f64)>) -> Line {
    Line { figure, floor, targets }
}

const LINES: [Line; 19] = [
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
    line("queries a second", Some("queries_per_second"), None),
    line("processor time per query", Some("query_cpu_micros"), None),
    line("all nodes back and caught up", None, None),
    line("processor time per reconnect", None, None),
    line("objects sent again", None, Some((0.0, 0.0))),
    line("reconnect with nothing changed, sent by the node", None, None),
    line("reconnect with nothing changed, received", None, None),
    line("reconnect with nothing changed, round trips", None, Some((1.0, 1.0))),
];

/// The swarm's figures beside the floor's.
pub(crate) fn beside_floor(transport: Transport, floor: &Value, figures: &Value) -> Vec<Row> {
    let row = |line: &Line| {
        let figure = figures.as_array()?.iter().find(|figure| figure["name"] == line.figure)?;
        let target = line.targets.map(|(websocket, quic)| match transport {
            Transport::WebSocket => websocket,
            Transport::Quic => quic,
        });
        let unit = figure["unit"].as_str().unwrap_or_default();
        let row = Row::new(line.figure, unit, figure["value"].as_f64()?);
        Some(row.beside(line.floor.and_then(|name| floor[name].as_f64())).target(target))
    };
    LINES.iter().filter_map(row).collect()
}

/// Prints rows under a title.
pub(crate) fn print(title: &str, rows: &[Row]) {
    println!("\n{title}");
    println!("{:<56} {:>12} {:>12} {:>7} {:>10}", "", "Tombolo", "floor", "ratio", "target");
    for Row { name, value, floor, target } in rows {
        let ratio = floor.map_or_else(|| "-".to_owned(), |floor| format!("{:.2}", value / floor));
        println!("{name:<56} {value:>12.2} {:>12} {ratio:>7} {:>10}", number(*floor), number(*target));
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}
