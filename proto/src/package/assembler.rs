//! Assembles frames from packages.

use bytes::{Bytes, BytesMut};

use super::{Package, PackageError};
use crate::ids::Lane;
use crate::limits;

/// Puts the pieces of each lane's frames together. Pieces of different lanes may arrive interleaved; those of one lane
/// arrive in order. All lanes together hold at most the bytes of one frame of the largest size.
#[derive(Debug)]
pub struct Assembler {
    lanes: [BytesMut; 3],
    max: usize,
}

impl Default for Assembler {
    fn default() -> Self {
        Self::bounded(limits::FRAME_LEN_MAX)
    }
}

impl Assembler {
    /// An assembler at the start of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for a peer whose frames are at most `max` bytes long.
    #[must_use]
    pub fn bounded(max: usize) -> Self {
        Self { lanes: Default::default(), max }
    }

    /// Bytes of incomplete frames.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lanes.iter().map(BytesMut::len).sum()
    }

    /// Takes the next package of a connection; returns the frame's bytes when it was the last piece. A frame in one
    /// piece is passed on without a copy.
    ///
    /// # Errors
    /// [`PackageError`] when the pieces exceed the limit or a piece is empty; the connection is then lost.
    pub fn accept(&mut self, package: Package) -> Result<Option<(Lane, Bytes)>, PackageError> {
        let Package { lane, more, payload } = package;
        let others = self.pending();
        let [control, delivery, bulk] = &mut self.lanes;
        let pending = match lane {
            Lane::Control => control,
            Lane::Delivery => delivery,
            Lane::Bulk => bulk,
        };
        if more && payload.is_empty() {
            return Err(PackageError::EmptyPiece);
        }
        if pending.is_empty() && !more {
            return Ok(Some((lane, payload)));
        }
        let len = others.saturating_add(payload.len());
        if len > self.max {
            self.lanes = Default::default();
            return Err(PackageError::TooLarge { what: "frame", len, max: self.max });
        }
        pending.extend_from_slice(&payload);
        Ok((!more).then(|| (lane, std::mem::take(pending).freeze())))
    }
}
