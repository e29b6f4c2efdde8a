//! Attestations: statements about the cloud's history that edges store, so that cloudcore's own disk need not
//! (`docs/decisions/0010-epoch-witness.md`).
//!
//! An attestation states how far the history of this cluster had progressed. Its holder can present it, only a
//! cloudcore of this cluster can make it, and it is meaningless in another cluster.

use aws_lc_rs::{hkdf, hmac};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tombolo_proto::{CloudRevision, Uid};

use crate::history_progress::HistoryProgress;

/// First byte of an attestation: its format.
const FORM: u8 = 1;

/// Length of the MAC, in bytes.
const TAG_LEN: usize = 32;

/// Length of an attestation, in bytes: format, generation, beat, revision, MAC.
const LEN: usize = 1 + 3 * 8 + TAG_LEN;

/// The purpose of the key; other purposes use other keys.
const PURPOSE: &[u8] = b"tombolo attestation of the epoch, 1";

/// Makes and verifies attestations. The key is derived from the private key of cloudcore's CA, which a backup of the
/// cluster restores with everything else.
pub(crate) struct Attester {
    key: hmac::Key,
}

impl std::fmt::Debug for Attester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attester")
    }
}

impl Attester {
    /// Derives the key from a secret that all replicas of cloudcore share and no one else has.
    ///
    /// # Errors
    /// When the cryptography of this machine does not work.
    pub(crate) fn new(secret: &[u8]) -> Result<Self, aws_lc_rs::error::Unspecified> {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, b"tombolo").extract(secret);
        let key = secret.expand(&[PURPOSE], hmac::HMAC_SHA256)?.into();
        Ok(Self { key })
    }

    /// Attests that the cluster's history has come this far.
    pub(crate) fn attest(&self, cluster: &Uid, progress: HistoryProgress) -> Bytes {
        let mut proof = BytesMut::with_capacity(LEN);
        proof.put_slice(&plain_content(progress));
        proof.put_slice(hmac::sign(&self.key, &authenticated_content(cluster, progress)).as_ref());
        proof.freeze()
    }

    /// The content of an attestation of this cluster. `None` if it was not made by a cloudcore of this cluster.
    pub(crate) fn read(&self, cluster: &Uid, proof: &[u8]) -> Option<HistoryProgress> {
        if proof.len() != LEN {
            return None;
        }
        let (mut said, tag) = proof.split_at(LEN - TAG_LEN);
        let form = said.get_u8();
        let (generation, beat, revision) = (said.get_u64(), said.get_u64(), CloudRevision(said.get_u64()));
        let progress = HistoryProgress { generation, beat, revision };
        let genuine =
            form == FORM && hmac::verify(&self.key, &authenticated_content(cluster, progress), tag).is_ok();
        genuine.then_some(progress)
    }
}

/// The plain content of an attestation.
fn plain_content(progress: HistoryProgress) -> Vec<u8> {
    let mut text = vec![FORM];
    [progress.generation, progress.beat, progress.revision.0]
        .into_iter()
        .for_each(|number| text.put_u64(number));
    text
}

/// The content that the MAC covers. The cluster is not part of the attestation, because only that cluster reads it. It
/// comes last, because its length varies.
fn authenticated_content(cluster: &Uid, progress: HistoryProgress) -> Vec<u8> {
    [&plain_content(progress), cluster.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tombolo_proto::limits::ATTESTATION_LEN_MAX;

    use super::*;

    fn attester(secret: &[u8]) -> Attester {
        Attester::new(secret).expect("cryptography works")
    }

    fn cluster(name: &str) -> Uid {
        Uid::parse(name).expect("valid")
    }

    const PROGRESS: HistoryProgress = HistoryProgress { generation: 7, beat: 3, revision: CloudRevision(9) };

    #[test]
    fn attestation_format_is_stable() {
        let progress = HistoryProgress { generation: 3, beat: 21, revision: CloudRevision(4711) };
        let proof = attester(b"secret").attest(&cluster("cluster"), progress);
        const { assert!(LEN <= ATTESTATION_LEN_MAX) };
        let (said, tag) = proof.split_at(LEN - TAG_LEN);
        assert_eq!(hex::encode(said), "01000000000000000300000000000000150000000000001267");
        assert_eq!(
            hex::encode(tag),
            "e91256589c3511bbe82e4d724b5451623393a2646927d448e789e953ba8056fd",
            "edges hold those of earlier versions"
        );
    }

    #[test]
    fn attestation_is_valid_only_for_its_cluster_and_authority() {
        let (ours, here) = (attester(b"ours"), cluster("here"));
        let proof = ours.attest(&here, PROGRESS);
        assert_eq!(ours.read(&here, &proof), Some(PROGRESS));
        assert_eq!(attester(b"ours").read(&here, &proof), Some(PROGRESS), "another replica");
        assert_eq!(attester(b"theirs").read(&here, &proof), None);
        // A longer or shorter name is a different name.
        for other in ["there", "here2", "her"] {
            assert_eq!(ours.read(&cluster(other), &proof), None, "{other}");
        }
    }

    #[test]
    fn attestation_with_a_flipped_bit_is_ignored() {
        let (ours, here) = (attester(b"ours"), cluster("here"));
        let proof = ours.attest(&here, PROGRESS);
        for bit in 0..LEN * 8 {
            let mut changed = proof.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ours.read(&here, &changed), None, "bit {bit}");
        }
        for len in (0..LEN).chain([LEN + 1, ATTESTATION_LEN_MAX]) {
            let mut other = proof.to_vec();
            other.resize(len, 0);
            assert_eq!(ours.read(&here, &other), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn invalid_bytes_are_no_attestation(bytes in vec(any::<u8>(), 0..=ATTESTATION_LEN_MAX)) {
            prop_assert_eq!(attester(b"ours").read(&cluster("here"), &bytes), None);
        }

        #[test]
        fn attestation_round_trips(generation in any::<u64>(), beat in any::<u64>(), revision in any::<u64>()) {
            let (ours, here) = (attester(b"ours"), cluster("here"));
            let progress = HistoryProgress { generation, beat, revision: CloudRevision(revision) };
            prop_assert_eq!(ours.read(&here, &ours.attest(&here, progress)), Some(progress));
        }
    }
}
