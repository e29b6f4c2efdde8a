//! The table of `docs/consistency.md`: held versions compared with wanted ones.

use super::*;
use crate::ids::{CloudRevision, Uid};
use crate::object::{ContentHash, Resource};

fn key() -> ObjectKey {
    ObjectKey::new(Resource::new("", "v1", "pods"), "default", "web-0")
}

fn version(uid: &str, revision: u64, hash: u128) -> ObjectVersion {
    let uid = Uid::parse(uid).expect("valid");
    ObjectVersion { uid, revision: CloudRevision(revision), hash: ContentHash(hash) }
}

fn held(uid: &str, revision: u64, hash: u128) -> PeerState {
    PeerState::Version(version(uid, revision, hash))
}

fn wanted(uid: &str, revision: u64, hash: u128) -> Lookup {
    let version = version(uid, revision, hash);
    Lookup::Present(Arc::new(SharedObject::new(key(), version, "{}".into(), Vec::new())))
}

fn gone() -> Lookup {
    Lookup::Unwanted(None)
}

/// The decision as one word.
fn judged(peer_state: PeerState, foreign: bool, lookup: Lookup) -> &'static str {
    in_a_word(Slot::new(peer_state, foreign).judge(&key(), lookup, true))
}

fn in_a_word(decision: SlotDecision) -> &'static str {
    match decision {
        SlotDecision::Settled => "settled",
        SlotDecision::Forget => "forget",
        SlotDecision::Wait => "wait",
        SlotDecision::TooLarge { .. } => "too large",
        SlotDecision::Send(step) => match step.change {
            Change::Upsert(_) => "upsert",
            Change::Delete { .. } => "delete",
            Change::Absent { .. } => "absent",
            Change::Unreadable { .. } => "unreadable",
            Change::Adopt { .. } => "adopt",
        },
    }
}

#[test]
fn within_one_epoch() {
    for (peer_state, lookup, decision) in [
        (PeerState::Nothing, wanted("a", 5, 1), "upsert"),
        (PeerState::Absent, wanted("a", 5, 1), "upsert"),
        (PeerState::Unknown, wanted("a", 5, 1), "upsert"),
        (held("a", 5, 1), wanted("a", 5, 1), "settled"),
        (held("a", 4, 1), wanted("a", 5, 1), "adopt"),
        (held("a", 4, 1), wanted("a", 5, 2), "upsert"),
        // Other trimming rules: the same revision has another content.
        (held("a", 5, 1), wanted("a", 5, 2), "upsert"),
        (held("a", 4, 1), wanted("b", 5, 1), "upsert"),
        // The view lags behind the edge, for one incarnation or across two.
        (held("a", 6, 2), wanted("a", 5, 1), "settled"),
        (held("b", 6, 2), wanted("a", 5, 1), "settled"),
        (held("a", 6, 1), wanted("a", 5, 1), "settled"),
        (PeerState::Nothing, Lookup::Absent, "absent"),
        (PeerState::Absent, Lookup::Absent, "settled"),
        (held("a", 5, 1), Lookup::Absent, "absent"),
        (PeerState::Unknown, Lookup::Absent, "absent"),
        (PeerState::Nothing, gone(), "forget"),
        (PeerState::Absent, gone(), "delete"),
        (PeerState::Unknown, gone(), "delete"),
        (held("a", 5, 1), gone(), "delete"),
        (PeerState::Nothing, Lookup::Pending, "wait"),
        (held("a", 5, 1), Lookup::Pending, "wait"),
        (PeerState::Unreadable, Lookup::Pending, "wait"),
        (PeerState::Nothing, Lookup::Unreadable(403), "unreadable"),
        (PeerState::Absent, Lookup::Unreadable(403), "unreadable"),
        (PeerState::Unknown, Lookup::Unreadable(403), "unreadable"),
        (PeerState::Unreadable, Lookup::Unreadable(500), "settled"),
        (held("a", 5, 1), Lookup::Unreadable(403), "settled"),
        (PeerState::Unreadable, wanted("a", 5, 1), "upsert"),
        (PeerState::Unreadable, Lookup::Absent, "absent"),
        (PeerState::Unreadable, gone(), "delete"),
    ] {
        let case = format!("{peer_state:?} against {lookup:?}");
        assert_eq!(judged(peer_state, false, lookup), decision, "{case}");
    }
}

