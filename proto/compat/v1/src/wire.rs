//! The types of version 1, generated from `protocol/`.
#![allow(missing_docs, unreachable_pub, clippy::all)]

pub use self::message::{Message, MessageHeader, MessageRouter};
pub use self::tombolo::v1::*;

mod message {
    include!(concat!(env!("OUT_DIR"), "/message.rs"));
}

mod tombolo {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/tombolo.v1.rs"));
    }
}
