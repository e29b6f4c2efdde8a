//! The record of one name, and the rule that decides which of its certificates are in force.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tombolo_link::identity::PeerCertificate;

use super::CLOCK_SKEW_SECONDS;
use super::renewal_rate::Renewals;

/// Maximum number of certificates of a node that are in force at a time: the present one, and earlier ones with which
/// it was renewed, because the node may not have stored the newer one yet.
pub(super) const KEYS_MAX: usize = 4;

/// The record of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// UID of the Node that the certificates belong to; none until the node registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The certificates in force, oldest first.
    #[serde(default)]
    pub keys: Vec<Key>,
    /// When the node joined, or when its certificate was first seen, in Unix seconds.
    #[serde(default)]
    pub joined: u64,
    /// An operator has revoked the certificates of this name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
    /// Start of validity of the latest certificate of the name, in Unix seconds, if it is not in `keys`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<u64>,
    /// End of validity of the certificate that expires last, in Unix seconds, if it is not in `keys`. Records of older
    /// versions do not have this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The process that is creating the node's Node. Set before it asks the API for that, and cleared when it knows the
    /// outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registering: Option<String>,
    /// The latest renewals in short succession. Records of older versions do not have this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewals: Option<Renewals>,
}

/// One certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Hex SHA-256 of its public key.
    pub key: String,
    /// Hex serial number. Records of older versions have none: there only the key counts, until the certificate is
    /// presented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Start of validity, in Unix seconds.
    pub issued: u64,
    /// End of validity, in Unix seconds.
    pub expires: u64,
}

impl From<&PeerCertificate> for Key {
    fn from(certificate: &PeerCertificate) -> Self {
        let PeerCertificate { serial, key, issued, expires } = certificate;
        let serial = Some(serial.to_string());
        Self { key: hex::encode(key), serial, issued: *issued, expires: *expires }
    }
}

impl Key {
    /// Whether this record is about that certificate.
    fn is(&self, shown: &Self) -> bool {
        self.key == shown.key && (self.serial.is_none() || self.serial == shown.serial)
    }
}

/// Why a certificate is not in force. The texts are sent to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Denied {
    /// There is no record and no Node of its name.
    #[error("no Node has this name, and no node has joined under it: join again with a new token")]
    Unknown,
    /// The Node that it was issued for was deleted.
    #[error(
        "the Node that this certificate was issued for was deleted: join again with a new token (`tombolo token create`, \
         then `edgecore join` on the node and a restart of edgecore)"
    )]
    Deleted,
    /// A cloudcore that no longer runs was creating its Node, and there is none: it may have been created and deleted.
    #[error(
        "cloudcore stopped while it was registering this node, and no Node exists now (it may have been deleted): \
         join again with a token created with --replace"
    )]
    Interrupted,
    /// A later join has taken the name.
    #[error("another machine has joined under this name: this certificate is no longer in force")]
    Replaced,
    /// An operator has revoked it.
    #[error("this node's certificates were revoked: join again with a token created with --replace")]
    Revoked,
    /// It is in force, but its Node does not exist. Only returned where a Node is required.
    #[error("node is not registered")]
    Unregistered,
}

/// Why a join needs a token that may replace the node. Completes the sentence `node N ..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Taken {
    /// An operator has revoked the certificates of this name.
    #[error("was revoked")]
    Revoked,
    /// Another machine has joined under this name.
    #[error("has joined and has no Node yet")]
    Joined,
    /// Its Node exists, or its record has changed during the join.
    #[error("was registered during the join")]
    Registered,
}

/// The verdict about a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CertificateStatus {
    /// It is in force.
    InForce,
    /// It is in force once this record is written.
    Record(Entry),
    /// It is not in force.
    Denied(Denied),
}