#[test]
fn across_epochs_revisions_have_no_order() {
    for (peer_state, lookup, decision) in [
        (held("a", 9, 1), wanted("a", 5, 1), "adopt"),
        (held("a", 2, 1), wanted("a", 5, 1), "adopt"),
        (held("a", 9, 1), wanted("a", 5, 2), "upsert"),
        (held("a", 9, 1), wanted("b", 5, 1), "upsert"),
        // The revisions are equal by chance: the content decides.
        (held("a", 5, 1), wanted("a", 5, 2), "upsert"),
        (held("a", 5, 1), wanted("a", 5, 1), "settled"),
        (held("a", 9, 1), gone(), "delete"),
        (PeerState::Absent, Lookup::Absent, "settled"),
        (held("a", 9, 1), Lookup::Unreadable(403), "unreadable"),
        (PeerState::Unreadable, Lookup::Unreadable(403), "settled"),
    ] {
        let case = format!("{peer_state:?} against {lookup:?}");
        assert_eq!(judged(peer_state, true, lookup), decision, "{case}");
    }
}

#[test]
fn contents_that_share_half_a_hash_are_different() {
    let (half, one, two) = (7, 1 << 64 | 7, 2 << 64 | 7);
    for (peer_state, foreign, lookup, decision) in [
        (held("a", 4, one), false, wanted("a", 5, two), "upsert"),
        (held("a", 4, one), true, wanted("a", 4, two), "upsert"),
        (held("a", 4, one), false, wanted("a", 5, one), "adopt"),
        // An inventory entry of an older edge has half a hash. For its own revision the edge holds the content; for
        // others it is unknown.
        (held("a", 5, half), false, wanted("a", 5, two), "settled"),
        (held("a", 4, half), false, wanted("a", 5, two), "upsert"),
        (held("a", 5, half), true, wanted("a", 5, two), "upsert"),
    ] {
        let case = format!("{peer_state:?} against {lookup:?}");
        assert_eq!(judged(peer_state, foreign, lookup), decision, "{case}");
    }
}

#[test]
fn edge_without_the_unreadable_feature_gets_no_unreadable_delivery() {
    for (peer_state, foreign, decision) in [
        (PeerState::Nothing, false, "settled"),
        (PeerState::Absent, false, "settled"),
        (PeerState::Unknown, false, "settled"),
        (held("a", 5, 1), false, "settled"),
        (held("a", 5, 1), true, "wait"),
    ] {
        let case = format!("{peer_state:?}, of another epoch: {foreign}");
        let decision_now = Slot::new(peer_state, foreign).judge(&key(), Lookup::Unreadable(403), false);
        assert_eq!(in_a_word(decision_now), decision, "{case}");
    }
}

/// A version that the edge keeps from another epoch gets the oldest revision of this one, and is adopted when it is
/// right.
#[test]
fn version_kept_from_another_epoch_is_older_than_any() {
    let slot = Slot::new(held("a", 9, 1), true);
    let SlotDecision::Send(step) = slot.judge(&key(), Lookup::Unreadable(403), true) else {
        panic!("it is notified")
    };
    assert_eq!(step.becomes, held("a", 0, 1));
    let judged = |lookup| judged(step.becomes.clone(), false, lookup);
    assert_eq!(judged(wanted("a", 5, 1)), "adopt");
    assert_eq!(judged(wanted("a", 5, 2)), "upsert");
    assert_eq!(judged(Lookup::Unreadable(403)), "settled");
}

#[test]
fn object_beyond_the_frame_limit_is_too_large() {
    let object = |body: usize, dependencies: usize| {
        let body = vec![b' '; body].into();
        Lookup::Present(Arc::new(SharedObject::new(
            key(),
            version("a", 1, 1),
            body,
            vec![key(); dependencies],
        )))
    };
    assert_eq!(judged(PeerState::Nothing, false, object(OBJECT_LEN_MAX, DEPENDENCIES_MAX)), "upsert");
    assert_eq!(judged(PeerState::Nothing, false, object(OBJECT_LEN_MAX + 1, 0)), "too large");
    assert_eq!(judged(PeerState::Nothing, false, object(10, DEPENDENCIES_MAX + 1)), "too large");
}

#[test]
fn object_size_determines_the_lane() {
    let lane = |len: usize| {
        let object = SharedObject::new(key(), version("a", 1, 1), vec![b' '; len].into(), Vec::new());
        match Slot::new(PeerState::Nothing, false).judge(&key(), Lookup::Present(Arc::new(object)), true) {
            SlotDecision::Send(step) => step.lane,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((lane(BULK_OBJECT_MIN - 1), lane(BULK_OBJECT_MIN)), (Lane::Delivery, Lane::Bulk));
}

/// Every connected node pays for its slots: twenty to thirty of them in a map.
#[test]
fn a_slot_stays_small() {
    assert!(size_of::<Slot>() <= 64, "{} bytes", size_of::<Slot>());
}
