//! Detection of two processes with one node's identity, such as a copied disk or a cloned machine.
//!
//! Two such processes take the session over from each other again and again. A restarted process takes it over too, but
//! the earlier process never comes back. If a process does come back after another one, both are alive. A KubeEdge edge
//! does not identify its process. But each process closes its former connection before it begins a new one, so a peer
//! that still answers on the former connection is another process.
//!
//! One replica detects this only in its own sessions. Across replicas the node's lease shows it (`upstream/lease.rs`),
//! which Tombolo edges renew in every session.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use tombolo_runtime::doubled;

use crate::edgecontroller::upstream::SETTLED_AFTER;

/// Number of processes of one node that are remembered.
const SEEN_MAX: usize = 4;

/// How long the replaced process must wait after the first proof. The wait doubles with each further proof.
const WAIT_FIRST: Duration = Duration::from_secs(30);

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// How long the replaced process must stay away after this many proofs.
pub(super) fn wait_after(proofs: u32) -> Duration {
    if proofs == 0 { Duration::ZERO } else { doubled(WAIT_FIRST, proofs, WAIT_MAX) }
}

/// What the sessions of one node have shown. Each session passes it to the one that replaces it.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeProcesses {
    /// The newest process is last.
    seen: VecDeque<u64>,
    proofs: u32,
    proved_at: Option<Instant>,
}

impl NodeProcesses {
    /// A process has begun a session. If this proves that another process is alive beside it, returns the number of
    /// proofs so far, this one included; otherwise none.
    pub(super) fn introduce(&mut self, instance: u64, now: Instant) -> Option<u32> {
        // Older edges do not send an instance.
        if instance == 0 || self.seen.back() == Some(&instance) {
            return None;
        }
        let came_back = self.seen.contains(&instance);
        self.seen.retain(|other| *other != instance);
        self.seen.push_back(instance);
        if self.seen.len() > SEEN_MAX {
            self.seen.pop_front();
        }
        came_back.then(|| self.prove(now))
    }

    /// Records a proof that there are two processes. Returns the number of proofs so far, this one included.
    pub(super) fn prove(&mut self, now: Instant) -> u32 {
        if self.is_settled(now) {
            self.proofs = 0;
        }
        self.proofs = self.proofs.saturating_add(1);
        self.proved_at = Some(now);
        self.proofs
    }

    /// Whether the current session must not be replaced now. This is for peers that understand no goodbye and therefore
    /// cannot be asked to stay away.
    pub(super) fn are_kept_out(&self, now: Instant) -> bool {
        self.proved_at.is_some_and(|at| now.duration_since(at) < self.wait(now))
    }

    /// How long the process that is replaced now must stay away.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        if self.is_settled(now) { Duration::ZERO } else { wait_after(self.proofs) }
    }

    fn is_settled(&self, now: Instant) -> bool {
        self.proved_at.is_none_or(|at| now.duration_since(at) >= SETTLED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_returning_process_proves_a_duplicate() {
        let (mut processes, now) = (NodeProcesses::default(), Instant::now());
        // A node that reconnects, that restarts again and again, or whose software is too old to send an instance.
        for instance in [1, 1, 2, 2, 3, 0, 0, 4, 5, 6, 7] {
            assert_eq!(processes.introduce(instance, now), None, "{instance}");
        }
        assert_eq!(processes.wait(now), Duration::ZERO);
        assert!(processes.seen.len() <= SEEN_MAX);
        assert_eq!(processes.introduce(6, now), Some(1));
        assert_eq!(processes.introduce(7, now), Some(2));
    }

    #[test]
    fn kubeedge_edges_are_held_off_after_each_proof() {
        let (mut processes, now) = (NodeProcesses::default(), Instant::now());
        assert!(!processes.are_kept_out(now));
        for (proof, seconds) in [(1, 30), (2, 60), (3, 120)] {
            assert_eq!(processes.prove(now), proof);
            let last = now + Duration::from_secs(seconds);
            assert!(processes.are_kept_out(last - Duration::from_secs(1)) && !processes.are_kept_out(last));
        }
    }

    #[test]
    fn alternating_processes_wait_longer_until_they_stop() {
        let (mut processes, now) = (NodeProcesses::default(), Instant::now());
        let waits: Vec<u64> = (0..8)
            .map(|turn| {
                processes.introduce(1 + turn % 2, now);
                processes.wait(now).as_secs()
            })
            .collect();
        assert_eq!(waits, [0, 0, 30, 60, 120, 240, 480, 600]);
        let later = now + SETTLED_AFTER;
        assert_eq!(processes.wait(later), Duration::ZERO);
        assert_eq!(processes.introduce(1, later), Some(1), "it begins again");
        assert_eq!(processes.wait(later), WAIT_FIRST);
    }
}