/// Judges a certificate that is valid by itself: signed by the authority, for this name, within its lifetime. Special
/// cases:
///
/// - There is no record: the certificate predates the records, or comes from another cloudcore with the same authority.
///   It is accepted once, if a Node of its name exists, and recorded.
/// - It is newer than all that were ever recorded, including those before the last join: the authority has signed it
///   later, so the record was lost (a restored etcd) or another cloudcore has renewed it. It is recorded, but only for
///   the same Node.
/// - It was recorded without its serial number, by an older version: the serial number is recorded now.
/// - A process other than `process` was creating its Node, and there is no Node: it is denied.
pub(super) fn judge(
    entry: Option<&Entry>,
    node: Option<&str>,
    certificate: &PeerCertificate,
    now: u64,
    process: &str,
) -> CertificateStatus {
    let key = Key::from(certificate);
    let Some(entry) = entry else {
        return match node {
            None => CertificateStatus::Denied(Denied::Unknown),
            Some(uid) => {
                let uid = Some(uid.to_owned());
                CertificateStatus::Record(Entry { uid, keys: vec![key], joined: now, ..Entry::default() })
            }
        };
    };
    if entry.revoked {
        return CertificateStatus::Denied(Denied::Revoked);
    }
    let known = entry.keys.iter().any(|own| own.is(&key));
    let newer = !entry.keys.is_empty() && entry.latest().is_some_and(|latest| latest < key.issued);
    if !known && !newer {
        return CertificateStatus::Denied(Denied::Replaced);
    }
    let interrupted = entry.registering.as_deref().is_some_and(|by| by != process);
    let bound = match (&entry.uid, node) {
        (Some(own), Some(uid)) if own == uid => entry.clone(),
        (Some(_), _) => return CertificateStatus::Denied(Denied::Deleted),
        (None, Some(uid)) => entry.bound(uid),
        (None, None) if interrupted => return CertificateStatus::Denied(Denied::Interrupted),
        (None, None) => entry.clone(),
    };
    let changed = if entry.keys.contains(&key) { bound } else { bound.with(key, now) };
    if changed == *entry { CertificateStatus::InForce } else { CertificateStatus::Record(changed) }
}

impl Entry {
    /// The record of a node that has just joined: no earlier certificate of the name counts any more.
    pub(super) fn joined(certificate: &PeerCertificate, node: Option<&str>, now: u64) -> Self {
        let uid = node.map(str::to_owned);
        Self { uid, keys: vec![Key::from(certificate)], joined: now, ..Self::default() }
    }

    /// Start of validity of the latest certificate that was ever recorded.
    fn latest(&self) -> Option<u64> {
        self.keys.iter().map(|key| key.issued).max().max(self.latest)
    }

    /// End of validity of the certificate that expires last of all that were ever recorded.
    fn until(&self) -> Option<u64> {
        self.keys.iter().map(|key| key.expires).max().max(self.until)
    }

    /// This record as the successor of `former`: certificates issued until then do not count as newer, and the record
    /// is kept until they have expired too.
    pub(super) fn after(self, former: Option<&Self>) -> Self {
        self.since(former.and_then(Self::latest), former.and_then(Self::until))
    }

    /// The same, with a lower bound for the start and the end of validity of the certificates so far.
    fn since(self, latest: Option<u64>, until: Option<u64>) -> Self {
        let (latest, until) = (self.latest.max(latest), self.until.max(until));
        let (own, own_until) =
            (self.keys.iter().map(|key| key.issued).max(), self.keys.iter().map(|key| key.expires).max());
        Self { latest: latest.filter(|_| latest > own), until: until.filter(|_| until > own_until), ..self }
    }

    /// The same, bound to this Node.
    pub(super) fn bound(&self, uid: &str) -> Self {
        Self { uid: Some(uid.to_owned()), registering: None, ..self.clone() }
    }

    /// Why an ordinary token cannot take the name, if this is so.
    pub(super) fn taken(&self, now: u64) -> Option<Taken> {
        let waits = self.uid.is_none() && self.keys.iter().any(|key| key.expires > now);
        match self.revoked {
            true => Some(Taken::Revoked),
            false => waits.then_some(Taken::Joined),
        }
    }

    /// The same with one more certificate, or with the serial number added to a known one. Expired certificates are
    /// removed, and so are the oldest beyond [`KEYS_MAX`].
    pub(super) fn with(mut self, key: Key, now: u64) -> Self {
        let (latest, until) = (self.latest(), self.until());
        self.keys.retain(|own| own.is(&key) || own.expires > now);
        match self.keys.iter_mut().find(|own| own.is(&key)) {
            Some(own) => *own = key,
            None => self.keys.push(key),
        }
        let surplus = self.keys.len().saturating_sub(KEYS_MAX);
        self.keys.drain(..surplus);
        self.since(latest, until)
    }

