//! Findings, and how they are reported.

use std::fmt;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Everything is in order.
    Ok,
    /// Works, or cannot be judged from here; worth a look.
    Warn,
    /// Does not work.
    Fail,
}

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was examined, and where.
    pub check: String,
    /// What was found.
    pub text: String,
    /// What to do about it; empty if no action is needed.
    pub advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        let Self { check, text, advice, .. } = self;
        write!(f, "{level:<4}  {}: {}", line(check), line(text))?;
        if advice.is_empty() { Ok(()) } else { write!(f, ". {}", line(advice)) }
    }
}

/// Joins the lines of a server's message: a finding has one line.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Findings so far.
pub struct Report {
    findings: Vec<Finding>,
    tell: Box<dyn FnMut(&Finding) + Send>,
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("findings", &self.findings).finish_non_exhaustive()
    }
}

impl Report {
    /// An empty report; `tell` receives each finding as it is made.
    pub fn new(tell: impl FnMut(&Finding) + Send + 'static) -> Self {
        Self { findings: Vec::new(), tell: Box::new(tell) }
    }

    /// All findings, in the order of the checks.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Findings of level [`Level::Fail`].
    pub fn failures(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.level == Level::Fail)
    }

    /// Reports that something is in order.
    pub(super) fn ok(&mut self, check: impl Into<String>, text: impl Into<String>) {
        self.add(Level::Ok, check, text, "");
    }

    /// Reports that something is worth a look.
    pub(super) fn warn(
        &mut self,
        check: impl Into<String>,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.add(Level::Warn, check, text, advice);
    }

    /// Reports that something does not work.
    pub(super) fn fail(
        &mut self,
        check: impl Into<String>,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.add(Level::Fail, check, text, advice);
    }

    fn add(
        &mut self,
        level: Level,
        check: impl Into<String>,
        text: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let finding = Finding { level, check: check.into(), text: text.into(), advice: advice.into() };
        (self.tell)(&finding);
        self.findings.push(finding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line() {
        let mut report = Report::new(|_| ());
        report.ok("api server", "v1.36.0");
        report.fail("secret casecret", "does\nnot exist", "Start cloudcore");
        let lines: Vec<String> = report.findings().iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            ["ok    api server: v1.36.0", "FAIL  secret casecret: does not exist. Start cloudcore"]
        );
        assert_eq!(report.failures().count(), 1);
    }
}
