//! Cuts packages out of a byte stream.

use bytes::{Bytes, BytesMut};

use super::{HEADER_LEN, Header, Package, PackageError};
use crate::limits;

/// Cuts a byte stream into packages.
///
/// The header is checked as soon as its ten bytes have arrived, and the buffer grows with the bytes received, never
/// with the length that the header declares. After an error the stream is lost: every later call fails with the same
/// error.
#[derive(Debug)]
pub struct Reader {
    buffer: BytesMut,
    state: ReaderState,
    /// Longest payload.
    max: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self::bounded(limits::FRAME_LEN_MAX)
    }
}

#[derive(Debug, Default)]
enum ReaderState {
    #[default]
    Header,
    Payload(Header),
    Failed(PackageError),
}

impl Reader {
    /// A reader at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for a peer whose packages have no more than `max` bytes of payload.
    #[must_use]
    pub fn bounded(max: usize) -> Self {
        Self { buffer: BytesMut::new(), state: ReaderState::default(), max }
    }

    /// Appends received bytes. Call [`Self::pop`] until it returns `None` before pushing more, so that at most one
    /// incomplete package is buffered.
    pub fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.state, ReaderState::Failed(_)) {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next complete package, if its last byte has arrived.
    ///
    /// # Errors
    /// [`PackageError`] when the stream holds something else.
    pub fn pop(&mut self) -> Result<Option<Package>, PackageError> {
        loop {
            match &self.state {
                ReaderState::Failed(error) => return Err(error.clone()),
                ReaderState::Header => {
                    let Some(head) = self.buffer.first_chunk::<HEADER_LEN>() else { return Ok(None) };
                    match Header::decode(head).and_then(|header| self.judge(header)) {
                        Ok(header) => {
                            let _ = self.take(HEADER_LEN);
                            self.state = ReaderState::Payload(header);
                        }
                        Err(error) => {
                            self.buffer = BytesMut::new();
                            self.state = ReaderState::Failed(error);
                        }
                    }
                }
                ReaderState::Payload(header) => {
                    let header = *header;
                    if self.buffer.len() < header.payload_len() {
                        return Ok(None);
                    }
                    self.state = ReaderState::Header;
                    let payload = self.take(header.payload_len());
                    return Ok(Some(Package { lane: header.lane, more: header.more, payload }));
                }
            }
        }
    }

    fn judge(&self, header: Header) -> Result<Header, PackageError> {
        let (len, max) = (header.payload_len(), self.max);
        if len > max { Err(PackageError::TooLarge { what: "package", len, max }) } else { Ok(header) }
    }

    /// Whether the stream may end here: no package is partially received.
    #[must_use]
    pub fn is_between_packages(&self) -> bool {
        matches!(self.state, ReaderState::Header) && self.buffer.is_empty()
    }

    /// Memory held for incomplete packages, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.buffer.capacity()
    }

    fn take(&mut self, len: usize) -> Bytes {
        let taken = self.buffer.split_to(len).freeze();
        if self.buffer.is_empty() {
            // The remaining bytes would keep the whole allocation of a large package alive.
            self.buffer = BytesMut::new();
        }
        taken
    }
}
