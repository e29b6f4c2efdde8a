//! Transport and dialect as command-line choices.

use std::fmt;

use clap::ValueEnum;

/// Transport that edges use.
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

/// Dialect that edges speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DialectOption {
    /// Frames in lanes, over QUIC or WebSocket: the dialect of Tombolo's `edgecore`.
    Tombolo,
    /// JSON messages over WebSocket: the dialect of KubeEdge edges.
    Kubeedge,
}

impl fmt::Display for DialectOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tombolo => "tombolo",
            Self::Kubeedge => "kubeedge",
        })
    }
}
