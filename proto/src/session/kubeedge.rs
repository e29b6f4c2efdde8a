//! The two ends of a connection in dialect `kubeedge`: JSON messages with KubeEdge peers.
//!
//! A KubeEdge edge hands every message to a task of its own and compares no versions, never lists what it holds, and
//! stores any object that a reply carries. The cloud's end therefore keeps at most one version of an object under way,
//! treats replies that carry an object as deliveries of it, and knows from the [`Ledger`] everything the edge was ever
//! given. `docs/protocol.md` has the rules, `docs/decisions/0004-kubeedge-dialect.md` the reasons.
//!
//! # How to drive a session
//!
//! Like those of dialect `tombolo` (see the [module above](super)), with three differences:
//!
//! - Frames are documents: `handle_document` takes the bytes of a WebSocket message, `poll_transmit` gives a numbered
//!   [`Outgoing`], and there are no lanes. The link reports through `transmitted` when a document has left the socket.
//!   Resends are timed from there, so that repeats of documents that still wait do not slow down a slow link.
//! - The cloud's session gives ledger states to store (`poll_ledger`) and receives the result (`ledger_saved`,
//!   `ledger_failed`, `ledger_conflict`). No object is sent for the first time before the ledger names it.
//! - There is no goodbye: a session that is over closes the connection (docs/reference/kubeedge.md#end-of-a-session).
//!
//! Events are the same as in dialect `tombolo`, so that one owner serves both.

mod application;
mod cloud;
mod down;
mod edge;
mod kinds;
mod known;
mod ledger;
mod message_ids;
mod outgoing;
mod shape;
mod typed;
mod up;

pub use application::{Application, ApplicationError, ApplicationStatus, Verb};
pub use cloud::{CloudConfig, CloudSession, CloudStats, WINDOW_DEFAULT, WINDOW_MAX};
pub use down::{Broken, Down};
pub use edge::{EdgeConfig, EdgeSession};
pub use kinds::{is_word_of_object, kind_name, path_of, resource_of, type_word};
pub use known::Kinds;
pub use ledger::{LEDGER_BYTES_MAX, LEDGER_MAX, Ledger, LedgerEntry, LedgerFull, LedgerWrite, Share, Watch};
pub use outgoing::Outgoing;
pub use shape::Shape;
pub use typed::{completed, completed_list};
pub use up::Up;

use std::time::Duration;

/// Interval of an edge's keepalives (docs/reference/kubeedge.md#keepalive).
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Silence of an edge after which its session is over (docs/reference/kubeedge.md#keepalive); any message counts, not
/// only keepalives.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time from when a delivery has left the socket until it is sent again under the same id
/// (docs/reference/kubeedge.md#resends).
pub const RESEND_AFTER: Duration = Duration::from_secs(5);

/// Resends of one delivery (docs/reference/kubeedge.md#resends); after the last one the delivery counts as refused.
pub const RESENDS_MAX: u8 = 4;

/// Time after which a KubeEdge edge has certainly written the object of a reply that it does not acknowledge.
pub const REPLY_SETTLES: Duration = Duration::from_secs(2);

/// Least time between two ledger writes that no delivery waits for: removals and versions. Each session waits its own
/// time, between one and two times this, so that nodes that connected together do not write together.
pub const LEDGER_LAZY: Duration = Duration::from_secs(600);

/// Wait before a failed ledger write is retried.
pub const LEDGER_RETRY: Duration = Duration::from_secs(1);

/// Time in which a request of the kubelet must be answered: less than the 60 s that a KubeEdge edge waits
/// (docs/reference/kubeedge.md#remote-calls).
pub const ANSWER_WITHIN: Duration = Duration::from_secs(55);

/// The same for requests of the edge's MetaServer, which waits 10 s (docs/reference/kubeedge.md#application-messages).
pub const APPLICATION_ANSWER_WITHIN: Duration = Duration::from_secs(9);
