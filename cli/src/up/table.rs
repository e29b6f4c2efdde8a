//! What `tombolo up` shows: one line a node, drawn over itself on a terminal, printed on change otherwise.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Row {
    /// Node name.
    pub(super) node: String,
    /// `connected (quic)`, `away`, `not registered`.
    pub(super) session: String,
    /// Objects that the edge has acknowledged since the hub started.
    pub(super) delivered: u64,
    /// Objects that the node should have and has not acknowledged yet.
    pub(super) pending: usize,
    /// Time from the newest delivery to its acknowledgement.
    pub(super) lag: Option<Duration>,
    /// Round trip of the connection.
    pub(super) round_trip: Option<Duration>,
    /// What the edge's local API lists, against what it should.
    pub(super) holds: String,
}

const HEADINGS: [&str; 7] = ["NODE", "SESSION", "DELIVERED", "PENDING", "LAG", "RTT", "HOLDS"];

/// Draws rows to the terminal, or prints a line for each row that changed.
#[derive(Debug)]
pub(super) struct Table {
    terminal: bool,
    drawn: usize,
    last: Vec<Row>,
}

impl Default for Table {
    fn default() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), drawn: 0, last: Vec::new() }
    }
}

impl Table {
    /// Shows the present rows.
    ///
    /// # Errors
    /// When standard output is gone.
    pub(super) fn show(&mut self, rows: &[Row]) -> std::io::Result<()> {
        if rows == self.last {
            return Ok(());
        }
        let text = if self.terminal { self.redraw(rows) } else { self.changed(rows) };
        self.last = rows.to_vec();
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn redraw(&mut self, rows: &[Row]) -> String {
        let mut text = String::new();
        if self.drawn > 0 {
            // Up to the first drawn line, then erase to the end of the screen.
            let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
        }
        text.push_str(&layout(rows));
        self.drawn = rows.len() + 1;
        text
    }

    fn changed(&self, rows: &[Row]) -> String {
        let mut text = String::new();
        for row in rows.iter().filter(|row| !self.last.iter().any(|old| settled(old) == settled(row))) {
            let [node, session, delivered, pending, lag, round_trip, holds] = cells(row);
            let _ = writeln!(
                text,
                "{node}: {session}, delivered {delivered}, pending {pending}, lag {lag}, rtt {round_trip}, holds {holds}"
            );
        }
        text
    }
}

/// A row without the figures that move all the time: plain output is not flooded by them.
fn settled(row: &Row) -> Row {
    Row { round_trip: None, lag: None, ..row.clone() }
}

fn cells(row: &Row) -> [String; 7] {
    [
        row.node.clone(),
        row.session.clone(),
        row.delivered.to_string(),
        row.pending.to_string(),
        duration(row.lag),
        duration(row.round_trip),
        row.holds.clone(),
    ]
}

fn layout(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let padded: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(padded.join("   ").trim_end());
        text.push('\n');
    }
    text
}

fn duration(value: Option<Duration>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < Duration::from_millis(1) => format!("{} µs", value.as_micros()),
        Some(value) if value < Duration::from_secs(1) => {
            format!("{:.1} ms", value.as_secs_f64() * 1000.0)
        }
        Some(value) => format!("{:.1} s", value.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Row, Table, duration, layout};

    fn row(node: &str, delivered: u64) -> Row {
        Row { node: node.into(), session: "away".into(), delivered, holds: "3/3".into(), ..Row::default() }
    }

    #[test]
    fn columns_line_up() {
        let text = layout(&[row("edge-1", 7), row("a-much-longer-name", 12)]);
        let starts: Vec<usize> = text.lines().map(|line| line.find(['S', 'a']).unwrap_or(0)).collect();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(
            text.lines().map(|line| line.find("away").or(line.find("SESSION"))).collect::<Vec<_>>(),
            [Some(21); 3]
        );
        assert!(!starts.is_empty());
    }

    #[test]
    fn plain_output_has_only_what_changed() {
        let mut table = Table { terminal: false, drawn: 0, last: vec![row("edge-1", 1), row("edge-2", 1)] };
        let moved = Row { round_trip: Some(Duration::from_millis(3)), ..row("edge-1", 1) };
        let text = table.changed(&[moved, row("edge-2", 2)]);
        assert_eq!(text.lines().count(), 1);
        assert!(text.starts_with("edge-2: away, delivered 2"));
        table.terminal = true;
        assert!(!table.redraw(&[row("edge-1", 1)]).contains('\x1b'), "nothing was drawn before");
        assert!(table.redraw(&[row("edge-1", 1)]).starts_with("\x1b[2A"));
    }

    #[test]
    fn durations_read_well() {
        let texts =
            [None, Some(40), Some(1_500), Some(2_500_000)].map(|us| duration(us.map(Duration::from_micros)));
        assert_eq!(texts, ["-", "40 µs", "1.5 ms", "2.5 s"]);
    }
}
