//! Decides which pod bodies are in memory. Each node has a share of bytes; if its pods exceed it, an order decides
//! whose bodies leave. Pure bookkeeping of lengths.

use std::collections::{BTreeSet, HashMap};

use tombolo_proto::{NodeId, Uid};

/// Share of one node for the bodies of its pods in memory, status included, in bytes: 110 pods of 18 KiB, where an
/// ordinary pod has 4 to 10. A delivered body may have a compressed copy beside it.
pub(crate) const NODE_PODS_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Maximum number of known mirror pods of one node. A kubelet creates one for each of its static pods.
pub(crate) const NODE_MIRROR_PODS_MAX: usize = 128;

/// The order in which bodies leave memory: the last rank first, and within a rank the larger before the smaller. Pods
/// that a node creates itself (mirror pods), or may call finished, never displace pods that others have bound to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Being deleted, and shortened if it was large: its node terminates it, which frees the room.
    Ending,
    /// Running, or going to run.
    Active,
    /// Succeeded or failed.
    Finished,
    /// Created by the node.
    Mirror,
    /// Larger than the whole share, or not read.
    Oversized,
}

/// Position of a pod in the order.
type PodPosition = (Rank, usize, Uid);

/// Other pods affected by a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moves {
    /// Their bodies must leave memory.
    pub(super) out: Vec<Uid>,
    /// There is room for their bodies again.
    pub(super) back: Vec<Uid>,
}

/// The shares of all nodes.
#[derive(Debug, Default)]
pub(super) struct Bodies(HashMap<NodeId, Share>);

#[derive(Debug, Default)]
struct Share {
    positions: HashMap<Uid, (Rank, usize)>,
    /// Every place in `inside` is before every place in `outside`.
    inside: BTreeSet<PodPosition>,
    outside: BTreeSet<PodPosition>,
    bytes: usize,
    mirrors: usize,
}

impl Bodies {
    /// Sets the length of the pod's body. Whether the pod itself fits is answered by [`Self::is_inside`].
    pub(super) fn set(&mut self, node: &NodeId, uid: &Uid, rank: Rank, len: usize) -> Moves {
        let share = self.0.entry(node.clone()).or_default();
        // No other body would fit beside such a body.
        let rank = if len > NODE_PODS_BYTES_MAX && rank != Rank::Mirror { Rank::Oversized } else { rank };
        share.take_out(uid);
        share.put_in(uid, rank, len);
        let mut moves = share.balance();
        moves.out.retain(|other| other != uid);
        moves.back.retain(|other| other != uid);
        moves
    }

    /// Removes the pod.
    pub(super) fn remove(&mut self, node: &NodeId, uid: &Uid) -> Moves {
        let Some(share) = self.0.get_mut(node) else { return Moves::default() };
        share.take_out(uid);
        let moves = share.balance();
        if share.positions.is_empty() {
            self.0.remove(node);
        }
        moves
    }

    /// Removes all pods of the node.
    pub(super) fn forget(&mut self, node: &NodeId) {
        self.0.remove(node);
    }

    /// Whether there is room for the pod's body.
    pub(super) fn is_inside(&self, node: &NodeId, uid: &Uid) -> bool {
        self.0
            .get(node)
            .is_some_and(|share| share.position(uid).is_some_and(|position| share.inside.contains(&position)))
    }

    /// Whether the pod is being deleted.
    pub(super) fn is_ending(&self, node: &NodeId, uid: &Uid) -> bool {
        let position = self.0.get(node).and_then(|share| share.positions.get(uid));
        position.is_some_and(|(rank, _)| *rank == Rank::Ending)
    }

    /// Whether another mirror pod of the node may be tracked.
    pub(super) fn has_room_for_mirror(&self, node: &NodeId) -> bool {
        self.0.get(node).is_none_or(|share| share.mirrors < NODE_MIRROR_PODS_MAX)
    }
}

impl Share {
    fn position(&self, uid: &Uid) -> Option<PodPosition> {
        self.positions.get(uid).map(|(rank, len)| (*rank, *len, uid.clone()))
    }

    fn take_out(&mut self, uid: &Uid) {
        let Some(position) = self.position(uid) else { return };
        self.positions.remove(uid);
        self.mirrors -= usize::from(position.0 == Rank::Mirror);
        if self.inside.remove(&position) {
            self.bytes -= position.1;
        } else {
            self.outside.remove(&position);
        }
    }

    fn put_in(&mut self, uid: &Uid, rank: Rank, len: usize) {
        self.positions.insert(uid.clone(), (rank, len));
        self.mirrors += usize::from(rank == Rank::Mirror);
        let position = (rank, len, uid.clone());
        if self.outside.first().is_some_and(|first| *first < position) {
            self.outside.insert(position);
        } else {
            self.bytes += len;
            self.inside.insert(position);
        }
    }

