//! Logging: structured, to standard error, as text or JSON, with a filter that can be changed at run time.

use std::io::IsTerminal;
use std::str::FromStr;

use thiserror::Error;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{ParseError, Targets, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// Environment variable whose filter overrides the configured one, in the syntax of
/// `tracing_subscriber::filter::Targets` ("info,tombolo_link=debug").
pub const FILTER_VARIABLE: &str = "TOMBOLO_LOG";

/// Format of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

impl FromStr for Format {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(TelemetryError::Format(other.to_owned())),
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// Unknown format.
    #[error("unknown log format {0:?}: use \"text\" or \"json\"")]
    Format(String),
    /// The filter does not parse.
    #[error("bad log filter {filter:?} ({origin}): {reason}")]
    Filter {
        /// The filter as given.
        filter: String,
        /// Where it came from.
        origin: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A subscriber is already set: only `main` may call `init`, once.
    #[error("logging is already set up")]
    AlreadySet,
}

/// Sets up the process's logging. Only for `main`, because a process has one subscriber.
///
/// # Errors
/// [`TelemetryError`] if a filter does not parse or a subscriber is already set.
pub fn init(format: Format, default_filter: &str) -> Result<FilterHandle, TelemetryError> {
    let from_env = std::env::var(FILTER_VARIABLE).ok();
    let filter = choose_filter(from_env.as_deref(), default_filter)?;
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    // Colours are for terminals: in a file or a journal they would break a search for `node=edge-a`.
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let set = match format {
        Format::Text => registry.with(layer.with_filter(filter_fn(may_be_told))).try_init(),
        Format::Json => {
            let layer = layer.json().flatten_event(true);
            registry.with(layer.with_filter(filter_fn(may_be_told))).try_init()
        }
    };
    set.map_err(|_| TelemetryError::AlreadySet)?;
    Ok(FilterHandle { handle })
}

/// Whether a line may be logged. When kube's client cannot parse an answer of the API server, it logs a warning with
/// the whole text, which may contain all Secrets: that warning is suppressed.
fn may_be_told(line: &Metadata<'_>) -> bool {
    line.target() != "kube_client::client" || *line.level() != Level::WARN
}

/// Changes the log filter of the running process.
#[derive(Debug, Clone)]
pub struct FilterHandle {
    handle: reload::Handle<Targets, Registry>,
}

impl FilterHandle {
    /// Replaces the filter.
    ///
    /// # Errors
    /// [`TelemetryError::Filter`] if it does not parse; the old filter stays.
    pub fn set(&self, filter: &str) -> Result<(), TelemetryError> {
        let filter = parse(filter, "request")?;
        self.handle.reload(filter).map_err(|_| TelemetryError::AlreadySet)
    }
}

fn choose_filter(from_env: Option<&str>, default: &str) -> Result<Targets, TelemetryError> {
    match from_env {
        Some(filter) if !filter.trim().is_empty() => parse(filter, FILTER_VARIABLE),
        _ => parse(default, "configuration"),
    }
}

fn parse(filter: &str, origin: &'static str) -> Result<Targets, TelemetryError> {
    // A target with a leading space would match nothing.
    let parts: Vec<&str> = filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.join(",").parse().map_err(|error: ParseError| TelemetryError::Filter {
        filter: filter.to_owned(),
        origin,
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unparsable_answers_are_not_logged() {
        let lines = Lines::default();
        let written = lines.clone();
        let layer = fmt::layer().with_writer(move || written.clone()).with_filter(filter_fn(may_be_told));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(target: "kube_client::client", "{{\"kind\":\"SecretList\"}}");
            tracing::warn!(target: "kube_client::client::tls", "no certificate is checked");
            tracing::error!(target: "kube_client::client", "failed");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(
            !text.contains("SecretList") && text.contains("no certificate") && text.contains("failed"),
            "{text}"
        );
    }

    #[test]
    fn the_environment_wins_and_mistakes_name_their_origin() {
        assert_eq!(choose_filter(Some("debug"), "info").unwrap().to_string(), "debug");
        assert_eq!(choose_filter(Some(" "), "info").unwrap().to_string(), "info");
        assert_eq!(choose_filter(None, "info").unwrap().to_string(), "info");
        let several = choose_filter(Some("warn, tombolo_link=debug,"), "info").unwrap();
        assert!(several.would_enable("tombolo_link::quic", &tracing::Level::DEBUG));
        assert!(!several.would_enable("tombolo_edge", &tracing::Level::INFO));
        let error = choose_filter(Some("a=b=c"), "info").unwrap_err().to_string();
        assert!(error.starts_with("bad log filter \"a=b=c\" (TOMBOLO_LOG): "), "{error}");
    }

    #[test]
    fn formats_by_name() {
        assert_eq!("json".parse::<Format>().unwrap(), Format::Json);
        assert!("xml".parse::<Format>().is_err());
    }
}
