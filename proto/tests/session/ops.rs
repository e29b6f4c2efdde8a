//! Operations on the world, and their encoding as bytes.

use std::time::Duration;

use tombolo_proto::frame::features;
use tombolo_proto::limits::BULK_OBJECT_MIN;

use super::cloud::{AREAS, WATCHES, key, read_by_name};
use super::world::World;

/// Number of keys in one area: few, so that operations affect the same keys.
pub const KEYS: usize = 6;

/// Number of the node's key in the pushed set.
const NODE: usize = 3;

/// One operation on the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// An object is created or gets new content, and is needed.
    Put {
        area: usize,
        key: usize,
        big: bool,
    },
    /// An object gets another revision with the same content.
    Touch {
        area: usize,
        key: usize,
    },
    /// An object is deleted, still needed.
    Remove {
        area: usize,
        key: usize,
    },
    /// An object is deleted and created again: same name, new UID.
    Recreate {
        area: usize,
        key: usize,
    },
    /// A key becomes needed, whether it exists or not; or is no longer needed.
    Want {
        area: usize,
        key: usize,
        wanted: bool,
    },
    /// A needed key has not been fetched yet.
    Pend {
        area: usize,
        key: usize,
    },
    /// The replica fetches the keys that it lacks.
    Fetch,
    /// A key of the pushed set becomes unreadable, or readable again.
    Readable {
        key: usize,
        readable: bool,
    },
    /// One of the replica's watches stops or continues; without a number, all of them do.
    Stall {
        watch: Option<usize>,
        stalled: bool,
    },
    /// A stopped watch advances a little.
    Advance {
        watch: usize,
        changes: usize,
    },
    /// The API server answers the replica's doubts.
    Prove,
    /// Remembers the present view, for a replica that lags from here on and may not know the node yet.
    Fork {
        new: bool,
    },
    /// The connection breaks.
    Cut,
    /// The edge crashes and loses everything that is not on disk.
    CrashEdge,
    /// The edge loses its disk.
    WipeStore,
    /// Connects to a replica that may lag. If `anew`, it does so even when there is a connection.
    Connect {
        lagging: bool,
        anew: bool,
    },
    /// The cloud says goodbye.
    Goodbye,
    /// Time passes.
    Run {
        millis: u64,
    },
    /// The next event occurs.
    Step,
    /// The edge's disk becomes full, or is no longer full.
    DiskFull {
        full: bool,
    },
    /// The next write fails.
    Refuse,
    /// A backup of the API is taken; or restored, which makes a new epoch.
    Snapshot,
    Restore,
    /// The cloud is upgraded to other trimming rules.
    ChangeRules,
    /// The edge begins or stops following an area.
    Follow {
        area: usize,
        follow: bool,
    },
    /// Subscriptions wait for a decision, or receive it.
    Hesitate,
    Accept,
    /// A lane becomes slow.
    Slow {
        lane: usize,
        millis: u64,
    },
    /// Frames are repeated.
    Duplicate,
    /// The network drops everything, or works again.
    Blackhole {
        on: bool,
    },
    /// The edge sends a request; the cloud may not answer.
    Ask {
        millis: u64,
        big: bool,
    },
    Mute {
        mute: bool,
    },
    /// The edge renews its lease.
    Lease,
}

impl Op {
    /// Decodes an operation from two bytes; every pair of bytes is valid. `a` selects the operation, `b` its
    /// parameters.
    pub fn from_bytes(a: u8, b: u8) -> Self {
        let n = usize::from(b);
        let (area, key, flag) = (n % AREAS, (n / AREAS) % KEYS, b >= 128);
        match a % 64 {
            0..=9 => Self::Put { area, key, big: b >= 240 },
            10 => Self::Prove,
            11..=12 => Self::Advance { watch: n % WATCHES, changes: 1 + n / WATCHES % 3 },
            13..=14 => Self::Touch { area, key },
            15..=16 => Self::Remove { area, key },
            17..=18 => Self::Recreate { area, key },
            19..=22 => Self::Want { area, key, wanted: flag },
            23 if flag => Self::Pend { area, key },
            23 => Self::Readable { key, readable: false },
            24 if b < 64 => Self::Fetch,
            24 => Self::Readable { key, readable: flag },
            25 => Self::Stall { watch: (n % 8 < WATCHES).then_some(n % 8), stalled: flag },
            26 => Self::Fork { new: b < 32 },
            27 => Self::Cut,
            28 if b < 16 => Self::WipeStore,
            28 if flag => Self::CrashEdge,
            28 => Self::Goodbye,
            29..=34 => Self::Connect { lagging: b.is_multiple_of(4), anew: b >= 240 },
            35..=39 => Self::Run { millis: u64::from(b) },
            40 if b >= 224 => Self::Run { millis: u64::from(b) * 400 },
            40..=54 => Self::Step,
            55 => Self::DiskFull { full: b >= 160 },
            56 => Self::Refuse,
            57 if b < 96 => Self::Restore,
            57 => Self::Snapshot,
            58 if b < 64 => Self::ChangeRules,
            58..=59 => Self::Follow { area, follow: b >= 64 },
            60 if b < 64 => Self::Hesitate,
            60 if flag => Self::Duplicate,
            60 => Self::Accept,
            61 if b < 16 => Self::Blackhole { on: true },
            61 if b < 64 => Self::Blackhole { on: false },
            61 => Self::Slow { lane: n % 3, millis: u64::from(b) * 2 },
            62 if flag => Self::Mute { mute: b >= 192 },
            62 => Self::Ask { millis: u64::from(b) * 20, big: b < 8 },
            _ => Self::Lease,
        }
    }
}

