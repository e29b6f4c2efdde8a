//! The hash of object keys.
//!
//! Peers choose names, so they must not be able to find keys with equal hashes. The secret comes from the process, because
//! this crate has no randomness: with the same secret, every run iterates over its maps in the same order.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use siphasher::sip::SipHasher13;
use thiserror::Error;

static SECRET: OnceLock<[u64; 2]> = OnceLock::new();

/// Keys were hashed before the secret was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the secret of the hash of object keys is already in use: set it when the process starts")]
pub struct SecretInUse;

/// Sets the secret of the hash, once in a process, before it makes the first [`ObjectKey`](crate::ObjectKey). Each
/// program calls it with random numbers; without it the secret is a constant, as in tests.
///
/// # Errors
/// [`SecretInUse`] when a key was hashed before, or the secret was set before.
pub fn set_hash_secret(secret: [u64; 2]) -> Result<(), SecretInUse> {
    SECRET.set(secret).map_err(|_| SecretInUse)
}

/// The hash of a value under the process's secret.
pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let [first, second] = *SECRET.get_or_init(|| [0; 2]);
    let mut hasher = SipHasher13::new_with_keys(first, second);
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_cannot_change_once_a_value_was_hashed() {
        let hash = hash_of(&"a");
        assert_eq!(set_hash_secret([1, 2]), Err(SecretInUse));
        assert_eq!((hash_of(&"a"), hash_of(&"b") == hash), (hash, false));
    }
}
