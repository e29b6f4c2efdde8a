//! Encryption of Secrets at rest: AES-256-GCM with a key in a separate file.

use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand;
use bytes::Bytes;

use super::error::OpenError;
use tombolo_runtime::files;

const KEY_LEN: usize = 32;

/// Encrypts and decrypts bodies. Every text gets a random nonce, which is stored before it. The row's key is
/// authenticated with the text, so that a body cannot be moved to another row.
pub struct Sealer {
    key: LessSafeKey,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

impl Sealer {
    /// A sealer with this key.
    #[must_use]
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        let key =
            UnboundKey::new(&AES_256_GCM, key).expect("the array has the length of the algorithm's keys");
        Self { key: LessSafeKey::new(key) }
    }

    /// Reads the key from a file, or generates one and writes it there (mode 0600).
    ///
    /// # Errors
    /// [`OpenError::Io`] when the file cannot be read or written, or is not a key.
    pub fn load(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: path.into(), source };
        if let Some(content) = files::read_private(path).map_err(failed)? {
            let key = <[u8; KEY_LEN]>::try_from(content.as_slice())
                .map_err(|_| failed(std::io::Error::other("it is not a key of 32 bytes")))?;
            return Ok(Self::new(&key));
        }
        let mut key = [0; KEY_LEN];
        rand::fill(&mut key).map_err(|_| failed(std::io::Error::other("no random numbers")))?;
        files::replace(path, &key, files::PRIVATE).map_err(failed)?;
        Ok(Self::new(&key))
    }

    /// Encrypts `text` for the row `row_key`; `None` only if no random numbers are available.
    pub(super) fn seal(&self, row_key: &[u8], text: &[u8]) -> Option<Bytes> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = text.to_vec();
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(row_key), &mut sealed)
            .ok()?;
        Some([nonce.as_slice(), &sealed].concat().into())
    }

    /// Decrypts the output of [`Sealer::seal`]; `None` if the key, the place or the bytes differ.
    pub(super) fn open(&self, row_key: &[u8], sealed: &[u8]) -> Option<Bytes> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = text.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let len = self.key.open_in_place(nonce, Aad::from(row_key), &mut text).ok()?.len();
        text.truncate(len);
        Some(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_value_opens_only_in_the_same_context() {
        let sealer = Sealer::new(&[7; KEY_LEN]);
        let sealed = sealer.seal(b"here", b"text").unwrap();
        assert_eq!(sealer.open(b"here", &sealed).unwrap(), "text");
        assert_eq!(sealer.open(b"there", &sealed), None);
        assert_eq!(sealer.open(b"here", &sealed[..5]), None);
        assert_eq!(Sealer::new(&[8; KEY_LEN]).open(b"here", &sealed), None);
        assert_ne!(sealer.seal(b"here", b"text").unwrap(), sealed, "a nonce is never used twice");
    }

    #[test]
    fn key_file_is_created_once_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.key");
        let sealed = Sealer::load(&path).unwrap().seal(b"", b"text").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Sealer::load(&path).unwrap().open(b"", &sealed).unwrap(), "text");
        std::fs::write(&path, b"short").unwrap();
        let error = Sealer::load(&path).unwrap_err().to_string();
        assert!(error.contains("store.key") && error.contains("32 bytes"), "{error}");
    }
}
