//! Detects peers that read or send almost nothing, so that memory is not held for them indefinitely.

use std::time::Duration;

use tokio::time::Instant;

/// Time in which a peer that has something to read, or has begun a frame, must move [`PROGRESS_BYTES`].
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// Bytes that must move in that time: about 70 per second, which the slowest radio link achieves.
pub const PROGRESS_BYTES: u64 = 4 * 1024;

/// One direction of a link.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Since when a transfer is under way without a break, and how many bytes had moved by then.
    begun: Option<(Instant, u64)>,
}

impl Progress {
    /// Checks the direction: `busy` says whether a transfer is under way, and `moved` is the number of bytes since the
    /// connection began. True when the peer makes no progress.
    pub(crate) fn is_stalled(&mut self, busy: bool, moved: u64, now: Instant) -> bool {
        if !busy {
            self.begun = None;
            return false;
        }
        let (since, before) = *self.begun.get_or_insert((now, moved));
        if now.duration_since(since) < PROGRESS_INTERVAL {
            return false;
        }
        if moved.saturating_sub(before) < PROGRESS_BYTES {
            return true;
        }
        self.begun = Some((now, moved));
        false
    }

    /// No transfer is under way.
    pub(crate) fn rest(&mut self) {
        self.begun = None;
    }

    /// Notes whether a transfer is under way, and if so, returns when to check again. Cheap: called with every event.
    pub(crate) fn watch(&mut self, busy: bool, moved: u64, now: Instant) -> Option<Instant> {
        if !busy {
            self.begun = None;
            return None;
        }
        let (since, _) = *self.begun.get_or_insert((now, moved));
        Some(since + PROGRESS_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_peer_continues_and_byte_at_a_time_peer_does_not() {
        let (mut progress, begin) = (Progress::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(!progress.is_stalled(true, 0, at(0)));
        assert!(!progress.is_stalled(true, 30, at(30)));
        assert_eq!(progress.watch(true, 30, at(31)), Some(at(60)));
        assert!(progress.is_stalled(true, 60, at(60)), "a byte a second");
        let mut slow = Progress::default();
        for minute in 0..10 {
            assert!(!slow.is_stalled(true, minute * PROGRESS_BYTES, at(60 * minute)));
        }
        assert!(!slow.is_stalled(false, 0, at(700)), "no transfer is in progress");
        assert!(!slow.is_stalled(true, 0, at(5000)) && slow.watch(true, 0, at(5001)) == Some(at(5060)));
    }
}
