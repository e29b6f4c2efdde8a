//! All bounds of the protocol. `docs/protocol.md` says what happens when each is reached.

use std::time::Duration;

/// Largest frame on the wire and largest object, in bytes (KubeEdge's compressor limit,
/// docs/reference/kubeedge.md#package-header).
pub const FRAME_LEN_MAX: usize = 32 * 1024 * 1024;

/// Largest frame, and largest document of dialect `kubeedge`, that the cloud accepts from an edge, in bytes; the
/// pieces of all unfinished frames count together. Has room for the largest object and what a message adds.
pub const EDGE_FRAME_LEN_MAX: usize = 4 * 1024 * 1024;

/// Most bytes of inventories that the cloud keeps for one edge: incomplete inventories, and entries beyond what the
/// edge should hold. Further entries are requested again when those are deleted; a subscription whose inventory
/// exceeds the bound is refused.
pub const INVENTORY_BYTES_MAX: usize = 9 * 512 * 1024;

/// Most objects that one edge follows in all its subscriptions together; a subscription that would exceed this is
/// refused. The same number of keys is kept for deleted objects until the edge has been informed.
pub const FOLLOWED_MAX: usize = 24_576;

/// The same for a KubeEdge edge. The rest of [`LEDGER_MAX`](crate::session::kubeedge::LEDGER_MAX) is for its own set,
/// and a deleted object keeps its slot until the deletion is confirmed.
pub const KUBEEDGE_FOLLOWED_MAX: usize = 6144;

/// Subscriptions that one edge may begin within [`SUBSCRIBE_WINDOW`]; further ones are refused at once. Each costs the
/// API server reviews and perhaps a watch, even when it is ended at once.
pub const SUBSCRIBES_MAX: u32 = 512;

/// Time in which an edge may begin [`SUBSCRIBES_MAX`] subscriptions.
pub const SUBSCRIBE_WINDOW: Duration = Duration::from_secs(60);

/// Largest object that the Kubernetes API stores, in bytes; larger ones are refused before they are sent.
pub const OBJECT_LEN_MAX: usize = 3 * 1024 * 1024;

/// Objects of at least this many encoded bytes travel in the bulk lane.
pub const BULK_OBJECT_MIN: usize = 64 * 1024;

/// Objects of at least this many bytes are compressed once, when the peer reads zstd and compression makes them
/// smaller.
pub const COMPRESS_MIN: usize = 4 * 1024;

/// Inventories of up to this many entries are part of the hello; larger ones start with a digest.
pub const HELLO_INVENTORY_MAX: usize = 512;

/// Entries of one inventory part.
pub const INVENTORY_PART_MAX: usize = 2048;

/// Entries of one whole inventory; a node that claims more is refused.
pub const INVENTORY_MAX: usize = 1_000_000;

/// Most times that one session requests the inventory of a subscription again because there was no room for all of it.
/// Each round deletes some thousand objects at the edge, so the next session has less to do.
pub const INVENTORY_ROUNDS_MAX: u32 = 64;

/// Most deliveries of one lane in flight.
pub const WINDOW_COUNT: usize = 64;

/// Most bytes of one lane in flight; one larger object travels alone.
pub const WINDOW_BYTES: usize = 1024 * 1024;

/// Most requests of one edge that wait for their reply; the next one is refused at once.
pub const REQUESTS_MAX: usize = 256;

/// Watches of its MetaServer that a KubeEdge edge may list in one sync. Further ones are not read: a record takes more
/// memory than its text.
pub const SYNC_RECORDS_MAX: usize = 1024;

/// Most subscriptions of one edge.
pub const SUBSCRIPTIONS_MAX: usize = 128;

/// Most dependencies that one pod frame lists.
pub const DEPENDENCIES_MAX: usize = 4096;

/// Time for hello, welcome and inventories to be exchanged.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A side that has sent nothing for this long sends a ping.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);

/// A side that has received nothing for this long ends the session.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// First wait before a refused object is offered again; doubles up to [`PARK_DELAY_MAX`].
pub const PARK_DELAY_MIN: Duration = Duration::from_secs(1);

/// Longest wait before a refused object is offered again.
pub const PARK_DELAY_MAX: Duration = Duration::from_secs(300);

/// Longest deadline of a request.
pub const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(120);

/// Longest message identity, in bytes; a UUID has 36.
pub const MESSAGE_ID_LEN_MAX: usize = 128;

/// Longest keyword of a message's route (operation, source, group, destination) and other short header text, in bytes.
pub const WORD_LEN_MAX: usize = 256;

/// Longest resource path of a message, in bytes.
pub const RESOURCE_LEN_MAX: usize = 2048;

/// Longest text for operators (refusals, goodbyes), in bytes; longer ones are cut.
pub const SENTENCE_LEN_MAX: usize = 1024;

/// Payload bytes of one package that a receiver must accept; larger frames are cut so that other lanes can send in
/// between.
pub const FRAGMENT_LEN: usize = 16 * 1024;

/// Longest software version text of a peer, in bytes; longer ones are cut.
pub const AGENT_LEN_MAX: usize = 128;

/// Longest label or field selector, in bytes.
pub const SELECTOR_LEN_MAX: usize = 4096;

/// Longest bearer token, in bytes.
pub const TOKEN_LEN_MAX: usize = 16 * 1024;

/// Longest path and query of an API call, in bytes.
pub const API_PATH_LEN_MAX: usize = 16 * 1024;

/// Longest `Accept` header of an API call, in bytes; kubectl's header for tables has about 200.
pub const ACCEPT_LEN_MAX: usize = 1024;

/// Longest attestation of the cloud's history, in bytes; cloudcore's current ones have 57.
pub const ATTESTATION_LEN_MAX: usize = 128;