    /// The record after a renewal with one of the certificates. It keeps that one, which the node may have to use
    /// again, and the new one. Others in between were never used.
    pub(super) fn renewed(self, with: &PeerCertificate, new: &PeerCertificate, now: u64) -> Self {
        let (with, new) = (Key::from(with), Key::from(new));
        let (latest, until) = (self.latest(), self.until());
        let renewals = Some(Renewals::with_one_more(self.renewals, now));
        Self { keys: vec![with, new], renewals, ..self }.since(latest, until)
    }

    /// The record after a deletion that was not seen in time: an unbound name is bound to the deleted Node, unless the
    /// Node is older than the join.
    pub(super) fn after_deletion(&self, uid: &str, created: u64) -> Option<Self> {
        let open = self.uid.is_none() && !self.keys.is_empty();
        let earlier = created.saturating_add(CLOCK_SKEW_SECONDS) < self.joined;
        (open && !earlier).then(|| self.bound(uid))
    }

    /// Whether everything that was issued under the name has expired. Without the record, a certificate that was
    /// replaced would be accepted again.
    pub(super) fn is_over(&self, now: u64, grace: u64) -> bool {
        !self.revoked && self.until().is_none_or(|until| until.saturating_add(grace) < now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(number: u8, issued: u64) -> PeerCertificate {
        let serial = u64::from(number).into();
        PeerCertificate { serial, key: [number; 32], issued, expires: issued + 1000 }
    }

    fn judge(
        entry: Option<&Entry>,
        node: Option<&str>,
        certificate: &PeerCertificate,
        now: u64,
    ) -> CertificateStatus {
        super::judge(entry, node, certificate, now, "this")
    }

    fn denied(entry: &Entry, node: Option<&str>, certificate: &PeerCertificate) -> Option<Denied> {
        match judge(Some(entry), node, certificate, 50) {
            CertificateStatus::Denied(why) => Some(why),
            _ => None,
        }
    }

    #[test]
    fn a_certificate_is_bound_to_the_node_that_registers_with_it() {
        let own = certificate(1, 10);
        let fresh = Entry::joined(&own, None, 20);
        assert_eq!(judge(Some(&fresh), None, &own, 50), CertificateStatus::InForce);
        let CertificateStatus::Record(bound) = judge(Some(&fresh), Some("u1"), &own, 50) else {
            panic!("not bound")
        };
        assert_eq!(bound.uid.as_deref(), Some("u1"));
        assert_eq!(judge(Some(&bound), Some("u1"), &own, 50), CertificateStatus::InForce);
        assert_eq!(denied(&bound, None, &own), Some(Denied::Deleted));
        assert_eq!(
            denied(&bound, Some("u2"), &own),
            Some(Denied::Deleted),
            "a Node of the same name is another one"
        );
    }

    #[test]
    fn later_join_invalidates_earlier_certificates() {
        let (old, new) = (certificate(1, 10), certificate(2, 30));
        let entry = Entry::joined(&new, Some("u1"), 40);
        assert_eq!(denied(&entry, Some("u1"), &old), Some(Denied::Replaced));
        assert_eq!(denied(&entry, Some("u1"), &new), None);
        let revoked = Entry { revoked: true, ..entry };
        assert_eq!(denied(&revoked, Some("u1"), &new), Some(Denied::Revoked));
        assert_eq!(denied(&revoked, Some("u1"), &certificate(3, 90)), Some(Denied::Revoked));
    }

    #[test]
    fn unrecorded_certificate_is_accepted_once_and_only_with_its_node() {
        let (own, other) = (certificate(1, 10), certificate(2, 5));
        assert_eq!(judge(None, None, &own, 50), CertificateStatus::Denied(Denied::Unknown));
        let CertificateStatus::Record(entry) = judge(None, Some("u1"), &own, 50) else {
            panic!("not taken over")
        };
        assert_eq!(denied(&entry, Some("u1"), &other), Some(Denied::Replaced));
    }

    #[test]
    fn certificates_of_one_key_are_distinguished_by_serial_number() {
        let own = certificate(1, 10);
        let entry = Entry::joined(&own, Some("u1"), 20);
        let other = PeerCertificate { serial: 9.into(), ..own };
        assert_eq!(denied(&entry, Some("u1"), &other), Some(Denied::Replaced));
        assert_eq!(denied(&entry, Some("u1"), &own), None);
    }

    #[test]
    fn older_records_adopt_the_first_serial_number_shown() {
        let own = certificate(1, 10);
        let key = hex::encode(own.key);
        let text =
            format!(r#"{{"uid":"u1","keys":[{{"key":"{key}","issued":10,"expires":1010}}],"joined":20}}"#);
        let entry: Entry = serde_json::from_str(&text).expect("readable");
        let CertificateStatus::Record(entry) = judge(Some(&entry), Some("u1"), &own, 50) else {
            panic!("not completed")
        };
        assert_eq!(entry, Entry::joined(&own, Some("u1"), 20));
        assert_eq!(judge(Some(&entry), Some("u1"), &own, 50), CertificateStatus::InForce);
        let other = PeerCertificate { serial: 9.into(), ..own };
        assert_eq!(denied(&entry, Some("u1"), &other), Some(Denied::Replaced));
    }

    #[test]
    fn unfinished_registration_without_a_node_counts_as_a_deletion() {
        let own = certificate(1, 10);
        let begun = Entry { registering: Some("gone".to_owned()), ..Entry::joined(&own, None, 20) };
        assert_eq!(denied(&begun, None, &own), Some(Denied::Interrupted));
        let CertificateStatus::Record(bound) = judge(Some(&begun), Some("u1"), &own, 50) else {
            panic!("not bound")
        };
        assert_eq!(bound, Entry::joined(&own, Some("u1"), 20), "and the mark is removed");
        let by_this = Entry { registering: Some("this".to_owned()), ..begun };
        assert_eq!(denied(&by_this, None, &own), None, "it is under way");
    }

    #[test]
    fn lost_renewal_record_locks_nobody_out() {
        let (first, later) = (certificate(1, 10), certificate(2, 30));
        let entry = Entry::joined(&first, Some("u1"), 10);
        let CertificateStatus::Record(entry) = judge(Some(&entry), Some("u1"), &later, 50) else {
            panic!("locked out")
        };
        assert_eq!(entry.keys.len(), 2);
        assert_eq!(denied(&entry, None, &certificate(3, 60)), Some(Denied::Deleted));
    }

    #[test]
    fn certificates_in_force_are_bounded() {
        let mut entry = Entry::joined(&certificate(0, 10), Some("u1"), 10);
        for number in 1..20 {
            entry = entry.with(Key::from(&certificate(number, 10)), 50);
        }
        assert_eq!(entry.keys.len(), KEYS_MAX);
        let entry = entry.renewed(&certificate(19, 10), &certificate(20, 20), 50);
        assert_eq!(entry.keys.len(), 2);
        assert!(!entry.is_over(1000, 500));
        assert!(entry.is_over(2000, 500));
    }

    #[test]
    fn record_is_kept_until_all_certificates_of_its_name_have_expired() {
        let long = PeerCertificate { expires: 90_000, ..certificate(1, 10) };
        let joined = Entry::joined(&long, Some("u1"), 10);
        let next = |number: u8| certificate(number, u64::from(number) * 20);
        let replaced = Entry::joined(&next(2), Some("u1"), 40).after(Some(&joined));
        let renewed = joined.renewed(&long, &next(2), 50).renewed(&next(2), &next(3), 50);
        let crowded = (2..10).fold(Entry::joined(&long, Some("u1"), 10), |entry, number| {
            entry.with(Key::from(&next(number)), 50)
        });
        for entry in [replaced, renewed, crowded] {
            let text = serde_json::to_string(&entry).expect("JSON");
            let entry: Entry = serde_json::from_str(&text).expect("readable");
            assert_eq!(denied(&entry, Some("u1"), &long), Some(Denied::Replaced));
            let later = entry.bound("u1").with(Key::from(&certificate(99, 2000)), 2000);
            for entry in [entry, later] {
                assert!(!entry.is_over(90_500, 500), "{entry:?}");
                assert!(entry.is_over(90_501, 500), "{entry:?}");
            }
        }
    }

    #[test]
    fn deletion_before_binding_invalidates_the_certificate() {
        let own = certificate(1, 10);
        let fresh = Entry::joined(&own, None, 200);
        assert_eq!(fresh.after_deletion("u0", 100), None, "a Node from before the join");
        let gone = fresh.after_deletion("u1", 210).expect("bound to a Node that no longer exists");
        assert_eq!(denied(&gone, None, &own), Some(Denied::Deleted));
        assert_eq!(gone.after_deletion("u1", 210), None);
    }
}
