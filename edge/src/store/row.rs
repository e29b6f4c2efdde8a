//! Encodes rows as bytes. Decoding never trusts a length: a damaged row is an error, not a panic.

use bytes::Bytes;
use tombolo_proto::ids::{CloudRevision, SubscriptionId, Uid};
use tombolo_proto::object::{ContentHash, ObjectKey, ObjectVersion};

use super::error::ReadError;
use super::keys;

/// The subscription of objects that were requested one by one. No session follows it.
pub(super) const SINGLE_OBJECTS: SubscriptionId = SubscriptionId(u32::MAX);

/// Object format that this version writes.
const FORMAT: u8 = 2;

/// Object format before schema 5, which has only the lower half of the content hash.
const HALF_HASH: u8 = 1;

/// Log format that this version writes. In format 1, that of schema 1, a change has one kind and is seen in the pushed
/// set only.
const LOG_FORMAT: u8 = 2;
const LOG_FORMAT_1: u8 = 1;

/// The marker of [`unread_by`] for the pushed set.
const UNREADABLE: u32 = u32::MAX - 1;

/// The marker bit of [`unread_by`] for other subscriptions.
const UNREADABLE_BIT: u32 = 1 << 31;

/// The marker that replaces a subscription in the list of an object that it wants but the cloud cannot read. A version
/// of the object from other subscriptions is not visible in this one.
pub(super) fn unread_by(subscription: u32) -> u32 {
    if subscription == SubscriptionId::NODE.0 { UNREADABLE } else { subscription ^ UNREADABLE_BIT }
}

/// The subscription that a marker of [`unread_by`] replaces; `None` for a subscription itself.
pub(super) fn unreading(subscription: u32) -> Option<u32> {
    match subscription {
        UNREADABLE => Some(SubscriptionId::NODE.0),
        _ if subscription == SINGLE_OBJECTS.0 || subscription & UNREADABLE_BIT == 0 => None,
        _ => Some(subscription ^ UNREADABLE_BIT),
    }
}

/// State of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The cloud has no such object.
    Absent,
    /// Clients see it.
    Visible,
    /// Clients do not see it yet, because an object that it refers to is missing (docs/protocol.md#lanes).
    Hidden,
}

/// One row of the objects table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectRow {
    pub(super) state: State,
    /// Whether `body` is encrypted.
    pub(super) sealed: bool,
    /// Local revision at which clients saw this version; 0 if they do not see it.
    pub(super) local: u64,
    /// The cloud's version; meaningless for absent objects.
    pub(super) version: ObjectVersion,
    /// Number of the version's epoch among those that this store has seen.
    pub(super) era: u32,
    /// Subscriptions that want the object, sorted.
    pub(super) subscriptions: Vec<u32>,
    /// Objects that it refers to.
    pub(super) dependencies: Vec<ObjectKey>,
    /// JSON text with the local revision in it, possibly encrypted.
    pub(super) body: Bytes,
}

/// One version of an object in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogVersion {
    pub(super) uid: Uid,
    pub(super) revision: u64,
    pub(super) body: Bytes,
}

/// One row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogRow {
    /// The subscriptions in which the change is seen, with its kind: 0 added, 1 modified, 2 deleted.
    pub(super) views: Vec<(u32, u8)>,
    pub(super) sealed: bool,
    pub(super) key: ObjectKey,
    pub(super) object: LogVersion,
    pub(super) previous: Option<LogVersion>,
}

