//! Decides which pods of a node get their references delivered. Each node has a share that its namespaces divide. Pure.
//!
//! A user who may create pods in one namespace can let them refer to any number of objects, which need not exist, and
//! bind them to any node. Without a limit these references would take the room of all others at that node's edge, in
//! its inventory and in its ledger. So a namespace that asks for more than the others leave gets no more than an equal
//! part. Within a namespace the pods with the fewest references come first. The result depends only on the pods, so
//! every replica gets the same result.

use std::collections::{BTreeMap, HashSet};

use tombolo_proto::object::KeyHashes;
use tombolo_proto::{ObjectKey, Uid};

/// Limit on the names, with namespaces, of the ConfigMaps and Secrets that the pods of one node refer to, in bytes.
/// Each object counts once, with at least [`REFERENCE_LEN_MIN`] bytes: 1,536 objects.
pub(crate) const NODE_REFERENCES_BYTES_MAX: usize = 192 * 1024;

/// Minimum weight of a reference.
pub(crate) const REFERENCE_LEN_MIN: usize = 128;

/// Limit on the references considered for one namespace, in bytes, with repetitions. When not all pods fit, pods beyond
/// this limit are not considered.
const CONSIDERED_BYTES_MAX: usize = 16 * NODE_REFERENCES_BYTES_MAX;

/// Weight of one reference.
pub(super) fn weight(key: &ObjectKey) -> usize {
    key.namespace().len().saturating_add(key.name().len()).max(REFERENCE_LEN_MIN)
}

/// Total weight of these references, each counted once.
pub(in crate::edgecontroller) fn total_weight(references: &[ObjectKey]) -> usize {
    references.iter().collect::<HashSet<_, KeyHashes>>().into_iter().map(weight).sum()
}

/// A pod with references.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'p> {
    pub(super) namespace: &'p str,
    /// Total weight of its references.
    pub(super) weight: usize,
    pub(super) uid: &'p Uid,
    pub(super) references: &'p [ObjectKey],
}

/// The demand of the pods of one namespace.
struct Claim<'p> {
    /// Pods in their order, each with the weight that it and all pods before it need together.
    steps: Vec<(usize, &'p Uid)>,
    demand: usize,
    /// Number of steps served; `taken` is the weight that they need.
    served: usize,
    taken: usize,
}

impl<'p> Claim<'p> {
    fn of(mut pods: Vec<Candidate<'p>>) -> Self {
        pods.sort_unstable_by_key(|pod| (pod.weight, pod.uid));
        let mut distinct: HashSet<&ObjectKey, KeyHashes> = HashSet::default();
        let (mut steps, mut demand, mut considered) = (Vec::new(), 0, 0_usize);
        for pod in pods {
            considered = considered.saturating_add(pod.weight);
            let fits = pod.weight <= NODE_REFERENCES_BYTES_MAX && considered <= CONSIDERED_BYTES_MAX;
            if fits {
                let news = pod.references.iter().filter(|key| distinct.insert(*key));
                demand += news.map(weight).sum::<usize>();
            }
            if !fits || demand > NODE_REFERENCES_BYTES_MAX {
                demand = NODE_REFERENCES_BYTES_MAX;
                break;
            }
            steps.push((demand, pod.uid));
        }
        Self { steps, demand, served: 0, taken: 0 }
    }

    /// Serves as many further pods as fit into `room`.
    fn serve(&mut self, room: usize) {
        let limit = self.taken.saturating_add(room);
        while let Some((needed, _)) = self.steps.get(self.served)
            && *needed <= limit
        {
            self.taken = *needed;
            self.served += 1;
        }
    }
}

