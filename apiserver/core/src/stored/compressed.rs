//! Compressed bodies of stored objects.
//!
//! Objects of one resource share most of their text: type, managed fields, names of fields. A body that is not about to
//! be read is compressed against another body of its resource (LZ4 with that body as the dictionary), which takes a few
//! microseconds, and about one to decompress.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lz4_flex::block::{compress_into_with_dict, decompress_into_with_dict, get_maximum_output_size};
use parking_lot::Mutex;
use tombolo_proto::object::Resource;

use super::Stored;

#[cfg(test)]
mod tests;

/// The newest objects, up to this number, stay uncompressed, because watchers are about to read them. A later watcher
/// costs a microsecond of decompression, once for all that watch the same.
pub const FRESH_COUNT_MAX: usize = 32;

/// Maximum number of bytes of bodies of the newest objects that stay uncompressed.
pub const FRESH_BYTES_MAX: usize = 128 * 1024;

/// Maximum length of a sample in bytes: the beginning of a body, with its metadata.
const SAMPLE_LEN_MAX: usize = 4 * 1024;

/// Maximum number of bodies compressed against one sample. A sample lives as long as one of them; since the written
/// objects change over time, so must the sample.
const SAMPLE_USES_MAX: u32 = 1024;

/// Maximum size in bytes of each working buffer that is kept from one body to the next.
const BENCH_LEN_MAX: usize = 16 * 1024;

/// Minimum saving in bytes: about the difference in size between the two representations.
const GAIN_MIN: usize = 64;

/// The text of one object.
pub(crate) struct CompressedBody {
    held: Mutex<BodyRepresentation>,
}

enum BodyRepresentation {
    /// Boxed, because few bodies are plain and there is one [`BodyRepresentation`] for every object.
    Plain(Box<Bytes>),
    Compressed {
        compressed: Box<[u8]>,
        sample: Arc<Sample>,
        len: usize,
    },
}

/// The text that bodies of a resource are compressed against.
struct Sample {
    text: Box<[u8]>,
}

impl CompressedBody {
    pub(crate) fn new(body: Bytes) -> Self {
        Self { held: Mutex::new(BodyRepresentation::Plain(Box::new(body))) }
    }

    pub(crate) fn len(&self) -> usize {
        match &*self.held.lock() {
            BodyRepresentation::Plain(body) => body.len(),
            BodyRepresentation::Compressed { len, .. } => *len,
        }
    }

    /// Memory in bytes of the text, without the shared sample.
    pub(crate) fn held(&self) -> usize {
        match &*self.held.lock() {
            BodyRepresentation::Plain(body) => body.len(),
            BodyRepresentation::Compressed { compressed, .. } => compressed.len(),
        }
    }

    pub(crate) fn read(&self) -> Bytes {
        match &*self.held.lock() {
            BodyRepresentation::Plain(body) => body.as_ref().clone(),
            BodyRepresentation::Compressed { compressed, sample, len } => {
                let mut body = vec![0; *len];
                decompress(compressed, sample, &mut body);
                body.into()
            }
        }
    }

    /// Appends the text from an offset on.
    pub(crate) fn append(&self, from: usize, out: &mut BytesMut) {
        match &*self.held.lock() {
            BodyRepresentation::Plain(body) => out.extend_from_slice(&body[from..]),
            BodyRepresentation::Compressed { compressed, sample, len } => {
                let start = out.len();
                out.resize(start + len, 0);
                decompress(compressed, sample, &mut out[start..]);
                out.copy_within(start + from.., start);
                out.truncate(start + len - from);
            }
        }
    }

