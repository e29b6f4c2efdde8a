//! The output of `tombolo up`: sections of lines, redrawn in place on a terminal, otherwise printed on change.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use rustix::termios::tcgetwinsize;

/// Lines under one heading.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Section {
    pub(super) headings: &'static [&'static str],
    pub(super) lines: Vec<Line>,
}

/// One displayed item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Line {
    /// On a terminal: one cell under each heading.
    pub(super) cells: Vec<String>,
    /// Text for output that is not a terminal.
    pub(super) sentence: String,
    /// The sentence without constantly changing figures; when this changes, the sentence is printed again.
    pub(super) settled: String,
}

/// The line of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Row {
    /// Node name.
    pub(super) node: String,
    /// `connected (quic)`, `disconnected`, `not registered`.
    pub(super) session: String,
    /// Deliveries that the edge has acknowledged in this connection.
    pub(super) delivered: u64,
    /// Objects that the node should have and has not acknowledged yet.
    pub(super) pending: usize,
    /// Time from the newest delivery to its acknowledgement.
    pub(super) lag: Option<Duration>,
    /// Round trip of the connection.
    pub(super) round_trip: Option<Duration>,
    /// Comparison of what the edge's local API lists with what it should list.
    pub(super) holds: String,
}

const HEADINGS: &[&str] = &["NODE", "SESSION", "DELIVERED", "PENDING", "LAG", "RTT", "HOLDS"];

/// The section of the nodes.
pub(super) fn nodes(rows: Vec<Row>) -> Section {
    Section { headings: HEADINGS, lines: rows.into_iter().map(line).collect() }
}

fn line(row: Row) -> Line {
    let Row { node, session, delivered, pending, lag, round_trip, holds } = row;
    let (lag, round_trip) = (duration(lag), duration(round_trip));
    let start = format!("{node}: {session}, delivered {delivered}, pending {pending}");
    Line {
        settled: format!("{start}, holds {holds}"),
        sentence: format!("{start}, lag {lag}, rtt {round_trip}, holds {holds}"),
        cells: vec![node, session, delivered.to_string(), pending.to_string(), lag, round_trip, holds],
    }
}

/// Draws sections to the terminal, or prints a sentence for each line that changed.
#[derive(Debug)]
pub(super) struct Table {
    terminal: bool,
    drawn: usize,
    last: Vec<Section>,
}

impl Default for Table {
    fn default() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), drawn: 0, last: Vec::new() }
    }
}

impl Table {
    /// Shows the current sections.
    ///
    /// # Errors
    /// When standard output is gone.
    pub(super) fn show(&mut self, sections: Vec<Section>) -> std::io::Result<()> {
        if sections == self.last {
            return Ok(());
        }
        let text =
            if self.terminal { self.redraw(&sections, Window::of_output()) } else { self.changed(&sections) };
        self.last = sections;
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Text that scrolled out of the window cannot be redrawn, so lines that do not fit are left out.
    fn redraw(&mut self, sections: &[Section], window: Window) -> String {
        let mut text = String::new();
        if self.drawn > 0 {
            // Up to the first drawn line, then erase to the end of the screen.
            let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
        }
        let mut lines: Vec<String> = Vec::new();
        for section in sections.iter().filter(|section| !section.lines.is_empty()) {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend(layout(section));
        }
        let shown = window.fitting(&lines);
        self.drawn = 0;
        for line in &shown {
            let _ = writeln!(text, "{line}");
            self.drawn += window.rows(line);
        }
        text
    }

    fn changed(&self, sections: &[Section]) -> String {
        let known = |line: &Line| {
            self.last.iter().flat_map(|section| &section.lines).any(|old| old.settled == line.settled)
        };
        let mut text = String::new();
        for line in sections.iter().flat_map(|section| &section.lines).filter(|line| !known(line)) {
            let _ = writeln!(text, "{}", line.sentence);
        }
        text
    }
}

/// Size of a terminal: columns, and rows above the cursor's row.
#[derive(Debug, Clone, Copy)]
struct Window {
    columns: usize,
    rows: usize,
}

impl Window {
    /// Size of standard output; a common size if the terminal does not report one.
    fn of_output() -> Self {
        let size = tcgetwinsize(std::io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 2);
        let (columns, rows) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
        Self { columns: columns.into(), rows: usize::from(rows) - 1 }
    }