impl ObjectRow {
    pub(super) fn absent(subscriptions: Vec<u32>) -> Self {
        let uid = Uid::parse("-").expect("a hyphen is a valid UID");
        Self {
            state: State::Absent,
            sealed: false,
            local: 0,
            version: ObjectVersion { uid, revision: CloudRevision(0), hash: ContentHash(0) },
            era: 0,
            subscriptions,
            dependencies: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// Whether a subscription has the object, or knows that it does not exist or that the cloud cannot read it.
    pub(super) fn concerns(&self, subscription: SubscriptionId) -> bool {
        [subscription.0, unread_by(subscription.0)]
            .iter()
            .any(|subscription| self.subscriptions.contains(subscription))
    }

    /// Whether no subscription may have the content, because the cloud cannot read the object for any of them.
    pub(super) fn is_unread_by_all(&self) -> bool {
        self.subscriptions.iter().all(|subscription| unreading(*subscription).is_some())
    }

    /// Whether no session keeps the object up to date, so that it is at most a kept answer.
    pub(super) fn is_left_to_questions(&self) -> bool {
        self.subscriptions
            .iter()
            .all(|subscription| *subscription == SINGLE_OBJECTS.0 || unreading(*subscription).is_some())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::with_capacity(64 + self.body.len()));
        let state = match self.state {
            State::Absent => 0,
            State::Visible => 1,
            State::Hidden => 2,
        };
        out.0.extend_from_slice(&[FORMAT, state, u8::from(self.sealed)]);
        out.u64(self.local);
        out.u64(self.version.revision.0);
        out.0.extend_from_slice(&self.version.hash.0.to_le_bytes());
        out.u32(self.era);
        out.block(self.version.uid.as_str().as_bytes());
        out.count(self.subscriptions.len());
        self.subscriptions.iter().for_each(|subscription| out.u32(*subscription));
        let dependencies: Vec<_> = self.dependencies.iter().filter_map(keys::encode).collect();
        out.count(dependencies.len());
        dependencies.iter().for_each(|key| out.block(key));
        out.0.extend_from_slice(&self.body);
        out.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ReadError> {
        let (row, body) = Self::head(bytes)?;
        Ok(Self { body: Bytes::copy_from_slice(body), ..row })
    }

    /// Decodes a row without copying its body. Returns the body separately.
    pub(super) fn head(bytes: &[u8]) -> Result<(Self, &[u8]), ReadError> {
        Self::read(bytes).ok_or(ReadError::Damaged("object"))
    }

    /// The state in a row, without decoding the rest.
    pub(super) fn state_of(bytes: &[u8]) -> Result<State, ReadError> {
        In(bytes).state().map(|(_, state)| state).ok_or(ReadError::Damaged("object"))
    }

    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut input = In(bytes);
        let (format, state) = input.state()?;
        let sealed = input.flag()?;
        let local = input.u64()?;
        let (revision, lower) = (CloudRevision(input.u64()?), input.u64()?);
        let upper = if format == HALF_HASH { 0 } else { input.u64()? };
        let (hash, era) = (ContentHash::of_halves(lower, upper), input.u32()?);
        let uid = input.uid()?;
        let subscriptions = (0..input.u32()?).map(|_| input.u32()).collect::<Option<_>>()?;
        let dependencies = (0..input.u32()?).map(|_| keys::decode(input.block()?)).collect::<Option<_>>()?;
        let version = ObjectVersion { uid, revision, hash };
        let body = Bytes::new();
        Some((Self { state, sealed, local, version, era, subscriptions, dependencies, body }, input.0))
    }
}

impl LogRow {
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Out(vec![LOG_FORMAT, u8::from(self.sealed)]);
        out.count(self.views.len());
        for (subscription, kind) in &self.views {
            out.u32(*subscription);
            out.0.push(*kind);
        }
        out.block(&keys::encode(&self.key)?);
        out.version(&self.object);
        out.0.push(u8::from(self.previous.is_some()));
        if let Some(previous) = &self.previous {
            out.version(previous);
        }
        Some(out.0)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ReadError> {
        Self::read(bytes).ok_or(ReadError::Damaged("log"))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut input = In(bytes);
        let format = input.u8()?;
        let (sealed, views) = match format {
            LOG_FORMAT_1 => {
                let kind = input.kind()?;
                (input.flag()?, vec![(0, kind)])
            }
            LOG_FORMAT => {
                let sealed = input.flag()?;
                (
                    sealed,
                    (0..input.u32()?).map(|_| Some((input.u32()?, input.kind()?))).collect::<Option<_>>()?,
                )
            }
            _ => return None,
        };
        let key = keys::decode(input.block()?)?;
        let object = input.version()?;
        let previous = if input.flag()? { Some(input.version()?) } else { None };
        input.0.is_empty().then_some(Self { views, sealed, key, object, previous })
    }
}

struct Out(Vec<u8>);

impl Out {
    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes a length or count. All fit, because the protocol's limits bound an object far below 4 GiB.
    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    fn block(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn version(&mut self, version: &LogVersion) {
        self.block(version.uid.as_str().as_bytes());
        self.u64(version.revision);
        self.block(&version.body);
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Reads the start of an object's row: its format and its state.
    fn state(&mut self) -> Option<(u8, State)> {
        let format = self.u8().filter(|format| [HALF_HASH, FORMAT].contains(format))?;
        let state = match self.u8()? {
            0 => State::Absent,
            1 => State::Visible,
            2 => State::Hidden,
            _ => return None,
        };
        Some((format, state))
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn kind(&mut self) -> Option<u8> {
        self.u8().filter(|kind| *kind <= 2)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn block(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.take(len)
    }

    fn uid(&mut self) -> Option<Uid> {
        Uid::parse(std::str::from_utf8(self.block()?).ok()?).ok()
    }

    fn version(&mut self) -> Option<LogVersion> {
        let uid = self.uid()?;
        let revision = self.u64()?;
        Some(LogVersion { uid, revision, body: Bytes::copy_from_slice(self.block()?) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tombolo_proto::object::Resource;

    use super::*;

    fn sample(body: Vec<u8>, subscriptions: Vec<u32>) -> ObjectRow {
        let key = ObjectKey::new(Resource::new("", "v1", "configmaps"), "default", "app");
        let version = ObjectVersion {
            uid: Uid::parse("u-1").unwrap(),
            revision: CloudRevision(u64::MAX),
            hash: ContentHash::of_halves(7, 8),
        };
        ObjectRow {
            state: State::Hidden,
            sealed: true,
            local: 3,
            version,
            era: 2,
            subscriptions,
            dependencies: vec![key],
            body: body.into(),
        }
    }

    proptest! {
        #[test]
        fn rows_round_trip(body in any::<Vec<u8>>(), subscriptions in any::<Vec<u32>>()) {
            let row = sample(body, subscriptions);
            prop_assert_eq!(ObjectRow::decode(&row.encode()).unwrap(), row.clone());
            let object = LogVersion { uid: row.version.uid, revision: 9, body: row.body };
            let key = row.dependencies[0].clone();
            for previous in [None, Some(object.clone())] {
                let views = row.subscriptions.iter().map(|subscription| (*subscription, 1)).collect();
                let row = LogRow { views, sealed: false, key: key.clone(), object: object.clone(), previous };
                prop_assert_eq!(LogRow::decode(&row.encode().unwrap()).unwrap(), row);
            }
        }

        #[test]
        fn damaged_rows_are_errors_or_other_rows(bytes in any::<Vec<u8>>(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>()) {
            let _ = ObjectRow::decode(&bytes);
            let _ = LogRow::decode(&bytes);
            let mut row = sample(bytes, vec![0]).encode();
            let at = flip.index(row.len());
            row[at] ^= 0xff;
            let _ = ObjectRow::decode(&row);
            prop_assert!(ObjectRow::decode(&row[..cut.index(40)]).is_err());
        }
    }
}
