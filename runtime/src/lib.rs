//! The process shell that every Tombolo program shares: signals and drain, readiness, supervised tasks,
//! back-off, logs, listeners, files and the admin endpoints.
//!
//! Nothing here is global except what the operating system makes global (signals, the limit of open files) and the one
//! call of [`telemetry::init`]: a cloud and many edges can run in one process, each with its own values.

pub mod admin;
pub mod backoff;
pub mod blocking;
pub mod budget;
pub mod connection_limiter;
pub mod drain;
pub mod files;
pub mod host;
mod lines;
pub mod listen;
mod open_files;
pub mod ready;
mod sentence;
pub mod settings;
pub mod signals;
pub mod tasks;
pub mod telemetry;
pub mod time;

pub use backoff::{Backoff, BackoffConfig, doubled};
pub use budget::{Budget, Held, Share};
pub use drain::{Drain, DrainBlocker, DrainOutcome, Trigger};
pub use host::TaskHost;
pub use lines::LineLimit;
pub use open_files::raise_limit as raise_open_files;
pub use ready::{Readiness, ReadyGuard};
pub use sentence::sentence;
pub use tasks::{TaskError, Tasks};
