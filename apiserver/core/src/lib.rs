//! A Kubernetes API server over a store: list, watch and write as every Kubernetes client expects them.
//!
//! The owner of a server provides a [`store::Store`], a [`registry::Registry`] of kinds, hooks for authentication,
//! authorization and admission ([`auth`], [`admission`]) and a [`backend::WriteBackend`]; [`api::ApiServer`] answers
//! requests and [`server::serve`] serves it on a listener. [`memory::MemoryStore`] is a complete store, durable with a
//! journal; [`write::LocalWrites`] is the complete write logic.

pub mod accept;
pub mod accounts;
pub mod admission;
pub mod any_certificate;
pub mod api;
pub mod attributes;
pub mod auth;
pub mod backend;
pub mod blocking;
pub mod body;
mod connection_slots;
pub mod discovery;
pub mod encode;
mod event_cache;
pub mod field_error;
pub mod gofmt;
pub mod history;
pub mod identity;
pub mod input;
pub mod kinds;
pub mod list;
pub mod memory;
pub mod names;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod query;
pub mod raw;
pub mod registry;
mod request_limits;
pub mod revision;
pub mod scale;
pub mod schema;
pub mod selector;
pub mod senders;
pub mod server;
pub mod sources;
pub mod ssa;
pub mod status;
pub mod store;
pub mod store_error;
pub mod stored;
pub mod tree;
pub mod unread;
pub mod value;
pub mod version;
pub mod watch;
pub mod write;
mod write_coalescer;
pub mod write_timeout;
