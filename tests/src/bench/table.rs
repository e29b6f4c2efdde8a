//! The printed tables.

use std::collections::BTreeMap;

use serde_json::Value;
use tombolo_tests::median::Median;
use tombolo_tests::world::Transport;

/// Target of every figure that is compared with the floor and has [`ComparedFigure::limited`]: so many times the floor.
const TIMES_FLOOR: f64 = 1.5;

/// One figure.
pub(crate) struct Row {
    name: String,
    runs: Vec<FigureOfRun>,
    /// The most that the figure may be.
    most: Option<f64>,
    /// How many times the floor the figure may be.
    times: Option<f64>,
}

/// A figure in one run, and the floor that was measured just before.
struct FigureOfRun {
    value: f64,
    floor: Option<f64>,
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

impl Row {
    /// A figure that was measured once, without a floor.
    pub(crate) fn once(name: &str, unit: &str, value: f64) -> Self {
        Self::new(name, unit, vec![FigureOfRun { value, floor: None }])
    }

    fn new(name: &str, unit: &str, runs: Vec<FigureOfRun>) -> Self {
        let name = if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") };
        Self { name, runs, most: None, times: None }
    }

    pub(crate) fn at_most(mut self, most: f64) -> Self {
        self.most = Some(most);
        self
    }

    fn target(&self) -> Option<String> {
        let times = self.times.map(|times| format!("{times} × floor"));
        let parts: Vec<String> = self.most.map(|most| most.to_string()).into_iter().chain(times).collect();
        (!parts.is_empty()).then(|| parts.join(" and "))
    }

    /// In how many runs the target was reached; none without a target.
    fn reached(&self) -> Option<String> {
        self.target()?;
        let reached = |run: &&FigureOfRun| {
            let within = self.most.is_none_or(|most| run.value <= most);
            within && self.times.is_none_or(|times| run.floor.is_some_and(|floor| run.value <= times * floor))
        };
        Some(format!("{} of {}", self.runs.iter().filter(reached).count(), self.runs.len()))
    }

    /// The row of a Markdown table.
    fn line(&self) -> String {
        let shown = |median: Option<Median>| median.map(|median| format!("{median:.2}")).unwrap_or_default();
        let floors: Option<Vec<f64>> = self.runs.iter().map(|run| run.floor).collect();
        let cells = [
            self.name.clone(),
            shown(Median::of(self.runs.iter().map(|run| run.value))),
            shown(floors.and_then(Median::of)),
            shown(Median::of_ratios(self.runs.iter().map(|run| (Some(run.value), run.floor)))),
            self.target().unwrap_or_default(),
            self.reached().unwrap_or_default(),
        ];
        format!("| {} |", cells.join(" | "))
    }
}

/// A figure of `tombolo swarm`, the matching figure of the floor, and its targets.
struct ComparedFigure {
    figure: &'static str,
    floor: Option<&'static str>,
    /// Absolute targets over WebSocket and QUIC.
    most: Option<(f64, f64)>,
    /// Whether [`TIMES_FLOOR`] is a target too.
    limited: bool,
}

const fn compared(figure: &'static str, floor: &'static str) -> ComparedFigure {
    ComparedFigure { figure, floor: Some(floor), most: None, limited: false }
}

const fn alone(figure: &'static str) -> ComparedFigure {
    ComparedFigure { figure, floor: None, most: None, limited: false }
}

impl ComparedFigure {
    const fn limited(self) -> Self {
        Self { limited: true, ..self }
    }

