//! Every bound that the protocol sets, in one place. `docs/protocol.md` says what happens at each.

use std::time::Duration;

/// Largest frame on the wire and largest object, in bytes (KubeEdge's packer limit,
/// docs/reference/kubeedge.md#package-header).
pub const FRAME_LEN_MAX: usize = 32 * 1024 * 1024;

/// Largest frame, and largest document of dialect `kubeedge`, that the cloud takes from an edge, in bytes, all pieces of
/// unfinished ones together: the largest object, with room for what a message adds.
pub const EDGE_FRAME_LEN_MAX: usize = 4 * 1024 * 1024;

/// Bytes of inventories that the cloud keeps of one edge, at most: of those that are not complete, and of what they claim
/// beyond what the edge should hold. Further entries are asked for again when those are gone; a subscription that brings more
/// is refused.
pub const INVENTORY_BYTES_MAX: usize = 9 * 512 * 1024;

/// Objects that one edge follows in all its subscriptions together, at most; a subscription that would go beyond is refused.
/// As many keys again are kept of what has gone, until the edge knows.
pub const FOLLOWED_MAX: usize = 24_576;

/// The same of a stock edge. The rest of [`LEDGER_MAX`](crate::session::kubeedge::LEDGER_MAX) is for its own set, and what has gone
/// keeps its place until that is confirmed.
pub const STOCK_FOLLOWED_MAX: usize = 6144;

/// Subscriptions that one edge may begin within [`SUBSCRIBE_WINDOW`]; further ones are refused at once. Each costs the API
/// server reviews and perhaps a watch, also when it is ended at once.
pub const SUBSCRIBES_MAX: u32 = 512;

/// Time in which an edge may begin [`SUBSCRIBES_MAX`] subscriptions.
pub const SUBSCRIBE_WINDOW: Duration = Duration::from_secs(60);

/// Largest object that the Kubernetes API stores, in bytes; larger ones are refused before they are sent.
pub const OBJECT_LEN_MAX: usize = 3 * 1024 * 1024;

/// Objects of at least this many encoded bytes travel in the bulk lane.
pub const BULK_OBJECT_MIN: usize = 64 * 1024;

/// Objects of at least this many bytes are compressed once when the peer reads zstd and it makes them smaller.
pub const COMPRESS_MIN: usize = 4 * 1024;

/// Inventories up to this many entries ride in the hello; larger ones start with a digest.
pub const HELLO_INVENTORY_MAX: usize = 512;

/// Entries of one inventory part.
pub const INVENTORY_PART_MAX: usize = 2048;

/// Entries of one whole inventory; a node that claims more is refused.
pub const INVENTORY_MAX: usize = 1_000_000;

/// Times that one session asks for the inventory of a scope again because there was no room for all of it. Each time some
/// thousand objects are deleted at the edge, so that the next session has less to do.
pub const INVENTORY_ROUNDS_MAX: u32 = 64;

/// Deliveries of one lane in flight, at most.
pub const WINDOW_COUNT: usize = 64;

/// Bytes of one lane in flight, at most; one object larger than this travels alone.
pub const WINDOW_BYTES: usize = 1024 * 1024;

/// Requests of one edge that wait for their reply, at most; the next one is refused at once.
pub const REQUESTS_MAX: usize = 256;

/// Watches of its MetaServer that a stock edge may list in one sync. More are not read: a record takes more memory than text.
pub const SYNC_RECORDS_MAX: usize = 1024;

/// Subscriptions of one edge, at most.
pub const SUBSCRIPTIONS_MAX: usize = 128;

/// Dependencies that one pod frame lists, at most.
pub const DEPENDENCIES_MAX: usize = 4096;

/// Time for hello, welcome and inventories to be exchanged.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A side that has sent nothing for this long sends a ping.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);

/// A side that has heard nothing for this long ends the session.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// First wait before a refused object is offered again; doubles up to [`PARK_DELAY_MAX`].
pub const PARK_DELAY_MIN: Duration = Duration::from_secs(1);

/// Longest wait before a refused object is offered again.
pub const PARK_DELAY_MAX: Duration = Duration::from_secs(300);

/// Longest deadline of a request.
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(120);

/// Longest message identity, in bytes; a UUID has 36.
pub const MESSAGE_ID_LEN_MAX: usize = 128;

/// Longest word of a message's route (operation, source, group, destination) and other short header text, in bytes.
pub const WORD_LEN_MAX: usize = 256;

/// Longest resource path of a message, in bytes.
pub const RESOURCE_LEN_MAX: usize = 2048;

/// Longest sentence for operators (refusals, goodbyes), in bytes; longer ones are cut.
pub const SENTENCE_LEN_MAX: usize = 1024;

/// Payload bytes of one package that a receiver must accept; larger frames are cut so that other lanes get their turn
/// in between.
pub const FRAGMENT_LEN: usize = 16 * 1024;

/// Longest software version text of a peer, in bytes; longer ones are cut.
pub const AGENT_LEN_MAX: usize = 128;

/// Longest label or field selector, in bytes.
pub const SELECTOR_LEN_MAX: usize = 4096;

/// Longest bearer token, in bytes.
pub const TOKEN_LEN_MAX: usize = 16 * 1024;

/// Longest path and query of an API call, in bytes.
pub const API_PATH_LEN_MAX: usize = 16 * 1024;

/// Longest `Accept` header of an API call, in bytes; kubectl's list for tables has some 200.
pub const ACCEPT_LEN_MAX: usize = 1024;

/// Longest attestation of the cloud's history, in bytes; those that cloudcore makes now have 57.
pub const ATTESTATION_LEN_MAX: usize = 128;