/// The pods of a node whose references fit into its share.
pub(super) fn served<'p>(pods: impl Iterator<Item = Candidate<'p>>) -> HashSet<&'p Uid> {
    let mut namespaces: BTreeMap<&str, Vec<Candidate<'p>>> = BTreeMap::new();
    for pod in pods {
        namespaces.entry(pod.namespace).or_default().push(pod);
    }
    let mut claims: Vec<_> = namespaces.into_values().map(Claim::of).collect();
    // A namespace that asks for less than an equal part gets all it asks for and leaves the rest to the others. The
    // sort is stable, so ties keep the order of names.
    claims.sort_by_key(|claim| claim.demand);
    let (mut left, mut others) = (NODE_REFERENCES_BYTES_MAX, claims.len());
    for claim in &mut claims {
        let part = claim.demand.min(left / others.max(1));
        claim.serve(part);
        left -= part;
        others -= 1;
    }
    // A pod is never served in part, so each part may leave a remainder.
    let mut spare = NODE_REFERENCES_BYTES_MAX - claims.iter().map(|claim| claim.taken).sum::<usize>();
    for claim in &mut claims {
        let before = claim.taken;
        claim.serve(spare);
        spare -= claim.taken - before;
    }
    claims.iter().flat_map(|claim| claim.steps.iter().take(claim.served).map(|(_, uid)| *uid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::resources;

    /// A pod: namespace, name, and the numbers of the objects it refers to.
    type Pod<'a> = (&'a str, &'a str, std::ops::Range<usize>);

    fn names(pods: &[Pod<'_>]) -> Vec<String> {
        let known: Vec<_> = pods
            .iter()
            .map(|(namespace, name, numbers)| {
                let key = |number| ObjectKey::new(resources::configmaps(), namespace, &format!("c{number}"));
                let references: Vec<_> = numbers.clone().map(key).collect();
                (*namespace, Uid::parse(name).expect("valid"), references)
            })
            .collect();
        let candidates = known.iter().map(|(namespace, uid, references)| {
            let weight = references.iter().map(weight).sum();
            Candidate { namespace, weight, uid, references }
        });
        let mut names: Vec<_> = served(candidates).into_iter().map(|uid| uid.as_str().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn pods_with_the_most_references_go_without() {
        assert_eq!(names(&[("a", "a1", 0..1536)]), ["a1"], "the whole share");
        assert_eq!(names(&[("a", "a1", 0..1537)]), [""; 0]);
        let pods = [("a", "a1", 0..1400), ("a", "a2", 0..1536), ("b", "b1", 0..100), ("b", "b2", 0..30)];
        assert_eq!(names(&pods), ["a1", "b1", "b2"], "what two refer to counts once");
        // Within a namespace, pods with the fewest references come first.
        let pods = [("a", "a1", 0..1000), ("a", "a2", 1000..1400), ("a", "a3", 1400..1700)];
        assert_eq!(names(&pods), ["a2", "a3"]);
        // Many small pods of one namespace have no advantage over a few larger ones of another.
        let small: Vec<_> = (0..3000).map(|number| format!("s{number:04}")).collect();
        let mut pods: Vec<_> = small.iter().zip(0..).map(|(name, n)| ("a", &**name, n..n + 1)).collect();
        pods.extend([("b", "b1", 0..400), ("c", "c1", 0..568)]);
        let names = names(&pods);
        assert_eq!(names[..2], ["b1", "c1"]);
        assert_eq!(names.len(), 2 + 568, "and has the rest");
    }

    #[test]
    fn oversized_namespaces_get_equal_parts_and_no_room_is_wasted() {
        let parts: Vec<_> = (0..60).map(|number| format!("{number:02}")).collect();
        let pods = parts.iter().zip(0..).flat_map(|(name, n)| {
            ["a", "b"].map(|namespace| (namespace, format!("{namespace}{name}"), n * 20..n * 20 + 20))
        });
        let pods: Vec<_> = pods.collect();
        let pods: Vec<_> = pods.iter().map(|(a, name, numbers)| (*a, &**name, numbers.clone())).collect();
        let of =
            |names: &[String], letter: &str| names.iter().filter(|name| name.starts_with(letter)).count();
        let both = names(&pods);
        assert_eq!((of(&both, "a"), of(&both, "b")), (38, 38), "of 1,200 each");
        // A part that one namespace cannot use goes to the other.
        let mut pods: Vec<_> = pods.into_iter().filter(|(namespace, ..)| *namespace == "a").collect();
        pods.push(("c", "c1", 0..1500));
        assert_eq!(names(&pods).len(), 60);
    }
}
