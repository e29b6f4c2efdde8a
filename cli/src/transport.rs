//! The transport as a command-line choice.

use std::fmt;

use clap::ValueEnum;

/// How edges connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportOption {
    /// QUIC only.
    Quic,
    /// WebSocket only.
    Websocket,
}

impl fmt::Display for TransportOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quic => "quic",
            Self::Websocket => "websocket",
        })
    }
}
