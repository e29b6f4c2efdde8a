//! Percentiles and the table that `tombolo swarm` prints.

use std::fmt::Write as _;
use std::time::Duration;

use crate::process::Reading;

/// Durations of one kind, for percentiles.
#[derive(Debug, Default, Clone)]
pub(super) struct Sample {
    sorted: Vec<Duration>,
}

impl FromIterator<Duration> for Sample {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Self {
        let mut sorted: Vec<Duration> = durations.into_iter().collect();
        sorted.sort_unstable();
        Self { sorted }
    }
}

impl Sample {
    /// The value that this percentage (0 to 100) of the sample does not exceed; zero for an empty sample.
    #[must_use]
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.sorted.len() * percent.min(100)).div_ceil(100).max(1) - 1;
        self.sorted.get(rank).copied().unwrap_or_default()
    }
}

/// One figure of a run.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Figure {
    /// What was measured.
    pub(super) name: &'static str,
    /// The value in `unit`.
    pub(super) value: f64,
    /// Unit of the value.
    pub(super) unit: &'static str,
}

/// All figures of a run, in the order in which they were measured.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct Figures(Vec<Figure>);

impl Figures {
    /// Adds a figure.
    pub(super) fn add(&mut self, name: &'static str, value: f64, unit: &'static str) {
        self.0.push(Figure { name, value, unit });
    }

    /// Adds a duration in milliseconds.
    pub(super) fn add_millis(&mut self, name: &'static str, value: Duration) {
        self.add(name, value.as_secs_f64() * 1e3, "ms");
    }

    /// Adds a duration in microseconds, divided by `count` operations.
    pub(super) fn add_micros_each(&mut self, name: &'static str, total: Duration, count: usize) {
        self.add(name, total.as_secs_f64() * 1e6 / count.max(1) as f64, "µs");
    }

    /// Adds the growth of resident memory between two readings, divided by `count`; nothing without a process.
    pub(super) fn add_memory_each(
        &mut self,
        name: &'static str,
        before: Option<Reading>,
        after: Option<Reading>,
        count: usize,
    ) {
        if let (Some(before), Some(after)) = (before, after) {
            let grown = after.resident as f64 - before.resident as f64;
            self.add(name, grown / 1024.0 / count.max(1) as f64, "KiB");
        }
    }

    /// A table with one figure per line.
    #[must_use]
    pub(super) fn table(&self) -> String {
        let width = self.0.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for Figure { name, value, unit } in &self.0 {
            let digits = if value.abs() >= 100.0 { 0 } else { 2 };
            let _ = writeln!(text, "{name:<width$}  {value:>12.digits$} {unit}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Figures, Sample};

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let sample: Sample = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(sample.percentile(50), Duration::from_millis(100));
        assert_eq!(sample.percentile(99), Duration::from_millis(198));
        assert_eq!(sample.percentile(100), Duration::from_millis(200));
        assert_eq!(Sample::default().percentile(99), Duration::ZERO);
    }

    #[test]
    fn the_table_lines_up() {
        let mut figures = Figures::default();
        figures.add_millis("short", Duration::from_micros(1500));
        figures.add_micros_each("a longer name", Duration::from_millis(3), 1000);
        let table = figures.table();
        assert_eq!(
            table.lines().map(|line| line.find(" ms").or(line.find(" µs"))).collect::<Vec<_>>(),
            [Some(27); 2]
        );
    }
}