    /// Number of rows that a line takes: a long line wraps.
    fn rows(self, line: &str) -> usize {
        line.chars().count().div_ceil(self.columns).max(1)
    }

    /// The first lines that fit; the last one says how many do not.
    fn fitting(self, lines: &[String]) -> Vec<String> {
        if lines.iter().map(|line| self.rows(line)).sum::<usize>() <= self.rows {
            return lines.to_vec();
        }
        let mut free = self.rows - 1;
        let fits = |line: &&String| {
            let rest = free.checked_sub(self.rows(line));
            free = rest.unwrap_or(0);
            rest.is_some()
        };
        let mut shown: Vec<String> = lines.iter().take_while(fits).cloned().collect();
        shown.push(format!("({} more lines)", lines.len() - shown.len()));
        shown
    }
}

fn layout(section: &Section) -> Vec<String> {
    let headings: Vec<String> = section.headings.iter().map(|&heading| heading.to_owned()).collect();
    let lines: Vec<&[String]> = std::iter::once(headings.as_slice())
        .chain(section.lines.iter().map(|line| line.cells.as_slice()))
        .collect();
    let width = |column: usize| {
        lines.iter().filter_map(|cells| cells.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let laid_out = lines.iter().map(|cells| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        padded.join("   ").trim_end().to_owned()
    });
    laid_out.collect()
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

    use super::{Row, Section, Table, Window, duration, layout, nodes};

    const WINDOW: Window = Window { columns: 80, rows: 23 };

    fn row(node: &str, delivered: u64) -> Row {
        Row { node: node.into(), session: "away".into(), delivered, holds: "3/3".into(), ..Row::default() }
    }

    fn of(rows: &[Row]) -> Vec<Section> {
        vec![nodes(rows.to_vec())]
    }

    #[test]
    fn columns_line_up() {
        let lines = layout(&nodes(vec![row("edge-1", 7), row("a-much-longer-name", 12)]));
        let seconds: Vec<_> =
            lines.iter().map(|line| line.find("away").or_else(|| line.find("SESSION"))).collect();
        assert_eq!(seconds, [Some(21); 3]);
    }

    #[test]
    fn plain_output_has_only_what_changed() {
        let mut table = Table { terminal: false, drawn: 0, last: of(&[row("edge-1", 1), row("edge-2", 1)]) };
        let moved = Row { round_trip: Some(Duration::from_millis(3)), ..row("edge-1", 1) };
        let text = table.changed(&of(&[moved, row("edge-2", 2)]));
        assert_eq!(text.lines().count(), 1);
        assert!(text.starts_with("edge-2: away, delivered 2"));
        table.terminal = true;
        assert!(
            !table.redraw(&of(&[row("edge-1", 1)]), WINDOW).contains('\x1b'),
            "the table was not drawn before"
        );
        assert!(table.redraw(&of(&[row("edge-1", 1)]), WINDOW).starts_with("\x1b[2A"));
    }

    #[test]
    fn rows_that_do_not_fit_the_window_are_left_out() {
        let mut table = Table { terminal: true, drawn: 0, last: Vec::new() };
        let rows: Vec<Row> = (10..60).map(|number| row(&format!("edge-{number}"), 1)).collect();
        let length = layout(&nodes(rows.clone()))[1].chars().count();
        // Each line takes two rows of the window, except the last.
        let text = table.redraw(&of(&rows), Window { columns: length - 1, rows: 10 });
        assert_eq!(table.drawn, 9);
        assert_eq!(text.lines().count(), 5, "{text}");
        assert_eq!(text.lines().last(), Some("(47 more lines)"));
        let text = table.redraw(&of(&rows), Window { columns: 200, rows: 51 });
        assert!(text.starts_with("\x1b[9A") && !text.contains("more"), "{text}");
    }

    #[test]
    fn durations_read_well() {
        let texts =
            [None, Some(40), Some(1_500), Some(2_500_000)].map(|us| duration(us.map(Duration::from_micros)));
        assert_eq!(texts, ["-", "40 µs", "1.5 ms", "2.5 s"]);
    }
}