impl World {
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Put { area, key: n, big } => {
                self.cloud.put(&key(area, n), if big { BULK_OBJECT_MIN } else { 16 });
                self.cloud.want(area, &key(area, n), true);
            }
            Op::Touch { area, key: n } => self.cloud.touch(&key(area, n)),
            Op::Remove { area, key: n } => self.cloud.remove(&key(area, n)),
            Op::Recreate { area, key: n } => {
                self.cloud.remove(&key(area, n));
                self.cloud.put(&key(area, n), 16);
            }
            Op::Want { area, key: n, wanted } => self.cloud.want(area, &key(area, n), wanted),
            Op::Pend { area, key: n } => {
                if self.connection.is_none() {
                    self.cloud.pending.insert(key(area, n));
                }
            }
            Op::Fetch => self.fetched(),
            Op::Readable { key: n, readable } => {
                // For keys that are followed as well as for those that are needed.
                self.cloud.set_readable(&key(0, read_by_name(n)), readable);
                self.cloud.set_readable(&key(1, n), readable);
            }
            Op::Stall { watch: Some(watch), stalled } => self.cloud.stalled[watch] = stalled,
            Op::Stall { watch: None, stalled } => self.cloud.stalled.fill(stalled),
            Op::Advance { watch, changes } => self.cloud.advance(watch, changes),
            Op::Prove => _ = self.answer_doubts(),
            Op::Fork { new } => self.cloud.fork_replica(new),
            Op::Cut => self.cut(),
            Op::CrashEdge => self.crash_edge(),
            Op::WipeStore => self.wipe_store(),
            Op::Connect { lagging, anew } => {
                if anew || self.connection.is_none() {
                    self.cut();
                    // Pending writes belong to deliveries of the former replica.
                    self.finish_writes();
                    self.oracle.lagging = self.cloud.fail_over(lagging);
                    self.connect();
                }
            }
            Op::Goodbye => self.say_goodbye(),
            Op::Run { millis } => self.run_for(Duration::from_millis(millis)),
            Op::Step => {
                if let Some(next) = self.next_event() {
                    self.now = self.now.max(next);
                    self.step();
                }
            }
            Op::DiskFull { full } => self.store.disk_full = full,
            Op::Refuse => self.refuse_next += 1,
            Op::Snapshot => self.cloud.snapshot = self.cloud.truth.clone(),
            Op::Restore => {
                self.finish_writes();
                self.cut();
                self.cloud.restore();
            }
            Op::ChangeRules => {
                self.cut();
                self.cloud.change_rules();
            }
            Op::Follow { area, follow } => self.follow(area, follow),
            Op::Hesitate => self.accept_at_once = false,
            Op::Accept => self.accept_subscriptions(),
            Op::Slow { lane, millis } => self.settings.delays[lane] = Duration::from_millis(millis),
            Op::Duplicate => {
                if let Some(connection) = &mut self.connection {
                    connection.down.duplicate();
                    connection.up.duplicate();
                }
            }
            Op::Blackhole { on } => self.blackhole = on,
            Op::Ask { millis, big } => {
                self.ask(Duration::from_millis(millis.max(1)), if big { BULK_OBJECT_MIN } else { 64 });
            }
            Op::Mute { mute } => self.mute = mute,
            Op::Lease => self.renew_lease(),
        }
        self.offer_changes();
    }
}

/// The body of the fuzz target `session`: two correct sessions under faults, or each of them against a hostile peer.
pub fn fuzz(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((0..128, rest)) => {
            run_bytes(rest);
        }
        Some((_, rest)) => super::hostile::run(rest),
    }
}

/// The first four bytes set windows and delays, and each following pair of bytes is an operation. In the end all faults
/// end and the sides must converge.
pub fn run_bytes(data: &[u8]) -> World {
    run_crowded(data, 0)
}

/// The same with `crowd` additional objects in each area, which the edge holds from the beginning and which never
/// change.
pub fn run_crowded(data: &[u8], crowd: usize) -> World {
    let (head, rest) = data.split_at(data.len().min(4));
    let at = |index: usize| head.get(index).copied().unwrap_or(0);
    let mut settings = super::world::Settings {
        window_count: 1 + usize::from(at(0) % 8),
        window_bytes: 1 << (7 + at(0) / 16),
        commit_delay: Duration::from_millis(u64::from(at(1) % 64)),
        ..super::world::Settings::default()
    };
    settings.delays = [at(1), at(2), at(3)].map(|byte| Duration::from_millis(u64::from(byte / 4)));
    settings.features = u64::from(at(0)) & features::ALL;
    let mut world = World::new(settings);
    (world.cloud.kinds, world.cloud.asks) = (true, true);
    world.apply(Op::Put { area: 0, key: NODE, big: false });
    world.apply(Op::Snapshot);
    for number in KEYS..KEYS + crowd {
        for area in 0..AREAS {
            world.cloud.put(&key(area, number), 16);
            world.cloud.want(area, &key(area, number), true);
        }
    }
    if crowd > 0 {
        world.assume_synced();
    }
    for area in 0..AREAS {
        world.apply(Op::Put { area, key: 0, big: false });
        world.apply(Op::Put { area, key: 1, big: false });
        world.follow(area, at(2) & (1 << area) == 0);
    }
    world.connect();
    for pair in rest.chunks_exact(2).take(OPS_MAX) {
        world.apply(Op::from_bytes(pair[0], pair[1]));
    }
    world.heal();
    world
}

/// Maximum number of operations in one run.
pub const OPS_MAX: usize = 256;
