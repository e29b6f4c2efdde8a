//! The figures.

use std::time::Duration;

use serde::Serialize;

use crate::args::Args;

/// The figures of one run, of the server process unless stated otherwise.
#[derive(Debug, Serialize)]
pub(crate) struct FloorReport {
    machine: String,
    transport: &'static str,
    stack: &'static str,
    dialect: &'static str,
    connections: usize,
    pub(crate) updates: usize,
    accept_cpu_micros: f64,
    accepts_per_second: f64,
    idle_kib_per_connection: f64,
    after_work_kib_per_connection: f64,
    update_cpu_micros: f64,
    fan_out_p50_ms: f64,
    fan_out_p99_ms: f64,
    fan_out_p99_worst_ms: f64,
    queries_per_second: f64,
    query_cpu_micros: f64,
    large_messages: bool,
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
impl FloorReport {
    pub(crate) fn new(args: &Args) -> Self {
        Self {
            machine: tombolo_cli::process::machine(),
            transport: args.transport_name(),
            stack: args.stack_name(),
            dialect: args.dialect.name(),
            connections: args.connections,
            updates: args.updates,
            accept_cpu_micros: 0.0,
            accepts_per_second: 0.0,
            idle_kib_per_connection: 0.0,
            after_work_kib_per_connection: 0.0,
            update_cpu_micros: 0.0,
            fan_out_p50_ms: 0.0,
            fan_out_p99_ms: 0.0,
            fan_out_p99_worst_ms: 0.0,
            queries_per_second: 0.0,
            query_cpu_micros: 0.0,
            large_messages: args.large,
        }
    }

    pub(crate) fn accepted(&mut self, cpu: Duration, took: Duration, count: usize) {
        self.accept_cpu_micros = cpu.as_secs_f64() * 1e6 / count as f64;
        self.accepts_per_second = count as f64 / took.as_secs_f64();
    }

    pub(crate) fn idle_memory(&mut self, bytes: u64, count: usize) {
        self.idle_kib_per_connection = bytes as f64 / 1024.0 / count as f64;
    }

    pub(crate) fn memory_after_work(&mut self, bytes: u64, count: usize) {
        self.after_work_kib_per_connection = bytes as f64 / 1024.0 / count as f64;
    }

    /// Records the update phase. `rounds` has the latencies of each update, in nanoseconds.
    pub(crate) fn updated(&mut self, cpu: Duration, receivers: usize, rounds: Vec<Vec<u64>>) {
        self.update_cpu_micros = cpu.as_secs_f64() * 1e6 / (receivers * self.updates.max(1)) as f64;
        let rounds: Vec<Vec<u64>> = rounds.into_iter().map(sorted).collect();
        let of_rounds = |percent| sorted(rounds.iter().map(|round| percentile(round, percent)).collect());
        let millis = |nanos: u64| nanos as f64 / 1e6;
        self.fan_out_p50_ms = millis(percentile(&of_rounds(50), 50));
        self.fan_out_p99_ms = millis(percentile(&of_rounds(99), 50));
        self.fan_out_p99_worst_ms = millis(percentile(&of_rounds(99), 100));
    }

    pub(crate) fn queried(&mut self, cpu: Duration, answers: usize, took: Duration) {
        self.queries_per_second = answers as f64 / took.as_secs_f64();
        self.query_cpu_micros = cpu.as_secs_f64() * 1e6 / answers.max(1) as f64;
    }

    pub(crate) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    pub(crate) fn table(&self) -> String {
        let work = if self.large_messages { "after work and 1 MiB each" } else { "after work" };
        let rows = [
            ("CPU to accept a connection (mutual TLS)", self.accept_cpu_micros, "µs"),
            ("connections accepted", self.accepts_per_second, "/s"),
            ("memory per idle connection", self.idle_kib_per_connection, "KiB"),
            ("memory per connection,", self.after_work_kib_per_connection, "KiB"),
            ("CPU per update with its ack", self.update_cpu_micros, "µs"),
            ("fan-out p50", self.fan_out_p50_ms, "ms"),
            ("fan-out p99, median run", self.fan_out_p99_ms, "ms"),
            ("fan-out p99, worst run", self.fan_out_p99_worst_ms, "ms"),
            ("queries answered", self.queries_per_second, "/s"),
            ("CPU per query", self.query_cpu_micros, "µs"),
        ];
        let mut out = format!(
            "floor: {} stack, {}, messages of dialect {}, {} connections, {} updates\n{}\n\n",
            self.stack, self.transport, self.dialect, self.connections, self.updates, self.machine
        );
        for (name, value, unit) in rows {
            let name = if name.ends_with(',') { format!("{name} {work}") } else { name.to_owned() };
            out.push_str(&format!("{name:<52} {value:>10.2} {unit}\n"));
        }
        out
    }
}

fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

/// A percentile of sorted values, by the rule of `tombolo swarm`; 0 if there are none.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied().unwrap_or_default()
}