    const fn at_most(self, websocket: f64, quic: f64) -> Self {
        Self { most: Some((websocket, quic)), ..self }
    }
}

const LINES: [ComparedFigure; 21] = [
    compared("connections a second", "accepts_per_second"),
    compared("processor time to accept a node", "accept_cpu_micros").at_most(500.0, 800.0).limited(),
    alone("time until every node is settled"),
    alone("memory per node's objects"),
    compared("memory per connected node, idle", "idle_kib_per_connection").at_most(30.0, 45.0),
    compared("memory per connected node, after work", "after_work_kib_per_connection").at_most(30.0, 45.0),
    alone("memory per connected node, after a large object").at_most(30.0, 45.0),
    alone("memory per node, grown by a large object"),
    compared("processor time per delivered update, acknowledged", "update_cpu_micros").limited(),
    compared("fan-out of one update, p50", "fan_out_p50_ms"),
    compared("fan-out of one update, p99, median run", "fan_out_p99_ms").limited(),
    compared("fan-out of one update, p99, worst run", "fan_out_p99_worst_ms").limited(),
    alone("fan-out of one update, max"),
    compared("queries a second", "queries_per_second"),
    compared("processor time per query", "query_cpu_micros").limited(),
    alone("all nodes back and caught up"),
    alone("processor time per reconnect"),
    alone("objects sent again").at_most(0.0, 0.0),
    alone("reconnect with nothing changed, sent by the node"),
    alone("reconnect with nothing changed, received"),
    alone("reconnect with nothing changed, round trips").at_most(1.0, 1.0),
];

/// The swarm's figures beside the floor's.
pub(crate) fn beside_floor(transport: Transport, runs: &[Run]) -> Vec<Row> {
    let mut rows: Vec<Row> = LINES.iter().filter_map(|line| row(line, transport, runs)).collect();
    let value = |run: &Run| Some(FigureOfRun { value: run.writes_per_delivery()?, floor: None });
    rows.push(Row::new("API writes per delivery", "", runs.iter().filter_map(value).collect()).at_most(0.0));
    rows
}

/// The row of a figure; none if a run lacks it, as the other dialect's runs do.
fn row(line: &ComparedFigure, transport: Transport, runs: &[Run]) -> Option<Row> {
    let value = |run: &Run| {
        let value = run.figure(line.figure)?["value"].as_f64()?;
        Some(FigureOfRun { value, floor: line.floor.and_then(|name| run.floor[name].as_f64()) })
    };
    let unit = runs.first()?.figure(line.figure)?["unit"].as_str().unwrap_or_default();
    let mut row = Row::new(line.figure, unit, runs.iter().map(value).collect::<Option<Vec<_>>>()?);
    row.most = line.most.map(|(websocket, quic)| match transport {
        Transport::WebSocket => websocket,
        Transport::Quic => quic,
    });
    row.times = line.limited.then_some(TIMES_FLOOR);
    Some(row)
}

/// Prints rows under a title: medians of the runs, with their range.
pub(crate) fn print(title: &str, rows: &[Row]) {
    println!(
        "\n{title}\n\n| figure | measured | floor | ratio | target | reached, runs |\n|---|---|---|---|---|---|"
    );
    for row in rows {
        println!("{}", row.line());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(update: f64, floor: f64) -> Run {
        let named = |name: &str, unit: &str, value: f64| json!({"name": name, "unit": unit, "value": value});
        let update = named("processor time per delivered update, acknowledged", "µs", update);
        Run {
            floor: json!({"update_cpu_micros": floor}),
            figures: json!([update, named("deliveries", "", 10.0)]),
            writes: BTreeMap::from([("create".to_owned(), 1)]),
        }
    }

    #[test]
    fn a_figure_is_compared_with_the_floor_of_its_own_run() {
        let runs = [run(10.0, 10.0), run(40.0, 20.0), run(28.0, 20.0)];
        let lines: Vec<String> = beside_floor(Transport::Quic, &runs).iter().map(Row::line).collect();
        let update = "| processor time per delivered update, acknowledged, µs | 28.00 (10.00–40.00) \
            | 20.00 (10.00–20.00) | 1.40 (1.00–2.00) | 1.5 × floor | 2 of 3 |";
        assert_eq!(lines, [update, "| API writes per delivery | 0.10 |  |  | 0 | 0 of 3 |"]);
    }

    #[test]
    fn figure_with_two_targets_must_reach_both() {
        let accept = |value: f64, floor: f64| {
            let run = vec![FigureOfRun { value, floor: Some(floor) }];
            Row { most: Some(500.0), times: Some(1.5), ..Row::new("accept", "µs", run) }.reached()
        };
        let outcomes = [accept(450.0, 400.0), accept(450.0, 200.0), accept(550.0, 400.0)];
        assert_eq!(outcomes.map(Option::unwrap), ["1 of 1", "0 of 1", "0 of 1"]);
    }
}
