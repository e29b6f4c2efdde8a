//! Frames out of packages.

use bytes::{Bytes, BytesMut};

use super::{Package, PackageError, too_large};
use crate::ids::Lane;
use crate::limits;

/// Puts the pieces of each lane's frames together. Pieces of different lanes may come mixed, those of one lane come
/// in order. A lane holds at most [`limits::FRAME_LEN_MAX`] bytes.
#[derive(Debug, Default)]
pub struct Assembler {
    lanes: [BytesMut; 3],
}

impl Assembler {
    /// An assembler at the start of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next package of a connection; gives the frame's bytes when it was the last piece. A frame that came
    /// in one piece is passed on without a copy.
    ///
    /// # Errors
    /// [`PackageError`] when the pieces exceed the limit or a piece is empty; the connection is then lost.
    pub fn accept(&mut self, package: Package) -> Result<Option<(Lane, Bytes)>, PackageError> {
        let Package { lane, more, payload } = package;
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
        let len = pending.len().saturating_add(payload.len());
        if len > limits::FRAME_LEN_MAX {
            *pending = BytesMut::new();
            return Err(too_large("frame", len));
        }
        pending.extend_from_slice(&payload);
        Ok((!more).then(|| (lane, std::mem::take(pending).freeze())))
    }
}