    fn compress(&self, sample: &Arc<Sample>, bench: &mut Bench) {
        let plain = match &*self.held.lock() {
            BodyRepresentation::Plain(body) => body.as_ref().clone(),
            BodyRepresentation::Compressed { .. } => return,
        };
        let Some(compressed) = bench.compress(&plain, sample) else { return };
        // Copied to an allocation of the exact length: shrinking a long buffer would leave a gap in memory after every
        // object.
        let (compressed, len) = (compressed.into(), plain.len());
        *self.held.lock() = BodyRepresentation::Compressed { compressed, sample: Arc::clone(sample), len };
    }
}

/// Working buffers, as large as the largest body so far but at most [`BENCH_LEN_MAX`] between two bodies.
#[derive(Default)]
struct Bench {
    compressed: Vec<u8>,
    again: Vec<u8>,
}

impl Bench {
    /// Compresses a body; `None` when the result is not worth keeping.
    fn compress(&mut self, plain: &[u8], sample: &Sample) -> Option<&[u8]> {
        self.compressed.truncate(BENCH_LEN_MAX);
        self.compressed.shrink_to(BENCH_LEN_MAX);
        self.again.truncate(BENCH_LEN_MAX);
        self.again.shrink_to(BENCH_LEN_MAX);
        self.compressed.resize(get_maximum_output_size(plain.len()), 0);
        let len = compress_into_with_dict(plain, &mut self.compressed, &sample.text).ok()?;
        if len + GAIN_MIN > plain.len() {
            return None;
        }
        self.again.clear();
        self.again.resize(plain.len(), 0);
        let compressed = self.compressed.get(..len)?;
        decompress(compressed, sample, &mut self.again);
        // A defect of the library must not corrupt the store.
        (self.again == plain).then_some(compressed)
    }
}

/// Decompresses to `body`. Data that cannot be decompressed was never kept (see [`CompressedBody::pack`]).
fn decompress(compressed: &[u8], sample: &Sample, body: &mut [u8]) {
    let decompressed = decompress_into_with_dict(compressed, body, &sample.text);
    debug_assert_eq!(decompressed.ok(), Some(body.len()), "it was decompressed before it was kept");
}

impl fmt::Debug for CompressedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.read(), f)
    }
}

/// Compresses the objects of one store after newer ones were written.
#[derive(Default)]
pub struct Compressor {
    fresh: VecDeque<Arc<Stored>>,
    fresh_len: usize,
    /// One sample per resource that has objects.
    samples: HashMap<Resource, Used>,
    bench: Bench,
}

struct Used {
    sample: Arc<Sample>,
    uses: u32,
}

impl Compressor {
    /// Records an object that was just written.
    pub fn add(&mut self, object: &Arc<Stored>) {
        self.fresh_len += object.body_len();
        self.fresh.push_back(Arc::clone(object));
    }

    /// Compresses objects beyond the limits for uncompressed ones, oldest first.
    pub fn settle(&mut self) {
        while self.fresh.len() > FRESH_COUNT_MAX || self.fresh_len > FRESH_BYTES_MAX {
            let Some(object) = self.fresh.pop_front() else { break };
            self.fresh_len -= object.body_len();
            // An object that nothing else refers to is dropped.
            if Arc::strong_count(&object) > 1 {
                self.compress(&object);
            }
        }
    }

    /// Compresses an object now.
    pub fn compress(&mut self, object: &Stored) {
        let resource = object.key.resource();
        if let Some(used) = self.samples.get_mut(resource).filter(|used| used.uses < SAMPLE_USES_MAX) {
            used.uses += 1;
            return object.text.compress(&used.sample, &mut self.bench);
        }
        let body = object.body();
        let text = body[..body.len().min(SAMPLE_LEN_MAX)].into();
        let sample = Arc::new(Sample { text });
        object.text.compress(&sample, &mut self.bench);
        self.samples.insert(resource.clone(), Used { sample, uses: 1 });
    }

    /// Drops the sample of a withdrawn resource.
    pub fn forget(&mut self, resource: &Resource) {
        self.samples.remove(resource);
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor").field("fresh", &self.fresh.len()).finish_non_exhaustive()
    }
}