    fn balance(&mut self) -> Moves {
        let mut moves = Moves::default();
        while self.bytes > NODE_PODS_BYTES_MAX
            && let Some(position) = self.inside.pop_last()
        {
            self.bytes -= position.1;
            moves.out.push(position.2.clone());
            self.outside.insert(position);
        }
        while let Some(first) = self.outside.first()
            && self.bytes + first.1 <= NODE_PODS_BYTES_MAX
            && let Some(position) = self.outside.pop_first()
        {
            self.bytes += position.1;
            moves.back.push(position.2.clone());
            self.inside.insert(position);
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn node() -> NodeId {
        NodeId::parse("n").expect("valid")
    }

    fn uid(name: &str) -> Uid {
        Uid::parse(name).expect("valid")
    }

    fn set(bodies: &mut Bodies, name: &str, rank: Rank, kib: usize) -> (Vec<String>, Vec<String>) {
        let moves = bodies.set(&node(), &uid(name), rank, kib * KIB);
        names(&moves)
    }

    fn names(moves: &Moves) -> (Vec<String>, Vec<String>) {
        let names = |uids: &[Uid]| uids.iter().map(|uid| uid.as_str().to_owned()).collect();
        (names(&moves.out), names(&moves.back))
    }

    fn one(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    #[test]
    fn mirror_pods_leave_memory_first_and_larger_ones_before_smaller() {
        let mut bodies = Bodies::default();
        let nothing = (Vec::new(), Vec::new());
        assert_eq!(set(&mut bodies, "mirror", Rank::Mirror, 100), nothing);
        assert_eq!(set(&mut bodies, "done", Rank::Finished, 600), nothing);
        assert_eq!(set(&mut bodies, "large", Rank::Active, 1000), nothing);
        assert_eq!(set(&mut bodies, "small", Rank::Active, 320), nothing, "2,020 KiB of 2,048");
        assert_eq!(set(&mut bodies, "b", Rank::Active, 60), (one("mirror"), Vec::new()));
        assert_eq!(set(&mut bodies, "c", Rank::Active, 400), (one("done"), Vec::new()));
        assert_eq!(set(&mut bodies, "d", Rank::Active, 450), (one("large"), Vec::new()));
        // A status grows.
        assert_eq!(set(&mut bodies, "small", Rank::Active, 950), (Vec::new(), Vec::new()), "it fits now");
        assert_eq!(
            set(&mut bodies, "small", Rank::Active, 1200),
            (Vec::new(), one("large")),
            "it went itself"
        );
        assert!(!bodies.is_inside(&node(), &uid("small")) && bodies.is_inside(&node(), &uid("large")));
    }

    #[test]
    fn bodies_that_fit_again_return_and_idle_nodes_are_forgotten() {
        let mut bodies = Bodies::default();
        for name in ["a", "b", "c"] {
            set(&mut bodies, name, Rank::Mirror, 940);
        }
        assert!(!bodies.is_inside(&node(), &uid("c")));
        assert_eq!(names(&bodies.remove(&node(), &uid("a"))), (Vec::new(), one("c")));
        assert!(bodies.is_inside(&node(), &uid("c")));
        for name in ["b", "c"] {
            bodies.remove(&node(), &uid(name));
        }
        assert!(bodies.0.is_empty());
    }

    #[test]
    fn body_larger_than_the_share_displaces_no_other() {
        let mut bodies = Bodies::default();
        set(&mut bodies, "mirror", Rank::Mirror, 100);
        assert_eq!(set(&mut bodies, "giant", Rank::Active, 4000), (Vec::new(), Vec::new()));
        assert!(!bodies.is_inside(&node(), &uid("giant")) && bodies.is_inside(&node(), &uid("mirror")));
        assert_eq!(set(&mut bodies, "giant", Rank::Active, 100), (Vec::new(), Vec::new()));
        assert!(bodies.is_inside(&node(), &uid("giant")));
    }

    #[test]
    fn bodies_in_memory_depend_only_on_the_order() {
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((random >> 33) % below).expect("small")
        };
        let mut bodies = Bodies::default();
        let mut inside = std::collections::HashSet::new();
        for _ in 0..20_000 {
            let name = uid(&format!("p{}", next(40)));
            let moves = if next(5) == 0 {
                inside.remove(&name);
                bodies.remove(&node(), &name)
            } else {
                let rank = [Rank::Active, Rank::Finished, Rank::Mirror][next(3)];
                let moves = bodies.set(&node(), &name, rank, next(1500) * KIB);
                inside.remove(&name);
                inside.extend(bodies.is_inside(&node(), &name).then(|| name.clone()));
                moves
            };
            for uid in &moves.out {
                inside.remove(uid);
            }
            inside.extend(moves.back);
            let Some(share) = bodies.0.get(&node()) else { continue };
            let told: BTreeSet<_> = inside.iter().filter_map(|uid| share.position(uid)).collect();
            assert_eq!(told, share.inside, "following the moves is enough to know the members");
            let mut all: Vec<_> = share.positions.keys().filter_map(|uid| share.position(uid)).collect();
            all.sort();
            let mut room = NODE_PODS_BYTES_MAX;
            let fits = |position: &&PodPosition| {
                let left = room.checked_sub(position.1);
                room = left.unwrap_or(0);
                left.is_some()
            };
            let expected: BTreeSet<_> = all.iter().take_while(fits).cloned().collect();
            assert_eq!(share.inside, expected);
        }
    }
}
